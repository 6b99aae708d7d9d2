# SPDX-License-Identifier: Apache-2.0
"""Causes in a node or its devices. The package explains the entries.

They concern memory, disk, limits, signals, and reports of ranks after another has gone.
"""

from __future__ import annotations

_SIGNALS = "Paddle 2.6.2, paddle/fluid/platform/init.cc (texts of its signal handler)"
_GANG = "measured on 2 nodes x 2 ranks over gloo (tests/samples/logs/failure_rank3_raises_2x2)"

MACHINE = (
    {
        "cause": "bus_error",
        "grade": "primary",
        "pattern": (
            r"(?<!task )[Bb]us error|BUS error|SIGBUS|Access to an undefined portion of a memory"
            r" object|^(?!PermissionError|NCCL WARN.*No such file)"
            r".*(?:/dev/shm|shared memory(?! group))"
            r"|unable to mmap"
            r"|shm_open.{0,60}failed|insufficient shm\b|shm size is"
        ),
        "meaning": (
            "A page of memory was not to be had: most often shared memory (/dev/shm) ran out, by"
            " which loader workers hand data over."
        ),
        "remedy": (
            "shared memory ran out: raise the size of /dev/shm on this node, or lower worker_num,"
            " or set use_shared_memory to false"
        ),
        "source": _SIGNALS + "; Paddle's DataLoader names /dev/shm in the same case",
    },
    {
        "cause": "disk_full",
        "grade": "primary",
        "pattern": (
            r"No space left on device|Errno 28\b|ENOSPC|Disk quota exceeded|Errno 122\b|write"
            r" failed, errno.? ?=? ?28\b"
        ),
        "meaning": "A file system that the training writes to is full, or the user's quota is.",
        "remedy": (
            "a file system of this node is full (log, output, data or /tmp): `df -h` and `df -i`"
            " show which; free it or prune old runs"
        ),
        "source": "errno 28 and 122 of Linux",
    },
    {
        "cause": "read_only",
        "grade": "primary",
        "pattern": r"Read-only file system|Errno 30\b",
        "meaning": (
            "The training wrote to a file system that is mounted read-only, or became so after a"
            " disk error."
        ),
        "remedy": "a file system of this node is read-only: see `dmesg` and `mount`",
        "source": "errno 30 of Linux",
    },
    {
        "cause": "resource_limit",
        "grade": "primary",
        "pattern": (
            r"Too many open files|Errno 24\b|can't start new thread|Cannot fork|fork: retry|Errno"
            r" 27\b|File too large|SIGXFSZ|SIGXCPU"
            r"|pthread_create failed|std::system_error: Resource temporarily unavailable"
            r"|system limit exceeded on number of"
        ),
        "meaning": (
            "The training ran into a limit of its user or unit: open files, processes, threads,"
            " locked memory, file size or CPU time."
        ),
        "remedy": (
            "raise the limit that the message names (`ulimit -a` in the unit shows them), or use"
            " fewer workers"
        ),
        "source": "errno 24 and 27 of Linux, CPython's threading, help-orterun.txt of Open MPI 4.1",
    },
    {
        # fork() alone answers so there; elsewhere it is a socket or a lock.
        "cause": "resource_limit",
        "pattern": r"BlockingIOError: \[Errno 11\]",
        "where": r"/(?:multiprocessing/popen_\w+|subprocess)\.py$",
        "source": "errno 11 of Linux, fork(2)",
    },
    {
        # A file system in user space, or a network's, that has gone.
        "cause": "data_missing",
        "pattern": r"\[Errno (?:107|116)\]|Stale (?:NFS )?file handle",
        "where": (
            r"/(?:io|checkpoint|save_load|serialization|shutil|genericpath|os|pathlib|\w*data\w*)\.py$"
        ),
        "source": "errno 107 of FUSE, 116 of NFS",
    },
    {
        "cause": "device_out_of_memory",
        "grade": "primary",
        "pattern": (
            r"(?i:out of memory error on (?:GPU|NPU|XPU|\w+:\d))|(?i:CUDA"
            r" (?:error|failure).{0,40}out of memory)|(?:CUDA"
            r"|NPU|HIP) out of memory"
            r"|cudaErrorMemoryAllocation|CUDNN_STATUS_ALLOC_FAILED|CUBLAS_STATUS_ALLOC_FAILED"
            r"|\bEL0004\b|\bEI0011\b|Malloc (?:device )?memory failed(?!, free memory size is less)"
            r"|enforce allocating <= available failed|Memory not enough: (?:current free|alloc) "
            r"|rtMalloc(?!Host).{0,20}fail|more than total mem size"
            r"|(?i:out of memory.{0,40}(?:GPU|NPU) ?\d)|Out of Memory!!! total\["
        ),
        "meaning": "The accelerator's own memory ran out.",
        "remedy": (
            "lower the batch size or the image size, or end what else uses the device (`nvidia-smi`"
            " or `npu-smi info` shows it)"
        ),
        "source": (
            "Paddle 3.3.1, libphi_core.so (Out of memory error on %s:%d); mindspore 2.7.0,"
            " libmindspore_memory_pool.so; PaddlePaddle/PaddleOCR#1505; hiascend.com: EL0004"
        ),
    },
    {
        "cause": "out_of_memory",
        "grade": "primary",
        "pattern": (
            r"MemoryError|NCCL WARN:? Failed to malloc|[Oo]ut of memory|ResourceExhausted"
            r"|std::bad_alloc|Cannot allocate memory|Errno 12\b"
            r"|\d oom[-_]kill event|^Slurm: .*(?:Out Of Memory|OUT_OF_MEMORY)"
            # Ray names it among several possible reasons.
            r"|Unable to allocate .{1,40}for an array|(?<!such as )(?<!SIGKILL by )\bOOM\b"
            r"|DefaultCPUAllocator: can't allocate"
        ),
        "meaning": (
            "The node's memory ran out, or the limit that the training's unit or container has."
        ),
        "remedy": (
            "memory ran out: lower the batch size or the number of loader workers, raise the limit,"
            " or free the node first"
        ),
        "source": (
            "Python, numpy, C++ and Paddle's allocator (ResourceExhaustedError); the kernel's"
            " memory.events"
        ),
    },
    {
        "cause": "nan",
        "grade": "primary",
        "pattern": (
            r"There are NAN or INF|find nan or inf|(?i:\bloss\b.{0,20}\b(?:is|was|became|=)"
            r" ?(?:nan|inf)\b)|(?i:non-finite loss)"
            r"|Tensor .{0,80} contains (?:nan|inf)|(?i:loss (?:value )?(?:is|became) (?:not"
            r" finite|nan or inf))|(?i:loss contains inf or nan)"
        ),
        "meaning": "The training diverged: its loss or a tensor is no finite number any more.",
        "remedy": (
            "the training diverged: lower the learning rate or lengthen the warm-up, and look at"
            " the data of the last steps"
        ),
        "source": "Paddle 2.6.2, FLAGS_check_nan_inf; the suite's own step lines",
    },
)

