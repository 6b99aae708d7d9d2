# SPDX-License-Identifier: Apache-2.0
"""Patterns of the lines that open or belong to an error in a rank's log."""

from __future__ import annotations

import re

from .failure_catalogue.accelerator import DEVICE_XIDS

# Every line that can open an event holds one of these. A scanner may skip all others while
# `ErrorScan.idle` is true. A literal with a rare first letter costs least.
LITERALS = (
    "Traceback (most",
    '  File "',
    "Error Message Summary",
    "terminate called",
    "raises a std::exception",
    "Fatal Python error",
    "Killed",
    "Segmentation fault",
    "Bus error",
    "Aborted",
    "Illegal instruction",
    "ERROR: Unexpected",
    "can't open file",
    "No module named",
    ": error: ",
    " WARN ",
    "Check failed",
    "Exception ignored in",
    "Exception in thread",
    "Logging error",
    "Error in atexit",
    "Error in sys.excepthook",
    "Container rank ",
    "[ERROR]",
    "[CRITICAL]",
    "Failed to call bind",
    "Signal: ",
    "PMIX ERROR",
    "ORTE ",
    "MPI_ABORT was",
    "There are not enough slots",
    "mpirun was unable",
    "required daemon terminated",
    "PID ",
    "Worker process ",
    "Process name: [[",
    "Exit code: ",
    "(E",
    "Call acl",
    "PRTE ",
    "pml_ucx.c",
    "has exited due to process",
    "failed to TCP connect",
    "cudaGetLastError",
    "It looks like MPI_INIT",
    "An MPI communication peer",
    "An error occurred in MPI_",
    "Failed, ",
    "Assertion ",
    "UCX ",
    "ib_mlx5_log",
    "Find timeout",
    "cannot be set as true",
    "received by PID",
    "(SeqNum=",
    "watchdog thread",
    "Memory access fault",
    "HSA_STATUS",
    "GPU Hang",
    "RTS_HWTS",
    "kernel execute failed",
    "task happen error",
    "exception of ai",
    "task type=ai",
    "Error: (",
    "At least one pair",
    "No components were",
    "cannot be selected",
    "relocation error",
    "symbol lookup error",
    "error while loading shared",
    "NVRM: Xid",
    "[Hardware Error]",
    "Could not load library",
    "internal error has occurred in",
    "prterun was unable",
    "PSM was unable",
    "PSM2 was unable",
    "ERROR_LOG: ",
)

# A code of Ascend's software. The lines that have one are of interest, too.
CODE = r"E[A-Z0-9]\d{4}"

# What launchers and libraries put before the lines of a rank.
PREFIX = re.compile(
    r"^(?:\[(?:rank|default)\d+\]: ?"
    r"|(?:\w{3} \w{3} [ \d]\d [\d:]{8} \d{4})?\[\d+,\d+\]<std(?:out|err)>: ?"
    r"|\(\w+(?: rank=\d+)? pid=\d+(?:, ip=[\w.:]+)?\) ?){1,2}"
)

