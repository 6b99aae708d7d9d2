# SPDX-License-Identifier: Apache-2.0
"""The choice of the error that explains a rank's end.

A pure function over the errors that error_scanner.py has read in the rank's log.
"""

from __future__ import annotations

import re

from . import error_patterns as lines
from .error_patterns import unquote
from .failure_catalogue import EVERYDAY, classify, entry_of
from .last_words import (
    LAST_WORDS,
    TEARDOWN,
    is_apart,
    is_contradicted,
    is_mere_warning,
    lines_below,
)

_INTERNAL = frozenset(("soft", "direct", "partial", "last", "loader", "bare", "plain", "begin"))
GRADES = {"primary": 0, "shared": 1, "secondary": 2}
_VAGUE = frozenset(("python_exception", "cpp_exception", "unknown"))
# These say which library failed, and not why.
GENERAL = _VAGUE | {"accelerator_call", "collective_error"}
# An exception that was raised during the handling of one of these is its consequence. A missing
# file is not among them: it is often expected and handled well.
_DEEP = frozenset(
    (
        "disk_full",
        "read_only",
        "out_of_memory",
        "device_out_of_memory",
        "resource_limit",
        "permission",
        "bus_error",
        "download_failed",
        "version_mismatch",
    )
)
# A library that cannot be loaded. The code that handles it lacks what it should have brought.
_LOADER_ERROR = re.compile(r"\.so[.\d]*: (?:cannot|undefined|symbol|version|wrong|file|invalid)")
# What native code fails with where Python called it. Its words are vague as often as the library
# has said before what happened.
_NATIVE = frozenset(("RuntimeError", "OSError", "SystemError", "EnforceNotMet", "DistBackendError"))
# A heading of a part of MindSpore's message, except that of the places in its own code.
_HEADING = re.compile(r"- (?!C\+\+ Call).*:\s*$")
# Lines that torch_npu puts below its message, without a heading.
_NPU_LINE = re.compile(
    r"\[ERROR\] .{0,80}\bERR(?!99999)\d{5} |(?:NPU|OPS|HCCL) (?:function )?error\b"
)
# Lines that name what may have been, or what is at another place.
_ADVICE = re.compile(
    r"\s*(?:[-*#]|\d+\.|(?i:hint|note|solution|possible|if |\[?(?:rank|trainer|worker|node)\b)"
    r"|File \")"
)
# Threads of libraries whose words stand above the exception that they lead to.
_WARNERS = frozenset(("NCCL WARN", "watchdog", "RTS_HWTS"))
_CANN = re.compile(r"E[A-Z0-9]\d{4}\Z")  # a code of CANN, see error_patterns.ASCEND
# No message, or MindSpore's that a kernel failed, of whatever it failed.
_SAYS_NOTHING = re.compile(r"\W*(?:Launch kernel failed\b.*)?$", re.DOTALL)
_OF_RANKS = re.compile(
    r"(?i)[nhr]ccl|gloo|bkcl|\bEI\d{4}|\branks?\b|collective|process ?group|\w*store\b"
)
_KILLED_BY = re.compile(r"killed by signal: (Bus|Segmentation|Floating|Killed|Terminated|Aborted)")
# What NCCL warns of where a peer has gone, and where a plugin that it can do without is not there.
_OF_A_LOST_PEER = frozenset(("data_missing", "import_error", "port_in_use"))
# Causes of a library's line that an exception about other ranks below it makes as often.
_OF_CLEANING_UP = GENERAL | {"kernel_error", "device_unavailable", "device_setting"}
_OF_MPI = frozenset(("UCX", "Open MPI", "Signal"))
# Codes of CANN for an argument that also stand below other errors, as where it was not set up.
_ALSO_BELOW = frozenset(("EE1001", "EE1003", "EE1004", "EH0001", "EH0002", "EL0003"))
_OF_WORKERS = frozenset(("worker_died", "killed"))
NEAR = 3  # lines between the words of native code and the exception that they belong to
_NOT_OF_TEARDOWN = frozenset(("connection_lost", "bus_error"))
# What the main thread says where a thread that it needs has died.
_AFTER_THREAD = frozenset(("worker_died", "terminated", "aborted"))
# The end of a data set that answers an unreadable sample by trying another one, when it can read
# none of them (PaddleOCR does).
_GAVE_UP = frozenset(("RecursionError",))
_WRAPPER = re.compile(r"Exception thrown from .*\bdataset\b")
QUOTES = _WRAPPER  # an exception whose message has another traceback below it
_SAMPLE = re.compile(r"data\w*\.py\", line \d+, in __getitem__")


