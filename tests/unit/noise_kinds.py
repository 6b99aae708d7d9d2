# SPDX-License-Identifier: Apache-2.0
"""Errors that a training handles, as Python, its libraries and the suites print them.

KINDS has the text of each kind. {record} stands for the beginning of a record in the suite's own
log format. The rules of the verdict were written from the kinds of FIRST. Those of LATER came after
them, from what the sources beside them print, and those of BLIND last.
"""

from __future__ import annotations

from pathlib import Path

import yaml

FILE = Path(__file__).resolve().parents[1] / "corpus" / "noise.yml"
SITE = "/home/trainer/.trainyard/env/35fad65f502f8a28/lib/python3.11/site-packages"
PYTHON = "/usr/lib/python3.11"
TRACEBACK = "Traceback (most recent call last):"
FRAME = f'  File "{SITE}/ppdata/cache.py", line 41, in load\n    return read(path)\n'
# What a handler at the module level of the script or of a library prints.
SCRIPT = '  File "/home/trainer/code/tools/train.py", line 12, in <module>\n    import apex\n'
LIBRARY = f'  File "{SITE}/ppdata/__init__.py", line 3, in <module>\n    import apex\n'
DURING = "\nDuring handling of the above exception, another exception occurred:\n\n"
CAUSE = "\nThe above exception was the direct cause of the following exception:\n\n"


def caught(final: str, frame: str = FRAME) -> str:
    """A traceback as traceback.print_exc() prints it."""
    return f"{TRACEBACK}\n{frame}{final}\n"


def frame(path: str, line: int, function: str, code: str) -> str:
    """One frame of a traceback."""
    return f'  File "{path}", line {line}, in {function}\n    {code}\n'


FIRST = {
    "print_exc": caught("KeyError: 'cached_size'"),
    "logger_exception": "{record}the cache is skipped\n" + caught("KeyError: 'cached_size'"),
    "destructor": (
        "Exception ignored in: <function Pool.__del__ at 0x7f8a1c0d5e40>\n"
        + caught("AttributeError: 'NoneType' object has no attribute 'close'")
    ),
    "thread": (
        "Exception in thread Thread-7 (report):\n"
        + caught("ConnectionRefusedError: [Errno 111] Connection refused")
    ),
    "loader_restarted": (
        "Process Process-3:\n"
        + caught("OSError: [Errno 24] Too many open files")
        + "ERROR: Unexpected BUS error encountered in DataLoader worker.\n"
        + "loader worker 3 was started again\n"
    ),
    "chain": (caught("KeyError: 'size'") + DURING + caught("ValueError: no size in the header")),
    "cause": (
        caught("FileNotFoundError: [Errno 2] No such file or directory: '/tmp/index.pkl'")
        + CAUSE
        + caught("RuntimeError: the index has to be built")
    ),
    "warning": (
        f"{SITE}/ppdata/cache.py:41: UserWarning: RuntimeError: the cache is off: No space left\n"
        "  warnings.warn(\n"
    ),
    "optional_import": caught("ModuleNotFoundError: No module named 'apex'"),
    "script_import": caught("ModuleNotFoundError: No module named 'apex'", SCRIPT),
    "library_import": caught("ModuleNotFoundError: No module named 'apex'", LIBRARY),
    "main_retried": caught("KeyError: 'cached_size'", SCRIPT + FRAME),
    "import_line": "Warning: import apex failed: No module named 'apex', using plain layers\n",
    "download_retried": (
        "WARNING:urllib3.connectionpool:Retrying (Retry(total=2, connect=None)) after connection"
        " broken by 'NewConnectionError: Failed to establish a new connection'\n"
        + caught("urllib.error.URLError: <urlopen error [Errno 110] Connection timed out>")
    ),
    "memory_probe": caught("MemoryError: Unable to allocate 512. GiB for an array"),
    "error_line": "[ERROR] libpng: sRGB: out of memory for a chunk, ignored\n",
    "nccl_warn": (
        "node1:2131:2140 [0] misc/ibvwrap.cc:63 NCCL WARN Failed to open libibverbs.so[.1]\n"
    ),
    "cache_pickle": caught("_pickle.UnpicklingError: pickle data was truncated"),
    "cache_json": caught("json.decoder.JSONDecodeError: Expecting value: line 1 column 1 (char 0)"),
}

