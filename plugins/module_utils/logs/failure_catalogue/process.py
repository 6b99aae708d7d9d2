# SPDX-License-Identifier: Apache-2.0
"""Causes in a training's own code, environment, settings and data.

Causes that no log shows are here, too. The package explains the entries.
"""

from __future__ import annotations

_NUMPY = (
    r"numpy\.\w+ size changed|module compiled against (?:ABI|API) version|compiled using NumPy"
    r" 1|numpy\.core\.multiarray failed to import"
)
_IMAGES = r"(?:^|/)(?:\w*data\w*|transforms?|imaug|operators?|reader|loader)(?:/|\.py|_)"

PROCESS = (
    {
        "cause": "version_mismatch",
        "grade": "primary",
        "pattern": (
            _NUMPY
            + r"|_ARRAY_API not found|module 'numpy' has no attribute|was removed in the NumPy 2"
            r"|version `\w+_[\d.]+' not found|undefined symbol"
            r"|Descriptors cannot (?:not )?be created directly|symbol lookup error|relocation error"
            r"|not defined in file \S+ with link time reference"
            r"|CUDA driver version is insufficient|forward compatibility was attempted|no kernel"
            r" image is available"
            r"|device kernel image is invalid"
            r"|(?i:\b(?:version|package) \S+ (?:does|do) not match)|CANN version"
            r" mismatch|unsupported pickle protocol"
            r"|dynamic library \(lib\S+\) that Paddle depends on is not configured|cuda version \S+"
            r" does(?: not|n't) match"
            r"|\w is incompatible with numpy|PY_SSIZE_T_CLEAN macro must be defined"
            r"|\bE30006\b|Failed to verify the OPP|Failed to find function (?:Hccl|acl|rt)\w+"
            r"|Cannot use [GN]PU because you have installed CPU version"
        ),
        "meaning": (
            "Two parts of this node's software do not fit: numpy, the C++ runtime, Paddle or"
            " MindSpore, CUDA, CANN or the driver."
        ),
        "remedy": (
            "bring the named part to the version that the other was built for: pin it in the"
            " suite's environment, or update the driver"
        ),
        "source": (
            "numpy's ABI checks, the dynamic loader, CUDA's error texts, mindspore-ai/mindspore#89,"
            " PaddlePaddle/Paddle-Lite#10514"
        ),
    },
    {
        "cause": "import_error",
        "grade": "primary",
        "pattern": (
            r"ModuleNotFoundError|PackageNotFoundError|ImportError"
            r"|No module named|cannot open shared object file"
            r"|failed to get the Python codec of the filesystem encoding"
        ),
        "meaning": "The code imports a module or library that the environment of this node lacks.",
        "remedy": (
            "the environment lacks what the code imports: add it to "
            "trainyard_suites.<suite>.environment.requirements; the next run brings it"
        ),
        "source": "Python's import system and the dynamic loader",
    },
    {
        "cause": "download_failed",
        "grade": "primary",
        "pattern": (
            r"URLError|HTTPSConnectionPool|HTTPConnectionPool|MaxRetryError|Name or service not"
            r" known|Temporary failure in name resolution"
            r"|LocalEntryNotFoundError|OfflineModeIsEnabled|[Cc]ouldn't connect to 'https?://"
            r"|Retry limit reached|getaddrinfo failed|Downloading from \S+ failed"
        ),
        "meaning": (
            "The training tried to fetch weights or data from the network, and the node cannot"
            " reach it."
        ),
        "remedy": (
            "the node tried to fetch a file (pretrained weights or data) and could not: place it on"
            " the nodes beforehand, or switch pretrain_weights off"
        ),
        "source": (
            "most suite configs name their pretrained weights by URL; Paddle removes proxies from"
            " its children"
        ),
    },
    {
        "cause": "checkpoint_damaged",
        "grade": "primary",
        "pattern": (
            r"UnpicklingError|pickle data was truncated|Ran out of input|invalid load"
            r" key|(?i:fail(?:ed|s) to (?:read|parse|load) the checkpoint)"
            r"|checkpoint file:? \S+.{0,40}(?:damaged|corrupted|incomplete|failed to be"
            r" parsed)|'load_checkpoint', the crc check"
            r"|protobuf\.message\.DecodeError"
            r"|ValueError: Error parsing message$|paddle\.load` can not parse the file"
        ),
        "meaning": "A checkpoint or weight file cannot be read: it is damaged or was cut short.",
        "remedy": (
            "a checkpoint or weight file is damaged or cut short on this node: compare its digest"
            " with another node's and copy it again"
        ),
        "source": (
            "Python's pickle, which Paddle's .pdparams and .pdopt are; paddle/framework/io.py;"
            " mindspore/train/serialization.py"
        ),
    },
    {
        "cause": "data_corrupt",
        "grade": "primary",
        "pattern": (
            r"JSONDecodeError|cannot identify image file|image file is truncated|broken data"
            r" stream|Truncated File Read"
            r"|UnidentifiedImageError"
            r"|BadZipFile|zlib\.error|Compressed file ended"
            r" before|tarfile\.ReadError|ElementTree\.ParseError"
            r"|lmdb\.CorruptedError|MDB_CORRUPTED"
            r"|!_?\w{2,6}\.empty\(\)|(?i:decode.{0,40}image.{0,40}failed|imdecode failed|failed to"
            r" decode"
            r"|image decode failed|load image failed)"
            r"|(?i:the image (?:may be|is) broken)|not the mnist (?:image|label) file"
            r"|[Cc]an'?t read (?:the )?(?i:the )?image|\(truncated file: eof"
            r"|MindRecordOp Count total rows failed"
            r"|file is not a database|database disk image is malformed"
        ),
        "meaning": (
            "A data file is there but cannot be read: an image, an annotation or an archive is"
            " damaged or empty."
        ),
        "remedy": (
            "repair or leave out the named file (the lines above show which); compare its digest"
            " with another node's, then sync again"
        ),
        "source": "Pillow, OpenCV, Python's json, zipfile, zlib and xml; mindspore.dataset.vision",
    },
    {
        "cause": "data_corrupt",
        "grade": "primary",
        "pattern": (
            r"'(?:NoneType|bytes)' object (?:has no attribute '(?:shape|copy|ndim|astype)'|is not"
            r" subscriptable)"
        ),
        "where": _IMAGES,
        "meaning": (
            "A data file is there but cannot be read: an image, an annotation or an archive is"
            " damaged or empty."
        ),
        "remedy": (
            "repair or leave out the named file (the lines above show which); compare its digest"
            " with another node's, then sync again"
        ),
        "source": (
            "cv2.imread and cv2.imdecode return None instead of failing;"
            " tests/samples/logs/paddle262_failure_badimage_2x1"
        ),
    },
    {
        "cause": "permission",
        "grade": "primary",
        "pattern": (
            r"PermissionError|Permission denied|Errno 13\b|Operation not permitted|Errno 1\]"
        ),
        "meaning": "The training user may not read, write or run what it needs on this node.",
        "remedy": "the training user may not use the named path on this node",
        "source": "errno 13 and 1 of Linux",
    },
    {
        "cause": "data_missing",
        "grade": "primary",
        "pattern": (
            r"FileNotFoundError|NotADirectoryError|No such file or directory|can't open file"
            r"|/[\w./-]{1,200} (?:does not exist|is not a file)"
            r"|file:? \S+ does not exist|unable to find the specified executable file|could not"
            r" access\s+or execute an executable"
            r"|[Dd]ataset directory .{0,200}not exist|not found any (?:coco|voc) record"
            r"|AssertionError: invalid file ?\[|There is no valid data matching the dataset API"
        ),
        "meaning": "A file or directory that the training needs is not on this node.",
        "remedy": (
            "the named path is not on this node: synchronise code and data again, or correct the"
            " path in the job"
        ),
        "source": (
            "errno 2 of Linux, Open MPI 4.1 (help-orterun.txt); PaddlePaddle/PaddleDetection#6972,"
            " models#3520; mindspore-ai/mindspore#48"
        ),
    },
    {
        "cause": "bad_argument",
        "grade": "primary",
        "pattern": (
            r"unrecognized arguments|the following arguments are required|invalid choice|^usage"
            r" error|please check your running command"
            r"|Invalid option .{1,200} is not in config|Could not override '"
            r"|^Key '\S+' is not in struct"
        ),
        "meaning": "The training script or the launcher does not know a word of its command line.",
        "remedy": (
            "the training script refused its command line: compare the plan's argv with the"
            " script's --help"
        ),
        "source": (
            "Python's argparse (exit code 2); PaddleOCR, tools/program.py (merge_config); MindOCR,"
            " tools/arg_parser.py"
        ),
    },
    {
        "cause": "bad_config",
        "grade": "primary",
        "pattern": (
            r"yaml\.(?:scanner|parser|constructor|reader|composer)\.\w+Error|ScannerError"
            r"|could not find the config|only support yaml files|configparser\.\w*Error"
        ),
        "meaning": "The training's configuration file cannot be read.",
        "remedy": "fix the configuration file at the line that the message names",
        "source": "PyYAML, which all four suites read their configs with",
    },
)