def finished(error):
    """Return an error as it is reported: with its cause, without internal fields."""
    result = {key: value for key, value in error.items() if key not in _INTERNAL}
    result["text"] = result["text"].strip()
    result["peer"] = None
    peer = lines.PEER.search(result["text"])
    if peer:
        result["peer"] = int(next(filter(None, peer.groups())))
    address = lines.PEER_ADDRESS.search(result["text"])
    if address:
        result["peer_address"] = next(filter(None, address.groups()))
    entry = classify(result["kind"], result["text"], result["origin"], result["file"])
    if result["kind"] == "NCCL WARN" and entry["cause"] in _OF_A_LOST_PEER:
        entry = entry_of("connection_lost")
    if entry["cause"] in GENERAL and _is_native(error) and not error["handled"]:
        detail, told = _clearest_detail(error, entry)
        if told:
            result["text"] += f" [{detail.strip()[:300]}]"
            return dict(result, **told)
    if entry["cause"] in _VAGUE and result["root"]:
        root_entry = _root_cause(result["root"], error["direct"])
        if root_entry:
            entry = root_entry
            result["text"] += " [after {}]".format(result["root"].strip()[:200])
    return dict(result, **entry)


def _is_native(error):
    """Return whether an exception is one with which native code fails where Python called it."""
    return error["origin"] == "python" and error["kind"].rsplit(".", 1)[-1] in _NATIVE


def _clearest_detail(error, entry):
    """Return the line below an exception that says more than its own words, and its entry.

    Both are None where no line does. entry: that of the exception.
    """
    general = (None, None)
    for detail in _details(error):
        told = classify("", unquote(detail))
        if told["cause"] not in GENERAL | EVERYDAY:
            return detail, told
        if entry["cause"] in _VAGUE and told["cause"] in GENERAL - _VAGUE and not general[1]:
            general = (detail, told)
    return general


def _details(error):
    """Return the lines below an exception that explain it: indented, or under a heading."""
    below = lines_below(error)
    heads = [index for index, line in enumerate(below) if _HEADING.match(line)]
    return [
        line
        for index, line in enumerate(below)
        if (line[:1] in " \t" or (heads and index > heads[0]) or _NPU_LINE.match(line))
        and not _ADVICE.match(line)
    ]


def _root_cause(root, is_direct):
    """Return the catalogue's entry of a chain's first error, or None.

    It counts where the chain's end is surely its consequence.
    """
    kind, _colon, text = root.partition(": ")
    entry = classify(kind, text, "line")
    if entry["grade"] != "primary" and _OF_RANKS.search(root):
        return entry  # whatever it is raised as then, a peer was lost
    if entry["grade"] != "primary" or entry["cause"] in _VAGUE:
        return None
    if is_direct or entry["cause"] in _DEEP or _LOADER_ERROR.search(root):
        return entry
    return None


def choose(errors, survived=None, thread_error=None, end=None):
    """Return the error that best explains an end of the rank, or None.

    errors: those since the last training step, in order. survived: the first one that a step
    followed. thread_error: the one that ended a thread of the trainer. end: the End of the process,
    None where it may still run.
    """
    if end:
        errors, survived, thread_error = _hold_against_end(errors, survived, thread_error, end)
    # A torn traceback does not say what ended its thread.
    threads = [error for error in errors if error["thread"] and error["kind"] != "Traceback"]
    errors = _without_outlived([error for error in errors if not error["thread"]])
    pool, errors = _without_teardown([finished(error) for error in errors], errors)
    thread = next(map(finished, filter(None, [thread_error, *threads])), None)
    _excuse_workers(pool, thread, end)
    causes = _primary_errors(pool, errors, thread)
    if causes:
        error = _told_below(min(causes, key=_vagueness), causes)
        error = _told_beside(error, pool)
        return _library_line(error, pool, errors) or _with_handled_cause(error, pool)
    fatal = _fatal_errors(pool, errors)
    if thread and not _has_own_words(pool, errors):
        # With `the data reader raises an exception` it did end the rank.
        return dict(thread, survived=not any(e["cause"] == "worker_died" for e in fatal))
    # A line that only calls itself an error comes after one that ends a process. The error that
    # explains most comes first.
    if fatal:
        best = min(fatal, key=lambda error: GRADES[error["grade"]])
        return _with_peer(_told_below(best, fatal), fatal)
    if survived:
        pool.insert(0, finished(survived))
    return min(pool, key=lambda error: error["grade"] != "primary", default=None)