POOL = frame(f"{PYTHON}/multiprocessing/process.py", 314, "_bootstrap", "self.run()")
RESIZE = (
    "cv2.error: OpenCV(4.6.0) /io/opencv/modules/imgproc/src/resize.cpp:4052: error:"
    " (-215:Assertion failed) !ssize.empty() in function 'resize'\n"
)
OUT_OF_MEMORY = (
    "ResourceExhaustedError: \n\nOut of memory error on GPU 0. Cannot allocate 1.500000GB memory on"
    " GPU 0, 15.781677GB memory has been allocated and available memory is only 512.000000MB.\n\n"
    "Please check whether there is any other process using GPU 0.\n"
    "1. If yes, please stop them, or start PaddlePaddle on another GPU.\n"
    "2. If no, please decrease the batch size of your model. \n"
    " (at /paddle/paddle/fluid/memory/allocation/cuda_allocator.cc:95)\n"
)
SUMMARY = (
    "\n\n--------------------------------------\nC++ Traceback (most recent call last):\n"
    "--------------------------------------\n"
    "0   paddle::memory::allocation::CUDAAllocator::AllocateImpl(unsigned long)\n\n"
    "----------------------\nError Message Summary:\n----------------------\n"
)
URLLIB3 = f"{SITE}/urllib3/connectionpool.py"
POOL_ERROR = (
    "HTTPSConnectionPool(host='bj.bcebos.com', port=443): Max retries exceeded with url:"
    " /v1/weights.pdparams (Caused by NewConnectionError('<urllib3.connection.HTTPSConnection"
    " object at 0x7f2a>: Failed to establish a new connection: [Errno 101] Network is"
    " unreachable'))"
)