# Reports of a rank after another has gone, and ways in which a process dies. Those of grade
# `secondary` accuse no rank.
LOST = (
    {
        # The exception of this one has no words, so that a mere line has to do.
        "cause": "connection_lost",
        "tagged": True,
        "pattern": (
            r"Ring (?:ReduceScatter|AllGather) (?:send|wait (?:sending|receiving))\b.*failed"
        ),
        "source": "mindspore 2.7.0, ps/core/collective_ops_impl.cc",
    },
    {
        "cause": "connection_lost",
        "grade": "secondary",
        "pattern": (
            r"gloo::(?!EnforceNotMet)|gloo/transport|(?i:[nr]ccl error)|ncclRemoteError|NCCL WARN"
            r"|Connection(?:Reset|Refused|Aborted)Error|BrokenPipeError|Connection"
            r" (?:reset|closed|aborted|refused|timed out)"
            r"|[Bb]roken pipe|Connection was (?:likely )?closed"
            r"|DistNetworkError|Socket (?:closed|[Tt]imeout)|tcp_store\.|tcp_utils\.|No route to"
            r" host|Network is unreachable|Transport endpoint is not connected"
            r"|MPI communication peer process has unexpectedly disconnected"
            r"|shut down\. This was caused by an exception on one of the ranks"
            r"|remote (?:process|peer) (?:exited|closed|disconnected)|heartbeat"
            r" .{0,40}(?:lost|timed? ?out)|[Hh]eartbeat [Ll]ost"
            r"|(?i:the collective communication is disabled|communication lib(?:rary)?"
            r" .{0,40}(?:closed|lost))"
        ),
        "meaning": "The rank lost contact with another rank, as all do once one has gone.",
        "remedy": (
            "this rank lost its peers: look for the rank that ended first; if none did, look at the"
            " network between the nodes"
        ),
        "source": _GANG,
    },
    {
        "cause": "terminated",
        "grade": "secondary",
        "pattern": (
            r"Termination signal|SIGTERM|^Terminated\b|killed by signal:"
            r" Terminated|KeyboardInterrupt|^Interrupted\b|pipeline was interrupted by user"
            r"|\bFORCE STOP\b"
        ),
        "meaning": "The rank was told to stop, by its launcher, by the unit's stop or by a person.",
        "remedy": (
            "this rank was told to stop, by its launcher or by the unit's stop: look for the rank"
            " that ended first"
        ),
        "source": _SIGNALS,
    },
    {
        "cause": "aborted",
        "grade": "secondary",
        "pattern": (
            r"Process abort signal|SIGABRT|^Aborted\b"
            r"|Signal: Aborted|terminate called:? without an active exception"
        ),
        "meaning": "The rank's native code ended it by abort, as it does when a peer has gone.",
        "remedy": (
            "read the lines above the abort; where they say nothing, it followed another rank: look"
            " for the one that ended first"
        ),
        "source": _GANG,
    },
    {
        "cause": "segfault",
        "grade": "primary",
        "pattern": (
            r"SIGSEGV|[Ss]egmentation fault|Unexpected floating-point exception|SIGILL"
            r"|Illegal instruction|SIGFPE|Erroneous arithmetic operation"
        ),
        "meaning": "Native code of the training crashed.",
        "remedy": (
            "native code crashed: check that all nodes have one Paddle, driver and CPU kind, then"
            " run the rank alone under faulthandler"
        ),
        "source": _SIGNALS,
    },
    {
        "cause": "killed",
        "grade": "primary",
        "pattern": r"^Killed\b|SIGKILL|killed by signal: Killed",
        "meaning": "Something killed the process with SIGKILL, which leaves no message of its own.",
        "remedy": (
            "something killed this process with SIGKILL: most often the kernel, out of memory"
            " (`dmesg`, the cgroup's memory.events), else a person or a scheduler"
        ),
        "source": "signal 9 leaves no message of the process itself",
    },
    {
        "cause": "worker_died",
        "grade": "primary",
        "pattern": (
            r"DataLoader.{0,80}(?:exit(?:ed|s)? unexpectedly|killed by signal)|Blocking queue is"
            r" killed because the data reader raises"
            r"|GeneratorDataset subprocess worker may be killed|Got None from Python object"
            r"|BrokenProcessPool"
        ),
        "meaning": (
            "A worker process that loads data died, and the rank could not go on without it."
        ),
        "remedy": (
            "a data loader worker died: its own message stands above in the same log; else try"
            " worker_num=0 to see it"
        ),
        "source": (
            "Paddle 2.6.2, paddle/io/dataloader/dataloader_iter.py; mindspore 2.7.0,"
            " dataset/engine/datasets_user_defined.py; py_func_op.cc; Python's concurrent.futures"
        ),
    },
)