def _without_teardown(pool, errors):
    """Return the two lists without what libraries say below an exception about other ranks.

    The process is going down then, and their threads notice.
    """
    is_down, kept = False, []
    for error, raw in zip(pool, errors):
        if not (is_down and raw["kind"] in _WARNERS):
            kept.append((error, raw))
        is_down = is_down or (is_uncaught(raw) and error["grade"] != "primary")
    return [error for error, _raw in kept], [raw for _error, raw in kept]


def _fatal_errors(pool, errors):
    """Return the errors that nothing handled, without tagged lines far above an exception."""
    ends = [raw["begin"] for raw in errors if is_uncaught(raw)]
    is_of_peers = any(
        is_uncaught(raw) and error["grade"] != "primary" for error, raw in zip(pool, errors)
    )
    return [
        error
        for error, raw in zip(pool, errors)
        if not error["handled"]
        and not (raw["soft"] and ends and _is_far(raw, ends[-1]))
        and not (raw["soft"] and is_of_peers and error["cause"] in _OF_CLEANING_UP)
    ]


def _is_far(error, line):
    """Return whether an error stands too far above a line to be of what ended there."""
    return line - error["line"] > TEARDOWN


def _hold_against_end(errors, survived, thread_error, end):
    """Return (errors, survived, thread_error) as they are after the end of the process is known.

    What cannot have made this end becomes an error that was survived.
    """
    kept, passed = _part(errors, end)
    if passed and not survived:
        clearest = _clearest(errors) or passed[0]
        survived = dict(clearest, survived=True, contradicted=True)
    if survived and not survived["loader"]:
        survived = dict(survived, thread=False)
    if thread_error and not thread_error["loader"]:
        thread_error = None
    return kept, survived, thread_error


def _clearest(errors):
    """Return the error that would explain the end best if the end contradicted none, or None.

    A process that a signal ends may have been going down because of it (candidates.py).
    """
    errors = [error for error in errors if not error["thread"]]
    pool = [finished(error) for error in errors]
    _excuse_workers(pool, None)
    causes = _primary_errors(pool, errors, None)
    if not causes:
        return None
    best = min(causes, key=_vagueness)
    return next(raw for error, raw in zip(pool, errors) if error is best)


def _with_peer(error, pool):
    """Return a report of a lost peer, with the peer that another line of the log names."""
    for line in pool:
        if error["peer"] is not None or "peer_address" in error:
            return error
        if line["peer"] is not None:
            error = dict(error, peer=line["peer"])
        elif "peer_address" in line:
            error = dict(error, peer_address=line["peer_address"])
    return error


def _part(errors, end):
    """Return the errors that may have made the end of a process, and those that did not.

    A thread ends no process. The main thread waits for those of its loader only.
    """
    mere = all(
        error["soft"] or error["kind"] == "NCCL WARN" for error in errors if not error["handled"]
    )
    kept, passed = [], []
    for index, error in enumerate(errors):
        error = _lengthened(error, errors[index + 1 :])
        if error["thread"] and not error["loader"]:
            passed.append(dict(error, thread=False))
        elif error["handled"] or error["thread"]:
            kept.append(error)
        elif is_contradicted(error, end) or (mere and is_mere_warning(error, end)):
            passed.append(error)
        else:
            kept.append(error)
    return kept, passed


