# SPDX-License-Identifier: Apache-2.0
"""The catalogue of causes: what the first error of a log means, whether it can be the beginning of a failure, and what helps.

A `primary` cause can be where a failure began. A `secondary` one is what the other ranks say once a rank has gone: it never
accuses anybody as long as a primary one is known. The first entry whose pattern is found in `kind: text` decides.
"""

from __future__ import annotations

import re

_PADDLE_SIGNALS = "Paddle 2.6.2, paddle/fluid/platform/init.cc (texts of its signal handler)"
_GANG = "measured on 2 nodes x 2 ranks over gloo (tests/samples/logs/failure_rank3_raises_2x2)"

# cause, grade, pattern, remedy, source of the rule
_TABLE = (
    (
        "import_error",
        "primary",
        r"ModuleNotFoundError|ImportError|No module named|cannot open shared object file|undefined symbol|version `\w+_[\d.]+' not found",
        "the environment lacks what the code imports: add it to trainyard_suites.<suite>.environment.requirements; the next run brings it",
        "Python's import system and the dynamic loader",
    ),
    (
        "download_failed",
        "primary",
        (
            r"URLError|HTTPSConnectionPool|HTTPConnectionPool|MaxRetryError|Name or service not known|Temporary failure in name resolution"
            r"|Retry limit reached|getaddrinfo failed"
        ),
        (
            "the node tried to fetch a file (pretrained weights or data) and could not: place it on the nodes beforehand, or switch "
            "pretrain_weights off"
        ),
        "most suite configs name their pretrained weights by URL; Paddle removes proxies from its children",
    ),
    (
        "port_in_use",
        "primary",
        (
            r"Address already in use|EADDRINUSE|Bind network on \S+ failed|ERROR on binding|unable to listen socket"
            r"|listen socket failed|Fail to listen"
        ),
        "something else listens on the start port of this node (`ss -ltnp` names it): end it or choose another start port",
        "Paddle 2.6.2, paddle/phi/core/distributed/store/tcp_utils.cc; only rank 0's start port is listened on",
    ),
    (
        "loopback_address",
        "primary",
        r"(?:connect|bind|listen)\b.{0,40}\b127\.0\.[01]\.1\b|\[127\.0\.1\.1\]",
        (
            "gloo resolved this node's host name to loopback: take the host name off the 127.0.1.1 line of /etc/hosts, "
            "or let GLOO_SOCKET_IFNAME name the interface of the fabric"
        ),
        "measured: with `127.0.1.1 <host name>` in /etc/hosts gloo binds loopback even when the launcher has the right address",
    ),
    (
        "bad_interface",
        "primary",
        r"Unable to find (?:interface|address) for|No interface found|Bootstrap : no socket interface found",
        "GLOO_SOCKET_IFNAME or NCCL_SOCKET_IFNAME names an interface this node lacks: `ip -brief address` shows the right one",
        "gloo/transport/tcp/device.cc and NCCL's bootstrap",
    ),
    (
        "disk_full",
        "primary",
        r"No space left on device|Errno 28\b|ENOSPC|Disk quota exceeded|Errno 122\b",
        "a file system of this node is full (log, output, data or /tmp): `df -h` and `df -i` show which; free it or prune old runs",
        "errno 28 and 122 of Linux",
    ),
    (
        "read_only",
        "primary",
        r"Read-only file system|Errno 30\b",
        "a file system of this node is read-only: see `dmesg` and `mount`",
        "errno 30 of Linux",
    ),
    (
        "bus_error",
        "primary",
        r"[Bb]us error|BUS error|SIGBUS|Access to an undefined portion of a memory object|/dev/shm|shared memory|unable to mmap",
        "shared memory ran out: raise the size of /dev/shm on this node, or lower worker_num, or set use_shared_memory to false",
        _PADDLE_SIGNALS + "; Paddle's DataLoader names /dev/shm in the same case",
    ),
    (
        "out_of_memory",
        "primary",
        (
            r"MemoryError|[Oo]ut of memory|ResourceExhausted|std::bad_alloc|Cannot allocate memory|Errno 12\b"
            r"|Unable to allocate .{1,40}for an array"
            r"|killed by signal: Killed|\bOOM\b"
        ),
        "memory ran out: lower the batch size or the number of loader workers, or free the device or the node first",
        "Python, numpy, C++ and Paddle's allocator (ResourceExhaustedError)",
    ),
    (
        "nan",
        "primary",
        (
            r"There are NAN or INF|(?i:\bloss\b.{0,20}\b(?:is|was|became|=) ?(?:nan|inf)\b)|(?i:non-finite loss)"
            r"|Tensor .{0,80} contains (?:nan|inf)"
        ),
        "the training diverged: lower the learning rate or lengthen the warm-up, and look at the data of the last steps",
        "Paddle 2.6.2, FLAGS_check_nan_inf",
    ),
    (
        "checkpoint_damaged",
        "primary",
        r"UnpicklingError|pickle data was truncated|Ran out of input|invalid load key",
        "a checkpoint or weight file is damaged or cut short on this node: compare its digest with another node's and copy it again",
        "Python's pickle, which Paddle's .pdparams and .pdopt are",
    ),
    (
        "permission",
        "primary",
        r"PermissionError|Permission denied|Errno 13\b",
        "the training user may not use the named path on this node",
        "errno 13 of Linux",
    ),
    (
        "data_missing",
        "primary",
        r"FileNotFoundError|NotADirectoryError|No such file or directory|can't open file|/[\w./-]{1,200} (?:does not exist|is not a file)",
        "the named path is not on this node: synchronise code and data again, or mend the path in the job",
        "errno 2 of Linux",
    ),
    (
        "bad_argument",
        "primary",
        r"unrecognized arguments|the following arguments are required|invalid choice|^usage error",
        "the training script refused its command line: compare the plan's argv with the script's --help",
        "Python's argparse (exit code 2)",
    ),
    (
        "connection_lost",
        "secondary",
        (
            r"gloo::(?!EnforceNotMet)|gloo/transport|(?i:nccl error)|ncclRemoteError|ncclSystemError|ncclInternalError|NCCL WARN"
            r"|NCCL.{0,40}[Tt]imeout"
            r"|Connection(?:Reset|Refused|Aborted)Error|BrokenPipeError|Connection (?:reset|closed|aborted|refused|timed out)"
            r"|[Bb]roken pipe"
            r"|Socket (?:closed|[Tt]imeout)|[Ww]ait timeout for key|tcp_store\.|tcp_utils\.|No route to host|Network is unreachable"
            r"|remote (?:process|peer) (?:exited|closed|disconnected)|heartbeat .{0,40}(?:lost|timed? ?out)"
        ),
        "this rank lost its peers: look for the rank that ended first; if none did, look at the network between the nodes",
        _GANG,
    ),
    (
        "terminated",
        "secondary",
        r"Termination signal|SIGTERM|^Terminated\b|killed by signal: Terminated|KeyboardInterrupt|^Interrupted\b",
        "this rank was told to stop, by its launcher or by the unit's stop: look for the rank that ended first",
        _PADDLE_SIGNALS,
    ),
    (
        "aborted",
        "secondary",
        r"Process abort signal|SIGABRT|^Aborted\b|terminate called without an active exception",
        "this rank aborted, as ranks do when a peer has gone: look for the rank that ended first",
        _GANG,
    ),
    (
        "segfault",
        "primary",
        r"SIGSEGV|[Ss]egmentation fault|SIGILL|Illegal instruction|SIGFPE|Erroneous arithmetic operation",
        "native code crashed: check that all nodes have one Paddle, driver and CPU kind, then run the rank alone under faulthandler",
        _PADDLE_SIGNALS,
    ),
    (
        "device_error",
        "primary",
        r"CUDA error|CUDNN error|CUBLAS error|cudaError|\bXid\b",
        "the accelerator failed: see `nvidia-smi -q` and `dmesg` for Xid lines on this node",
        "Paddle's ExternalError",
    ),
    (
        "killed",
        "primary",
        r"^Killed\b|SIGKILL",
        (
            "something killed this process with SIGKILL: most often the kernel for want of memory (`dmesg`, the cgroup's "
            "memory.events), else a person or a scheduler"
        ),
        "signal 9 leaves no message of the process itself",
    ),
    (
        "worker_died",
        "primary",
        r"DataLoader.{0,80}(?:exit(?:ed|s)? unexpectedly|killed by signal)|Blocking queue is killed because the data reader raises",
        "a data loader worker died: its own message stands above in the same log; else try worker_num=0 to see it",
        "Paddle 2.6.2, paddle/io/dataloader/dataloader_iter.py",
    ),
)