SUMMARY = "Error Message Summary:"
TRACEBACK = re.compile(r"^(.*?)Traceback \(most recent call last\):")
# What stands before the lines of an exception group. Its members stand further to the right.
GROUP = re.compile(r"^  (?:\+ Exception Group (?=Traceback)|\| )")
# A frame that faulthandler prints has no comma behind its number, and belongs to no exception.
FRAME = re.compile(r'^\s+File "(?P<file>[^"]+)", line (?P<line>\d+)(?P<more>, in .*)?\s*$')
CHAIN = re.compile(
    r"^(?:During handling of the above exception|The above exception was the direct cause)"
)
FINAL = re.compile(r"^(?P<kind>[A-Za-z_]\w*(?:\.[A-Za-z_<][\w<>]*)*)(?::(?: (?P<text>.*))?)?$")
# The outermost frame of an uncaught exception of the main thread is the script's own module level,
# or runpy's for `python -m`. A syntax error has a frame without a function. A traceback that begins
# elsewhere was printed by a handler, or by a worker process.
_OUTERMOST = re.compile(r", in <module>\s*$")
_LIBRARY = re.compile(r"^<string>$|/(?:site|dist)-packages/|/lib/python3[.\d]*/(?!runpy\.py)")
# Records in the format of a logging handler, which flushes each. Those of the runtimes' C++ threads
# have other forms: they go on when the main thread has ended.
_LEVEL = r"(?:DEBUG|INFO|WARNING|ERROR|CRITICAL)"
RECORD = re.compile(
    r"^\[?(?:\d{4}[-/])?\d\d[-/]\d\d \d\d:\d\d:\d\d(?:[,.]\d+)?\]?"
    rf"(?: \S+)?(?: -)? \[? *{_LEVEL}\b"
    rf"|^{_LEVEL}:[\w.]+:|^\[{_LEVEL}\] ME\(\d+:\d+,MainProcess\)"
)
RECORD_BYTES = (
    rb"(?m)^\[?(?:\d{4}[-/])?\d\d[-/]\d\d \d\d:\d\d:\d\d|^\[?[A-Z]{4,8}(?::[\w.]+:|\] ME\()"
)
# What goes on below an error's message without being of the program's own: details of the message,
# lines of the runtimes' threads, of a launcher and of a worker process.
_FOREIGN = re.compile(
    r"^(?:\s|\[|\(|[-=*#+|]|[IWEF](?:\d{4})?\d{4} |E[A-Z0-9]\d{4}: |\d+\.|\S+\.(?:cc|cu|cpp|h|so)\b"
    r"|\S+:\d+:\d+ \[\d+\] |\S+\.py\b(?!:\d+: \w*Warning: )"
    r"|\S*(?:resource_tracker|ResourceWarning)|Process \S+:"
    r"|Current thread|Thread 0x|(?:The above|During handling)|LAUNCH )"
)
# Exceptions whose message is one line by the way in which the interpreter makes it.
_ONE_LINE = re.compile(
    r"^(?:KeyError: |ModuleNotFoundError: No module named '|ImportError: cannot import name '"
    r"|[\w.]+: \[Errno -?\d+\] |NameError: name '|AttributeError: .* has no attribute '"
    r"|IndexError: \w+ index out of range|ZeroDivisionError|UnicodeDecodeError: '"
    r"|[\w.]*JSONDecodeError: .*\(char \d+\)$|EOFError|StopIteration|KeyboardInterrupt)"
)
# Lines that are the last ones of their process. A later record of the training's own shows that the
# process was another one: a worker, or a program that the training had started.
LAST = re.compile(
    r"^terminate called|^Fatal Python error: |^F(?:\d{4})?\d{4} .*Check failed|^\S*python[\d.]*: "
    r"|^[\w.-]+: error: |^(?:\S+: line \d+:\s+\d+ )?"
    r"(?:Killed|Segmentation fault|Bus error|Aborted|Illegal instruction|Terminated)\b"
)
# Files of the loaders whose threads the main thread waits for.
LOADER = re.compile(r"/(?:paddle|mindspore)/(?:\w+/)*(?:dataloader|dataset|reader)\b")
HEADERS = (
    "Exception ignored in",
    "--- Logging error ---",
    "Exception in thread",
    "Error in atexit._run_exitfuncs:",
    "Error in sys.excepthook:",
)
SIGNAL_INFO = re.compile(
    r"\*\*\* (?P<signal>SIG[A-Z]+) .*received by PID \d+ .*from PID (?P<sender>\d+)"
)
TIME_INFO = re.compile(r"\*\*\* Aborted at (?P<time>\d{9,11}) \(unix time\)")
# The rank that a lost connection or a timeout names: gloo names it by its pair, MindSpore's
# scheduler by the worker that it missed first, HCCL by the rank that gave no record or never came,
# msrun by the node (a rank) that timed out, NCCL by the rank where calls part.
PEER = re.compile(
    r"\bpair_rank = (\d+)|\bworker (\d+) is the first one timed out|\bremote rank:? ?\[(\d+)\]"
    r"|\b[Nn]ode: (\d+) is timed out|Time out nodes are \['(\d+)'\]"
    r"|\b(?:Remote|Waiting peer) (?:rank|end): \[?(\d+)\b|Failed to connect agent\[(\d+),?\]"
    r"|calls at and around rank (\d+)|check root rank: (\d+)"
)
# The address of the node that it names: NCCL and gloo by the peer of a connection, HCCL by the
# place of the fault or the other end of a link, Paddle by the store.
PEER_ADDRESS = re.compile(
    r"(?:from peer|recv from|send to|[Cc]onnect to|remote peer|connect|Peer information: server"
    r"|[Nn]etwork) \[?(?P<peer>[\w.:-]+?)(?:<\d+>|\]:\d+|, device ID|:\d+ cannot be connected)"
    r"|Cluster Exception Location\[IP/ID\]:\[(?P<place>[^/\]]+)/"
    r"|(?:(?:Read|Write) error|closed by peer) \[(?P<pair>[\w.:-]+)\]:\d+"
)
# The lines below `NCCL error in` that have the reason.
NCCL_REASON = re.compile(
    r"^(?:Error while creating shared memory|Cuda failure|Call to |NET/\w+ ?: |\w*[Ss]ocket\w*: "
    r"|Duplicate GPU detected|Invalid config|Error: network|Failed to |Proxy Call|Bootstrap )"
)