LATER = {
    # Python itself: threads, processes, asyncio, destructors, atexit, logging, groups, faulthandler
    "pin_memory_thread": (
        "Exception in thread Thread-3 (_pin_memory_loop):\n"
        + TRACEBACK
        + "\n"
        + frame(f"{PYTHON}/threading.py", 1045, "_bootstrap_inner", "self.run()")
        + frame(f"{SITE}/ppdata/pin.py", 28, "_pin_memory_loop", "do_one_step()")
        + "EOFError\n"
    ),
    "asyncio_task": (
        "Task exception was never retrieved\n"
        "future: <Task finished name='Task-4' coro=<push() done, defined at /home/trainer/code/"
        "report.py:7> exception=ConnectionResetError(104, 'Connection reset by peer')>\n"
        + caught(
            "ConnectionResetError: [Errno 104] Connection reset by peer",
            frame("/home/trainer/code/report.py", 9, "push", "await writer.drain()"),
        )
    ),
    "asyncio_callback": (
        "ERROR:asyncio:Exception in callback report.<locals>.done(<Future pending>)\n"
        "handle: <Handle report.<locals>.done(<Future pending>)>\n"
        + caught(
            "asyncio.exceptions.InvalidStateError: invalid state",
            frame(f"{PYTHON}/asyncio/events.py", 80, "_run", "self._context.run(self._callback)"),
        )
    ),
    "fork_process": (
        "Process ForkProcess-2:\n"
        + caught("RuntimeError: decoder gave up", POOL + FRAME)
        + "worker 2 was started again\n"
    ),
    "spawn_worker_interrupted": (
        "Process SpawnPoolWorker-3:\n" + caught("KeyboardInterrupt", POOL + FRAME)
    ),
    "remote_traceback": (
        'concurrent.futures.process._RemoteTraceback: \n"""\n'
        + caught("ValueError: bad magic number")
        + '"""\n'
        + CAUSE
        + caught("ValueError: bad magic number", SCRIPT + FRAME)
    ),
    "finalizer": (
        "Exception ignored in: <finalize object at 0x7f1c; dead>\n"
        + caught("FileNotFoundError: [Errno 2] No such file or directory: '/tmp/pymp-k3x'")
    ),
    "broken_stdout": (
        "Exception ignored in: <_io.TextIOWrapper name='<stdout>' mode='w' encoding='utf-8'>\n"
        "BrokenPipeError: [Errno 32] Broken pipe\n"
    ),
    "logging_error": (
        "--- Logging error ---\n"
        + caught(
            "TypeError: not all arguments converted during string formatting",
            frame(f"{PYTHON}/logging/__init__.py", 1110, "emit", "msg = self.format(record)"),
        )
        + 'Call stack:\n  File "/home/trainer/code/tools/train.py", line 80, in <module>\n'
        "    main()\nMessage: 'speed'\nArguments: (17.5,)\n"
    ),
    "logging_disk_full": (
        "--- Logging error ---\n"
        + caught(
            "OSError: [Errno 28] No space left on device",
            frame(f"{PYTHON}/logging/__init__.py", 1086, "flush", "self.stream.flush()"),
        )
        + 'Call stack:\n  File "/home/trainer/code/tools/train.py", line 80, in <module>\n'
        "    main()\nMessage: 'epoch done'\nArguments: ()\n"
    ),
    "exception_group": (
        "  + Exception Group Traceback (most recent call last):\n"
        '  |   File "/home/trainer/code/report.py", line 21, in fetch_all\n'
        "  |     async with asyncio.TaskGroup() as group:\n"
        "  | ExceptionGroup: unhandled errors in a TaskGroup (2 sub-exceptions)\n"
        "  +-+---------------- 1 ----------------\n"
        "    | Traceback (most recent call last):\n"
        '    |   File "/home/trainer/code/report.py", line 12, in fetch\n'
        "    |     raise ValueError(url)\n"
        "    | ValueError: https://mirror.example/a\n"
        "    +---------------- 2 ----------------\n"
        "    | Traceback (most recent call last):\n"
        '    |   File "/home/trainer/code/report.py", line 14, in fetch\n'
        "    |     raise OSError(28, os.strerror(28))\n"
        "    | OSError: [Errno 28] No space left on device\n"
        "    +------------------------------------\n"
    ),
    "faulthandler_timer": (
        "Timeout (0:00:30)!\n"
        "Thread 0x00007f3a1c7fe640 (most recent call first):\n"
        f'  File "{PYTHON}/threading.py", line 327 in wait\n'
        f'  File "{PYTHON}/queue.py", line 180 in get\n'
        "\n"
        "Thread 0x00007f3a7d1c4740 (most recent call first):\n"
        '  File "/home/trainer/code/tools/train.py", line 55 in train\n'
        '  File "/home/trainer/code/tools/train.py", line 80 in <module>\n'
    ),
    "stack_on_signal": (
        "Current thread 0x00007f3a7d1c4740 (most recent call first):\n"
        '  File "/home/trainer/code/tools/train.py", line 55 in train\n'
        '  File "/home/trainer/code/tools/train.py", line 80 in <module>\n'
    ),
    "syntax_of_plugin": caught(
        '  File "/home/trainer/plugins/extra.py", line 3\n    def hook(:\n             ^\n'
        "SyntaxError: invalid syntax"
    ),
    "group_of_notes": caught("ValueError: bad record\nread from shard 12\nat offset 4096", FRAME),
    "warnings_error": (
        "/home/trainer/code/ops.py:14: RuntimeWarning: overflow encountered in exp\n"
        "  return 1 / (1 + np.exp(-x))\n"
        f"{SITE}/numpy/core/fromnumeric.py:3432: RuntimeWarning: Mean of empty slice.\n"
        "  return _methods._mean(a, axis=axis, dtype=dtype,\n"
    ),
    "leaked_semaphores": (
        f"{PYTHON}/multiprocessing/resource_tracker.py:254: UserWarning: resource_tracker: There"
        " appear to be 6 leaked semaphore objects to clean up at shutdown\n"
        "  warnings.warn('resource_tracker: There appear to be %d '\n"
    ),
    "helper_failed": caught(
        "subprocess.CalledProcessError: Command '['nvidia-smi', '-q']' returned non-zero exit"
        " status 9.",
        frame(f"{PYTHON}/subprocess.py", 571, "run", "raise CalledProcessError(retcode)"),
    ),
    "helper_killed": "/bin/bash: line 1:  2207 Killed                  ffmpeg -i a.mp4 b.mp4\n",
    "helper_crashed": "Segmentation fault (core dumped)\nffmpeg gave up on a.mp4, next file\n",
    "helper_usage": (
        "usage: gdown [-h] [-V] [-O OUTPUT] url\ngdown: error: unrecognized arguments: --fuzzy\n"
    ),
    "helper_module": "/usr/bin/python3: No module named pip\n",
    # libraries
    "requests_chain": (
        TRACEBACK
        + "\n"
        + frame(f"{SITE}/urllib3/connection.py", 198, "_new_conn", "sock = create_connection(")
        + "OSError: [Errno 101] Network is unreachable\n"
        + CAUSE
        + TRACEBACK
        + "\n"
        + frame(URLLIB3, 787, "urlopen", "response = self._make_request(")
        + "urllib3.exceptions.NewConnectionError: <urllib3.connection.HTTPSConnection object at"
        " 0x7f2a>: Failed to establish a new connection: [Errno 101] Network is unreachable\n"
        + DURING
        + TRACEBACK
        + "\n"
        + frame(f"{SITE}/ppdata/fetch.py", 30, "fetch", "return requests.get(url)")
        + frame(f"{SITE}/requests/adapters.py", 700, "send", "raise ConnectionError(e)")
        + f"requests.exceptions.ConnectionError: {POOL_ERROR}\n"
        + "the file of the last run is used\n"
    ),
    "retry_line": (
        "Error: HTTPSConnectionPool(host='bj.bcebos.com', port=443): Read timed out. retry 1/3\n"
        "Error: HTTPSConnectionPool(host='bj.bcebos.com', port=443): Read timed out. retry 2/3\n"
    ),
    "hub_retry": (
        "'[Errno 101] Network is unreachable' thrown while requesting HEAD"
        " https://hub.example/weights/resolve/main/config.json\nRetrying in 1s [Retry 1/5].\n"
    ),
    "wandb_offline": (
        "wandb: ERROR Error while calling W&B API: context deadline exceeded\n"
        "wandb: Network error (ConnectionError), entering retry loop.\n"
    ),
    "board_refused": (
        "{record}the board is not reached\n"
        + caught(
            "requests.exceptions.ConnectionError: " + POOL_ERROR,
            frame(f"{SITE}/visualdl/writer/writer.py", 131, "add_scalar", "self._post(record)"),
        )
    ),
    "glog_before_init": (
        "WARNING: Logging before InitGoogleLogging() is written to STDERR\n"
        "W1120 21:35:46.123456  2131 gpu_resources.cc:119] Please NOTE: device: 0, GPU Compute"
        " Capability: 8.0, Driver API Version: 12.0, Runtime API Version: 11.8\n"
        "W1120 21:35:46.131313  2131 gpu_resources.cc:149] device: 0, cuDNN Version: 8.6.\n"
    ),
    "absl_before_init": (
        "WARNING: All log messages before absl::InitializeLog() is called are written to STDERR\n"
        "E0000 00:00:1732570000.123456    2131 cuda_dnn.cc:8310] Unable to register cuDNN factory:"
        " Attempting to register factory for plugin cuDNN when one has already been registered\n"
        "E external/local_xla/xla/stream_executor/cuda/cuda_driver.cc:266] failed call to cuInit:"
        " CUDA_ERROR_NO_DEVICE: no CUDA-capable device is detected\n"
    ),
    "pil_bomb": (
        f"{SITE}/PIL/Image.py:3157: DecompressionBombWarning: Image size (108000000 pixels) exceeds"
        " limit of 89478485 pixels, could be decompression bomb DOS attack.\n  warnings.warn(\n"
        f"{SITE}/PIL/TiffImagePlugin.py:819: UserWarning: Corrupt EXIF data.  Expecting to read 4"
        " bytes but only got 0. \n  warnings.warn(str(msg))\n"
    ),
    "pil_truncated": caught(
        "OSError: image file is truncated (12 bytes not processed)",
        frame(f"{SITE}/PIL/ImageFile.py", 288, "load", "raise OSError(msg)"),
    ),
    "pil_unidentified": caught(
        "PIL.UnidentifiedImageError: cannot identify image file <_io.BytesIO object at 0x7f5a>",
        frame(f"{SITE}/PIL/Image.py", 3339, "open", "raise UnidentifiedImageError(msg)"),
    ),
    "cv2_error": caught(RESIZE, frame(f"{SITE}/ppdata/ops.py", 77, "apply", "cv2.resize(im, s)")),
    "cv2_line": (
        "[ WARN:0@12.345] global loadsave.cpp:248 findDecoder imread_('/data/a.jpg'): can't"
        " open/read file: check file path/integrity\n"
        "OpenCV(4.6.0) /io/opencv/modules/imgproc/src/resize.cpp:4052: error: (-215:Assertion"
        " failed) !ssize.empty() in function 'resize'\n"
    ),
    "cv2_old": (
        "OpenCV(3.4.1) Error: Assertion failed (ssize.width > 0 && ssize.height > 0) in resize,"
        " file /io/opencv/modules/imgproc/src/resize.cpp, line 4044\n"
    ),
    "font_missing": (
        "WARNING:matplotlib.font_manager:findfont: Font family ['SimHei'] not found. Falling back"
        " to DejaVu Sans.\n"
        "findfont: Font family 'SimHei' not found.\n"
    ),
    "nvml_missing": caught(
        "pynvml.NVMLError_LibraryNotFound: NVML Shared Library Not Found",
        frame(f"{SITE}/pynvml/nvml.py", 1798, "_LoadNvmlLibrary", "_nvmlCheckReturn(ret)"),
    ),
    "batch_halved": (
        caught(SUMMARY.lstrip("\n"), FRAME).replace(TRACEBACK, TRACEBACK, 1).rstrip("\n")
        + "\n"
        + OUT_OF_MEMORY
        + "\nbatch size 16 does not fit, 8 is tried\n"
    ),
    "batch_halved_line": (
        "WARNING: CUDA out of memory. Tried to allocate 2.00 GiB (GPU 0; 15.78 GiB total capacity;"
        " 13.12 GiB already allocated); retrying with batch size 8\n"
    ),
    "memory_error_of_paddle": caught(
        "MemoryError: \n\n--------------------------------------\n"
        "C++ Traceback (most recent call last):\n--------------------------------------\n"
        "0   paddle::memory::allocation::CUDAAllocator::AllocateImpl(unsigned long)\n\n"
        "----------------------\nError Message Summary:\n----------------------\n" + OUT_OF_MEMORY
    ),
    "rich_traceback": (
        "╭───────────────────── Traceback (most recent call last) ──────────────────────╮\n"
        "│ /home/trainer/code/report.py:12 in fetch                                     │\n"
        "│ ❱ 12 │   raise ValueError(url)                                               │\n"
        "╰──────────────────────────────────────────────────────────────────────────────╯\n"
        "ValueError: https://mirror.example/a\n"
    ),
    "loguru": (
        "2026-11-20 21:36:05.123 | ERROR    | report:fetch:12 - the report is skipped\n"
        f"{TRACEBACK}\n\n"
        '  File "/home/trainer/code/tools/train.py", line 80, in <module>\n    main()\n'
        "    └ <function main at 0x7f1b>\n\n"
        '> File "/home/trainer/code/report.py", line 12, in fetch\n    raise ValueError(url)\n'
        "                     └ 'https://mirror.example/a'\n\n"
        "ValueError: https://mirror.example/a\n"
    ),
    "json_record": (
        '{"level": "error", "msg": "push failed", "exc": "Traceback (most recent call last):\\n'
        '  File \\"/home/trainer/code/report.py\\", line 12, in fetch\\nValueError: a"}\n'
    ),
    "progress_bar": (
        "\r  0%|          | 0/120 [00:00<?, ?it/s]\r  5%|▌         | 6/120 [00:01<00:20,  5.6it/s]"
        + caught("KeyError: 'cached_size'")
        + "\r 10%|█         | 12/120 [00:02<00:19,  5.6it/s]\n"
    ),
    # the suites' own ways
    "suite_record": "{record}read data/a.jpg failed: OSError: image file is truncated, skipped\n",
    "suite_critical": (
        "{record}Error in parse op: [Errno 2] No such file or directory: 'a.xml'\n"
        + caught(
            "FileNotFoundError: [Errno 2] No such file or directory: 'a.xml'",
            frame(f"{SITE}/ppdet/data/source/voc.py", 98, "parse_dataset", "ET.parse(path)"),
        )
    ),
    "ocr_transform": (
        '{record}When parsing line a.jpg\t[{"points": []}], error happened with msg: '
        + caught("IndexError: list index out of range", FRAME)
    ),
    "nan_skipped": "{record}loss is nan at step 12, the step is skipped, scale is 16384.0\n",
    "mindspore_dataset": (
        "[ERROR] MD(2131,7f3a1bfff6c0,python):2026-11-20-23:52:38.123.456 [mindspore/ccsrc/minddata"
        "/dataset/util/task_manager.cc:230] InterruptMaster] MindSpore dataset is terminated with"
        " err msg: Exception thrown from dataset pipeline. Refer to 'Dataset Pipeline Error"
        " Message'.\n"
        "[WARNING] MD(2131,7f3a1bfff6c0,python):2026-11-20-23:52:39.123.456 [mindspore/ccsrc"
        "/minddata/dataset/engine/datasetops/source/generator_op.cc:247] operator()] the pipeline"
        " is started again\n"
    ),
    "mindspore_retry": (
        "[ERROR] DISTRIBUTED(2131,7f3a1bfff6c0,python):2026-11-20-23:52:38.123.456 [mindspore/ccsrc"
        "/distributed/cluster/topology/compute_graph_node.cc:318] Heartbeat] Failed to send"
        " heartbeat message to meta server node, retry.\n"
        "[WARNING] ME(2131:139968875081792,MainProcess):2026-11-20-23:52:38.123.000 [mindspore"
        "/train/serialization.py:1378] For 'load_param_into_net', 2 parameters in the 'net' are"
        " not loaded.\n"
    ),
}

# Collected by somebody who did not know the rules.
BLIND = {noise["name"]: noise["log"] for noise in yaml.safe_load(FILE.read_text())}

KINDS = {**FIRST, **LATER, **BLIND}