# Entries by origin, for an error that no pattern fits.
FALLBACK = {
    "python": {
        "cause": "python_exception",
        "grade": "primary",
        "meaning": "The training's Python code raised an exception that nothing caught.",
        "remedy": (
            "fix what the message names, in the code, the job or the data; the context in the log"
            " shows the line of code"
        ),
        "source": "Python's traceback",
    },
    "cpp": {
        "cause": "cpp_exception",
        "grade": "primary",
        "meaning": "Native code below Python stopped with an error.",
        "remedy": (
            "native code stopped with this message; the lines above it in the log show the operator"
        ),
        "source": "the C++ runtime and Paddle's error summary",
    },
    "line": {
        "cause": "unknown",
        "grade": "primary",
        "meaning": (
            "The evidence does not tell the cause; the candidates are listed with what speaks for"
            " each."
        ),
        "remedy": "read the log at the named line",
        "source": "none",
    },
}

# Ends of an attempt that no log shows, but nodes, systemd and the collected files do.
_OBSERVED = (
    (
        "ended_early",
        "The process ended with exit code 0 before the training was complete.",
        (
            "look in the code for sys.exit, os._exit or a return in the training loop that one"
            " rank alone takes, and for data of unequal length between the ranks"
        ),
        "exit code 0, and peers that lost contact with this rank after it",
    ),
    (
        "silent_exit",
        "The process ended with an exit code and without a message.",
        (
            "the process ended without a message: see the end of its log, and look for"
            " sys.exit or os._exit in the code"
        ),
        "exit code without a message",
    ),
    (
        "silent_end",
        "The process ended without a message, as after SIGKILL, and its exit was not seen.",
        (
            "the process ended without a message, as after SIGKILL: look for the out-of-memory"
            " killer (`dmesg`) or who killed it"
        ),
        "a log that stops, and peers that lost contact with this rank",
    ),
    (
        "sigterm",
        "The rank received SIGTERM from outside the product before anything else had failed.",
        (
            "look for who stops processes on this node: an operator, a scheduler, a shutdown"
            " (`journalctl --since`, `last -x`)"
        ),
        "a SIGTERM as the first end on its node, while no stop of ours was under way",
    ),
    (
        "launcher_failed",
        "The launcher itself failed or was killed; no rank began it.",
        (
            "no rank failed first, the launcher ended or was killed: read its log and the"
            " unit's journal on this node"
        ),
        "exit.json of the node",
    ),
    (
        "hang",
        (
            "The training gave no sign of life for longer than its phase may take: no step,"
            " evaluation or checkpoint."
        ),
        (
            "read the ranks' stacks and sockets that were kept: the rank that does not wait where"
            " the others do is where to look; if it was only slow, raise that phase under"
            " `watchdog` in the job"
        ),
        (
            "stall.json of the nodes: the suite's own log lines against the plan's budgets;"
            " state.json and the stacks beside it"
        ),
    ),
    (
        "device_memory_full",
        (
            "The training hung while a device that it uses had no free memory, for which the"
            " allocator or the collective library waits in silence."
        ),
        (
            "take a smaller batch or image size, see what else uses the device (`nvidia-smi`,"
            " `npu-smi info`), or move what only that rank does to another one"
        ),
        (
            "nvidia-smi or npu-smi at the hang (devices.json); PaddleDetection#6857,"
            " PaddlePaddle/Paddle#45745"
        ),
    ),
    (
        "node_lost",
        (
            "A node vanished without a word, was frozen, cut off or started anew; its neighbour"
            " noticed it and ended the training."
        ),
        (
            "look at the node's power, its console and the network to it (`last -x`, `journalctl -b"
            " -1`); resume goes on from the last checkpoint"
        ),
        "loss.json of its neighbour: no word for 15 s, and nobody at its SSH port twice",
    ),
    (
        "unreachable",
        "A node did not answer, and what the others know shows no cause of their own.",
        (
            "bring the node back or take it out of the site, then collect again: its logs may hold"
            " the cause"
        ),
        "the nodes that could not be asked",
    ),
    (
        "no_end_recorded",
        (
            "A node has no record of the end: its unit still runs, or the node was restarted"
            " meanwhile."
        ),
        "look at the unit and the uptime of the node, then collect again",
        "a missing exit.json",
    ),
    (
        "rank_missing",
        "A launcher ended well without ever starting one of the planned ranks.",
        "compare the launcher's own view of the cluster (its console) with the plan",
        "the plan's ranks against the processes that were seen",
    ),
    (
        "no_step",
        "Every rank ended well, but none trained: no step, no evaluation, no checkpoint.",
        "read rank 0's log: is there enough data for one batch of every rank?",
        "measured: PaddleOCR ends so with too few images for one batch",
    ),
    (
        "endpoints",
        "The launcher gave the ranks other addresses or ports than were planned.",
        (
            "end what changes the launcher's start port or addresses (environment, proxies), then"
            " start again"
        ),
        "default.<pod>.log and the children's environment, read back",
    ),
    (
        "stopped_by_peer",
        (
            "A node stopped the training because it failed there, and that node's own reason is not"
            " known."
        ),
        "look at the node that is named as the one that stopped the others",
        "stop.json of the nodes",
    ),
    (
        "stopped_by_user",
        "A person stopped the training.",
        "none is needed; the same command or resume starts it again",
        "stop.json of the nodes",
    ),
)
OBSERVED = {
    row[0]: dict(zip(("cause", "meaning", "remedy", "source"), row), grade="primary")
    for row in _OBSERVED
}