_KNOWN = re.compile(
    r"(?:Error|Exception|Exit|Interrupt|Iteration|Empty|Full|[Tt]imeout|Warning|NotMet|Group)$"
)
_NOT_KINDS = frozenset(
    ("Warning", "WARNING", "INFO", "ERROR", "DEBUG", "NOTE", "Note", "Epoch", "epoch")
)
_SHELL = r"(?:Killed|Segmentation fault|Bus error|Aborted|Illegal instruction|Terminated)"

# Ascend's error codes (EI0006: HCCL, EJ: HCCP, EL: driver, E1: graph engine, E2: fusion engine,
# EH: AscendCL, E3, EE, EZ: runtime). Before CANN 8.3 the code stands alone, since then behind a
# name, and the process and time before both. `Inner Error!` is the heading of the line after it.
ASCEND = re.compile(
    r"^(?:ERROR [\d-]+ [\d:]+ \[[^\]]{1,80}\] )?"
    r"(?:\[PID: \d+\] \S+ )?(?:\[\w+ ?\d*\]: ?)?(?:[\w/][\w/ -]{0,60}\()?(?P<kind>E[A-Z0-9]\d{4})"
    r"(?:\[PID: \d+\] \S+ \(E\w+)?\)?:? +(?P<text>(?!Inner Error|Internal error!).+)"
)

# A reference to a reason further down, as MindSpore makes it, and Paddle of thrust.
REFERS = re.compile(
    r"[Rr]efer to ['\"][\w ]+ (?i:error message)['\"]\.?\s*$|The details refer to '[\w ]+'\.?\s*$"
    r"|Invoke operator \S+ error\.?\s*$"
    r"|raises an? [\w:]+ exception\.(?: \[The exception content is\](?: \[:\w+:\])?)?\s*$"
    r"|system_error exception\.(?: \[The exception content is\])?\s*$"
)

# An exception of Paddle without its traceback. Only Paddle puts the kind of the error in brackets.
BARE = re.compile(
    r"^(?P<kind>[A-Z]\w*(?:Error|NotMet)): (?P<text>\((?:External|InvalidArgument|NotFound"
    r"|OutOfRange|AlreadyExists|ResourceExhausted|PreconditionNotMet|PermissionDenied|ExecutionTimeout"
    r"|Unimplemented|Unavailable|Fatal|InvalidType)\) .*)"
)