def _lengthened(error, later):
    """Return an error. One that leads to an abort has `until`, the line where its last words are.

    UCX leaves the end to Open MPI, and a library that cannot be loaded to Paddle's own block.
    """
    until = error["line"]
    for other in later:
        is_near = other["kind"] in _OF_MPI and other["line"] - until <= TEARDOWN
        if error["kind"] == "UCX" and is_near:
            until = other["line"]
        if error["kind"] == "loader" and other["kind"] == "FatalError":
            until = other["line"]
    if error["kind"] not in ("UCX", "loader"):
        return error
    return dict(error, until=until)


def _has_own_words(pool, errors):
    """Return whether the main thread says more of its end than a dead thread would make it say."""
    return any(
        not (error["handled"] or raw["soft"] or error["cause"] in _AFTER_THREAD)
        for error, raw in zip(pool, errors)
    )


def _without_outlived(errors):
    """Return the errors without those that another one shows to be handled.

    An interpreter prints one uncaught exception of its main thread, the last. A C++ exception of
    the main thread after it shows the same, except right after it, while the interpreter ends. UCX
    takes another transport where one fails, so that an exception after its words shows the same.
    """
    result = []
    for index, error in enumerate(errors):
        may_pass = ends_process(error) or error["origin"] == "cpp"
        if not may_pass or not any(_outlives(later, error) for later in errors[index:]):
            result.append(error)
    return result


def _excuse_workers(pool, thread, end=None):
    """Mark what a loader worker said as handled where its parent reports no failure after it.

    It is not where nothing stands below it in the log. A loader that starts its workers again goes
    on. Its thread may have died of another thing.
    """
    is_report = bool(thread) and thread["kind"].endswith("Empty")  # its queue stays empty
    is_explained = thread and thread["cause"] not in _OF_WORKERS and not is_report
    for index, error in enumerate(pool):
        if error["kind"] == "DataLoader" and error["origin"] == "line":
            is_down = any(map(is_uncaught, pool[:index]))
            is_last = end and end.code and not is_down and not is_apart(error, end, LAST_WORDS)
            error["handled"] = bool(is_explained) or not (
                is_last
                or is_report
                or any(_reports_worker(later, error) for later in pool[index + 1 :])
            )


def _reports_worker(error, said):
    """Return whether an error is the report of a loader about what its worker said.

    It is not where it names another end of the worker.
    """
    if error["kind"] == "DataLoader":
        return True
    if error["cause"] not in _OF_WORKERS:
        return False
    signal = _KILLED_BY.search(error["text"])
    return not signal or signal.group(1).lower() in said["text"].lower()


def _outlives(later, error):
    """Return whether an error shows that the main thread went on after an exception."""
    if later is error or error["kind"] == "Traceback" or QUOTES.search(error["text"]):
        return False
    if error["kind"] == "UCX":
        return is_uncaught(later) and "MPI" not in f"{later['kind']}: {later['text']}"
    if error["origin"] == later["origin"] == "line":
        return later["last"]
    if not is_uncaught(error):
        return is_uncaught(later) and not _is_report(later) and _is_before(error, later)
    if is_uncaught(later):
        return later["kind"] != "Traceback"
    if later["origin"] != "cpp" or later["handled"]:
        return False
    cause = finished(later)["cause"]
    return cause in _NOT_OF_TEARDOWN or (
        cause != "terminated" and later["line"] - error["line"] > TEARDOWN
    )


def _is_before(error, exception):
    """Return whether words that are no exception stand too far above one to be of it.

    A line of a worker's end always does: it is told before its parent's report of it.
    """
    reach = NEAR
    if error["kind"] in _WARNERS or (_CANN.match(error["kind"]) and _is_general(exception)):
        reach = TEARDOWN
    return error["origin"] == "line" or exception["begin"] - error["line"] > reach


def _is_general(error):
    """Return whether an exception of native code does not say why it was raised."""
    return _is_native(error) and finished(error)["cause"] in GENERAL


def _is_report(error):
    """Return whether an exception is torn, or is the report of a loader about its workers."""
    if error["kind"] == "Traceback" or _KILLED_BY.search(error["text"]):
        return True
    return finished(error)["cause"] in _OF_WORKERS


def ends_process(error):
    """Return whether an error looks like the last words of a process."""
    return is_uncaught(error) or error["last"]


def is_uncaught(error):
    """Return whether an error looks like an uncaught exception of the main thread."""
    return error["origin"] == "python" and not error["handled"] and not error["thread"]