CATALOGUE = tuple(dict(zip(("cause", "grade", "pattern", "remedy", "source"), row)) for row in _TABLE)

# What is left by where it came from, when no pattern fits.
FALLBACK = {
    "python": {
        "cause": "python_exception",
        "grade": "primary",
        "remedy": "mend what the message names, in the code, the job or the data; the context in the log shows the line of code",
        "source": "Python's traceback",
    },
    "cpp": {
        "cause": "cpp_exception",
        "grade": "primary",
        "remedy": "native code stopped with this message; the lines above it in the log show the operator",
        "source": "the C++ runtime and Paddle's error summary",
    },
    "line": {"cause": "unknown", "grade": "primary", "remedy": "read the log at the named line", "source": "none"},
}

# What no log says: an end without a message.
SILENT = {
    "silent_exit": {
        "cause": "silent_exit",
        "grade": "primary",
        "remedy": "the process ended by itself and said nothing: see the end of its log, and look for sys.exit or os._exit in the code",
        "source": "exit code without a message",
    },
    "silent_end": {
        "cause": "silent_end",
        "grade": "primary",
        "remedy": "the process went without a message, as after SIGKILL: look for the out-of-memory killer (`dmesg`) or who killed it",
        "source": "a log that stops, and peers that lost contact with this rank",
    },
    "launcher_failed": {
        "cause": "launcher_failed",
        "grade": "primary",
        "remedy": "no rank began it, the launcher ended by itself or was killed: read its log and the unit's journal on this node",
        "source": "exit.json of the node",
    },
}

_COMPILED = tuple((re.compile(entry["pattern"]), entry) for entry in CATALOGUE)


def classify(kind, text, origin="line"):
    """The catalogue's entry for an error: {cause, grade, remedy, source}. Where no pattern fits, `origin` (python, cpp, line) decides."""
    whole = f"{kind}: {text}" if text else kind
    for pattern, entry in _COMPILED:
        if pattern.search(whole):
            return {key: entry[key] for key in ("cause", "grade", "remedy", "source")}
    return dict(FALLBACK.get(origin, FALLBACK["line"]))


def entry_of(cause):
    """The entry of a cause by its name, for what a signal or systemd tells and no log does."""
    for entry in CATALOGUE:
        if entry["cause"] == cause:
            return {key: entry[key] for key in ("cause", "grade", "remedy", "source")}
    return dict(SILENT.get(cause) or FALLBACK["line"])