# One-line events: pattern, kind (None: the group `kind`), origin. The group `text` is the message.
SINGLE = (
    (
        re.compile(r"^terminate called after throwing an instance of '(?P<kind>[^']+)'(?P<text>)"),
        None,
        "cpp",
    ),
    (
        re.compile(r"^terminate called (?P<text>without an active exception)"),
        "terminate called",
        "cpp",
    ),
    (re.compile(r"raises a std::exception: (?P<kind>[\w:]+)(?P<text>)"), None, "cpp"),
    (re.compile(r"^Fatal Python error: (?P<text>.*)"), "Fatal Python error", "cpp"),
    (re.compile(rf"^(?P<kind>{_SHELL})(?P<text>)(?:\s+\(core dumped\))?\s*$"), None, "line"),
    (re.compile(rf"^\S+: line \d+:\s+\d+ (?P<kind>{_SHELL})\s*(?P<text>.*)"), None, "line"),
    (
        re.compile(r"^ERROR: (?P<text>Unexpected .* encountered in DataLoader.*)"),
        "DataLoader",
        "line",
    ),
    (
        re.compile(
            r"^\S*python[\d.]*: (?P<text>(?:can't open file|No module named|Error while finding"
            r" module|relocation error|symbol lookup error).*)"
        ),
        "python",
        "line",
    ),
    (
        re.compile(r"^(?:\S+: )?(?P<text>error while loading shared libraries: .*)"),
        "loading",
        "line",
    ),
    (
        re.compile(
            r"^(?:slurmstepd|srun): error: "
            r"(?P<text>.*(?:oom[-_]kill|Out Of Memory|OUT_OF_MEMORY).*)"
        ),
        "Slurm",
        "line",
    ),
    (
        re.compile(r"^(?!srun|slurmstepd)[\w.-]+: error: (?P<text>.*)"),
        "usage error",
        "line",
    ),
    # Before NCCL 2.3 the line does not name it.
    (
        re.compile(r"(?:NCCL|\[\d+\] [\w./]{1,80}\.(?:h|cc|cu):\d+) WARN (?P<text>.*)"),
        "NCCL WARN",
        "cpp",
    ),
    # Paddle 2.4 prints it and exits.
    (re.compile(r"^Failed, (?P<text>(?i:nccl|cuda|hccl) error .*)"), "Failed", "cpp"),
    (
        re.compile(r"^(?:Error: )?(?P<text>\S+\.cu(?:h|\.h)?:\d+:? .{0,200}Assertion .* failed.*)"),
        "Assertion",
        "cpp",
    ),
    (re.compile(r"^\[\S+:\d+\] +(?P<text>ib_mlx5_log\.c:\d+ .*)"), "UCX", "cpp"),
    (
        re.compile(
            r"UCX +(?:ERROR|FATAL|Fatal:|Error:) +(?P<text>.{0,400}"
            r"(?:ibv_|mlx5|rdma|RDMA|\bQP\b|connect\(|transport error|active messages).*)"
        ),
        "UCX",
        "cpp",
    ),
    (
        re.compile(r"^[EW](?:\d{4})?\d{4} [\d:.]+ +\d+ \S+\] (?P<text>Find timeout .* task.*)"),
        "Find timeout",
        "cpp",
    ),
    # PaddleDetection and its kin print it and exit.
    (
        re.compile(r"(?P<text>Config use_\w+ cannot be set as true while you are using .*)"),
        "check",
        "line",
    ),
    # A check of C in a library, after which the C library aborts.
    (
        re.compile(r"^[\w.-]+: (?P<text>\S+:\d+: .{0,300}: Assertion `.*' failed\.)"),
        "C assertion",
        "cpp",
    ),
    # The handlers of older versions of Paddle, and of glog.
    (re.compile(r"^\*\*\* (?P<kind>SIG[A-Z]+) (?P<text>\(@\w+\) received by .*)"), None, "cpp"),
    # The thread of PyTorch that watches collective operations, for NCCL and for HCCL.
    (
        re.compile(
            r"^(?! *what\(\)).*?(?P<text>(?:Watchdog caught collective operation timeout: )?"
            r"Work\w+\(SeqNum=.*"
            r"(?:before timing out|timed out in blocking wait).*)"
        ),
        "watchdog",
        "cpp",
    ),
    (
        re.compile(
            r"^(?! *what\(\))(?=.{0,200}(?:\[Rank |ProcessGroup)).{0,400}"
            r"watchdog thread terminated with exception: (?P<text>(?!\[Rank).+)"
        ),
        "watchdog",
        "cpp",
    ),
    # The runtime of ROCm, whose words stand above an abort.
    (re.compile(r"^(?P<kind>Memory access fault) (?P<text>by GPU node-\d.*)"), None, "cpp"),
    (re.compile(r"aborting with error : (?P<text>HSA_STATUS_ERROR_\w+.*)"), "ROCm", "cpp"),
    (re.compile(r"^(?P<kind>HW Exception) (?P<text>by GPU node-.*GPU Hang.*)"), None, "cpp"),
    # What the driver and the runtime of Ascend say of a kernel, above the exception that it made.
    (re.compile(r"RTS_HWTS: (?P<text>ai(?:core|vector|cpu) exception.*)"), "RTS_HWTS", "cpp"),
    (re.compile(r"^\s+(?P<text>Ai(?:core|cpu) kernel execute failed, .*)"), "RTS_HWTS", "cpp"),
    (
        re.compile(
            r"^(?!\w*(?:Error|Exception)\b).{0,200}"
            r"(?P<text>(?:[Kk]ernel task happen error, retCode="
            r"|there is an exception of ai\w+ error|task type=ai\w+ kernel).*)"
        ),
        "RTS_HWTS",
        "cpp",
    ),
    # glog ends the process after a line of its level F.
    (
        re.compile(r"^F(?:\d{4})?\d{4} [\d:.]+ +\d+ \S+\] (?P<text>Check failed.*)"),
        "Check failed",
        "cpp",
    ),
    (re.compile(r"^F(?:\d{4})?\d{4} [\d:.]+ +\d+ \S+\] (?P<text>.*)"), "glog", "cpp"),
    # Paddle's plugin for Ascend prints it and exits.
    (re.compile(r"^Call (?P<text>acl\w+\(.{0,200}\) failed : \d+ .*)"), "ACL", "cpp"),
    (re.compile(r"^\[\S+:\d+\] pml_ucx\.c:\d+ +Error: (?P<text>.*)"), "Open MPI", "line"),
    # Open MPI's messages. Its blocks stand between lines of dashes.
    (
        re.compile(
            r"^\[\S+:\d+\] Signal: (?P<text>(?:Segmentation fault|Bus error|Illegal"
            r" instruction|Aborted).*)"
        ),
        "Signal",
        "cpp",
    ),
    (
        re.compile(
            r"^\[\S+:\d+\] (?P<text>PMIX ERROR: .*|PML \S+ cannot be selected.*"
            r"|\[\[\d+,\d+\],\d+\] (?:OR|PR)TE_ERROR_LOG: .*)"
        ),
        "Open MPI",
        "line",
    ),
    (
        re.compile(
            r"^(?P<text>(?:(?:(?:OR|PR)TE|prterun|PSM2?) (?:was unable|has lost|does not know)"
            r"|An (?:OR|PR)TE daemon has"
            r"|There are not enough slots|(?:mpi(?:run|exec)|prterun) has exited due to process"
            r"|WARNING: Open MPI failed to TCP connect"
            r"|At least one pair of MPI processes are unable"
            r"|An internal error has occurred in (?:OR|PR)TE"
            r"|No components were able to be opened in the \w+ framework).*)"
        ),
        "Open MPI",
        "line",
    ),
    (
        re.compile(
            r"^(?P<text>(?:MPI_ABORT was invoked on rank|mpirun was unable to|\S+ has detected that"
            r" a required daemon terminated during|It looks like MPI_INIT failed"
            r"|An MPI communication peer process has unexpectedly disconnected).*)"
        ),
        "Open MPI",
        "line",
    ),
    (re.compile(r"^\[\S+:\d+\] \*\*\* (?P<text>An error occurred in MPI_.*)"), "Open MPI", "line"),
    # What cuDNN and CUDA say before they abort, in any place of a log.
    (re.compile(r"^(?P<text>Could not load library lib\S+\. Error: .*)"), "loader", "cpp"),
    # The kernel's log, where a program prints it.
    (
        re.compile(
            rf"(?P<text>NVRM: Xid \([^)]*\): (?:{DEVICE_XIDS})\b.*"
            r"|\[Hardware Error\] *error_type: \d+, multi-bit ECC.*)"
        ),
        "kernel log",
        "cpp",
    ),
    (ASCEND, None, "cpp"),
    (BARE, None, "python"),
)
# Lines that call themselves errors, in MindSpore's and CANN's form. Only those that the catalogue
# knows by name count. MindSpore only warns of the port that its scheduler does not get.
TAGGED = re.compile(
    r"^\[(?P<kind>ERROR|CRITICAL|WARNING(?=.*Failed to call bind))\] ?\w+\([^)]*\):\S+? ?"
    r"\[[^\]]*\](?: ?\w+\]| ?\[[\w, ]*\])* ?(?P<text>.*)"
)