def _primary_errors(pool, errors, thread):
    """Return the unhandled errors that may be where a failure began.

    A dead worker is the consequence of a thread's error.
    """
    result = []
    for error, raw in zip(pool, errors):
        if error["handled"] or raw["soft"] or error["grade"] != "primary":
            continue
        if not (thread and error["cause"] == "worker_died"):
            result.append(error)
    return result


def _told_below(error, causes):
    """Return the message below an error that does not say why, or the error itself.

    A call of Ascend's library has a number only, the first of several messages with one code may be
    general, and an exception of C++ may have no words.
    """
    below = causes[causes.index(error) + 1 :]
    told = []
    if error["kind"] == "ACL":
        told = [e for e in below if _CANN.match(e["kind"])]
    elif _CANN.match(error["kind"]) and error["cause"] in GENERAL:
        told = [e for e in below if e["kind"] == error["kind"]]
    elif error["origin"] == "cpp" and not error["text"].strip():
        told = [e for e in below if e["origin"] == "cpp"]
    return next(filter(_says_why, told), error)


def _says_why(error):
    """Return whether an error of CANN says why, and not only which part failed."""
    is_doubtful = error["cause"] == "device_setting" and error["kind"] in _ALSO_BELOW
    return error["cause"] not in GENERAL and not is_doubtful


def _told_beside(error, pool):
    """Return the code of CANN near one that does not say why, or the error itself.

    Where a general code stands beside one that says why, the latter explains both. A lost
    connection does not count: it may be what the general one led to.
    """
    is_of_cann = error["kind"] == "ACL" or _CANN.match(error["kind"])
    if not is_of_cann or error["cause"] not in GENERAL:
        return error
    for other in pool:
        is_told = _says_why(other) and other["grade"] != "secondary"
        is_near = abs((other["line"] or 0) - (error["line"] or 0)) <= TEARDOWN
        if _CANN.match(other["kind"]) and is_told and is_near and not other["handled"]:
            return other
    return error


def _library_line(error, pool, errors):
    """Return the tagged line of a library that says what a vague native exception does not.

    It stands above the exception. That a peer was lost explains an exception without words only.
    The result is None where there is no such line.
    """
    is_torn = error["kind"] == "Traceback"
    begin = errors[pool.index(error)]["begin"]
    is_wordless = is_torn or bool(_SAYS_NOTHING.match(error["text"]))
    is_native = _is_native(error) or (error["origin"] == "cpp" and is_wordless)
    if error["cause"] not in GENERAL or not (is_torn or is_native):
        return None
    for line, raw in zip(pool, errors):
        if line is error:
            return None
        if _is_told(line, raw, begin) and (is_wordless or line["grade"] != "secondary"):
            return line
    return None


def _is_told(line, raw, begin):
    """Return whether a line above an exception is one of a library that says what happened."""
    is_library = raw["soft"] or line["kind"] in _WARNERS or _CANN.match(line["kind"])
    return is_library and line["cause"] not in GENERAL and not _is_far(raw, begin)


def _vagueness(error):
    """Return how little an error says, from 0.

    A data pipeline's failure stands beside its reason. A traceback that was torn has no message.
    """
    if error["kind"] == "Traceback":
        return 2
    if error["cause"] == "worker_died":
        return 1
    if error["cause"] in _VAGUE and _WRAPPER.search(error["text"]):
        return 1
    return 0


def _with_handled_cause(error, pool):
    """Return the error, with its real cause where the code only gave up.

    That is the cause of the errors that the code had handled before.
    """
    if error["kind"] not in _GAVE_UP:
        return error
    handled = [e for e in pool if _is_handled_cause(e)]
    if handled and len({e["cause"] for e in handled}) == 1:
        first = handled[0]
        root = f"{first['kind']}: {first['text']}"
        return dict(
            error,
            text=f"{error['text']} [after {root[:200]}]",
            root=error["root"] or root,
            **{key: first[key] for key in ("cause", "grade", "meaning", "remedy", "source")},
        )
    if not handled and any(_SAMPLE.search(line) for line in error["context"]):
        return dict(error, **entry_of("data_corrupt"))
    return error


def _is_handled_cause(error):
    return error["handled"] and error["grade"] == "primary" and error["cause"] not in _VAGUE