# Launchers' lines about their children: pattern, whether the line names the child that ended before
# all others.
CHILDREN = (
    (
        re.compile(
            r"^Container rank (?P<local_rank>\d+) status (?P<status>\w+) cmd \[.*?\] code"
            r" (?P<code>-?\d+) log (?P<log>\S+)"
        ),
        False,
    ),
    (
        re.compile(
            r"Worker process (?P<pid>\d+) exit with exception\. Error code: (?P<code>-?\d+)"
        ),
        True,
    ),
    (
        re.compile(
            r"noticed that process rank (?P<rank>\d+) with PID \d+ on node \S+ exited on signal"
            r" (?P<signal>\d+)"
        ),
        True,
    ),
    (re.compile(r"^\s+Process name: \[\[\d+,\d+\],(?P<rank>\d+)\]"), True),
)
EXIT_CODE = re.compile(r"^\s+Exit code:\s+(?P<code>\d+)")


_QUOTED = re.compile(r"'[^']{0,400}'|`[^`]{0,400}`|\"[^\"]{0,400}\"|\{[^}]{0,400}\}")


def unquote(text):
    """Return a text without what stands in it between quotes or braces: names, and values."""
    return _QUOTED.sub("''", text)


def any_of(words):
    """Return a pattern that finds any of the words, one branch for each first letter.

    At most positions of a text it tests no more than that letter.
    """
    branches = {}
    for word in words:
        branches.setdefault(word[:1], []).append(re.escape(word[1:]))
    return "|".join(
        re.escape(first) + "(?:" + "|".join(endings) + ")" for first, endings in branches.items()
    )


def is_outermost(frame):
    """Return whether a match of FRAME can be the first frame of an uncaught exception."""
    if _LIBRARY.search(frame.group("file")):
        return False
    more = frame.group("more")
    return more is None or "runpy" in frame.group("file") or bool(_OUTERMOST.search(more))


def is_plain(text):
    """Return whether a line is one that only the program's own code prints."""
    return bool(text.strip()) and not _FOREIGN.match(text)


def is_one_line(error):
    """Return whether an error's message surely ends with its line."""
    return bool(_ONE_LINE.match(f"{error['kind']}: {error['text']}"))


def is_known(kind):
    """Return whether the name of a class ends as those of Python's exceptions do."""
    return bool(_KNOWN.search(kind.rsplit(".", 1)[-1]))


def is_final(match):
    """Return whether a match of FINAL ends a traceback.

    It does with an exception class of Python's or of the user's own, and with no other word before
    a colon.
    """
    kind = match.group("kind")
    name = kind.rsplit(".", 1)[-1]
    if kind in _NOT_KINDS:
        return False
    if is_known(kind):
        return True
    # A user's own exception class (`BadSample: ...`) has its colon, and looks like a class or a
    # path to one.
    if match.group("text") is None:
        return False
    return "." in kind or sum(char.isupper() for char in name) >= 2


def note_child(text, children, most):
    """Note a launcher's line about a child's end and return whether the line is one.

    children: the entries so far, at most `most`. An entry is {local_rank, rank, pid, code, first,
    log}, each None where the launcher does not give it. A negative code is a signal. Open MPI gives
    the code of the child that it named first some lines below it.
    """
    code = EXIT_CODE.match(text)
    if code and children and children[-1]["code"] is None:
        children[-1]["code"] = int(code.group("code"))
    for pattern, first in CHILDREN:
        match = pattern.search(text)
        if match and len(children) < most:
            children.append(_child(match.groupdict(), first))
            return True
    return bool(code)


def _child(fields, first):
    """Return the entry of a child from the groups of a launcher's line."""
    child = {"first": first, "log": fields.get("log")}
    for name in ("local_rank", "rank", "pid", "code"):
        child[name] = None
        if fields.get(name):
            child[name] = int(fields[name])
    if fields.get("signal"):
        child["code"] = -int(fields["signal"])
    return child
