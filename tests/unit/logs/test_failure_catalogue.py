# SPDX-License-Identifier: Apache-2.0
"""causes and the catalogue: real messages and their meaning. No line in the logs of a good run has
a meaning, and the user page says the same.
"""

from __future__ import annotations

import json
import re

import pytest
import yaml
from ansible_collections.trainyard.cluster.plugins.module_utils.logs import (
    error_patterns,
    failure_catalogue,
    parser,
)

TRACEBACK = 'Traceback (most recent call last):\n  File "%s", line 3, in <module>\n    f()\n'

# Messages as they were printed or are built into the programs; where from: see `source` of the
# entry, and the last column.
MESSAGES = [
    # python: kind, text
    (
        "ImportError: numpy.core.multiarray failed to import",
        "version_mismatch",
        "numpy 1 modules under numpy 2",
    ),
    ("AttributeError: module 'numpy' has no attribute 'int'", "version_mismatch", "numpy 1.24"),
    (
        "ImportError: libstdc++.so.6: version `CXXABI_1.3.15' not found (required by x.so)",
        "version_mismatch",
        "the dynamic loader",
    ),
    (
        "ImportError: /x/libpaddle.so: undefined symbol: _ZN3phi5ErrorE",
        "version_mismatch",
        "the dynamic loader",
    ),
    (
        "OSError: MindSpore version 1.0.0 and cuda version 10.0 does not match",
        "version_mismatch",
        "mindspore-ai/mindspore#89",
    ),
    (
        (
            "RuntimeError: (External) CUDA error(35), CUDA driver version is insufficient for CUDA"
            " runtime version."
        ),
        "version_mismatch",
        "CUDA",
    ),
    (
        "ImportError: libGL.so.1: cannot open shared object file: No such file or directory",
        "import_error",
        "the dynamic loader",
    ),
    (
        "json.decoder.JSONDecodeError: Expecting value: line 1 column 1 (char 0)",
        "data_corrupt",
        "Python's json",
    ),
    ("OSError: image file is truncated (12 bytes not processed)", "data_corrupt", "Pillow"),
    ("PIL.UnidentifiedImageError: cannot identify image file 'a.jpg'", "data_corrupt", "Pillow"),
    (
        (
            "cv2.error: OpenCV(4.6.0) resize.cpp:4052: error: (-215:Assertion failed)"
            " !ssize.empty() in function 'resize'"
        ),
        "data_corrupt",
        "OpenCV",
    ),
    ("yaml.scanner.ScannerError: mapping values are not allowed here", "bad_config", "PyYAML"),
    ("OSError: [Errno 24] Too many open files: 'a.jpg'", "resource_limit", "Linux"),
    ("RuntimeError: can't start new thread", "resource_limit", "CPython"),
    ("OSError: [Errno 28] No space left on device: '/dev/shm/paddle_1'", "bus_error", "Linux"),
    (
        "ValueError: (InvalidArgument) Network 198.51.100.1:6070 cannot be connected.",
        "store_timeout",
        "paddle tcp_utils.cc",
    ),
    (
        "RuntimeError: (InvalidArgument) Bind network on IP_ANY:6070 failed.",
        "port_in_use",
        "paddle tcp_utils.cc",
    ),
    (
        "OSError: (External) NCCL error(2), unhandled system error.",
        "nccl_system_error",
        "PaddlePaddle/Paddle#48181",
    ),
    (
        "OSError: (External) NCCL error(1), unhandled cuda error.",
        "nccl_cuda_error",
        "PaddlePaddle/PaddleSpeech#3171",
    ),
    (
        "OSError: (External) NCCL error(6), remote process exited or there was a network error.",
        "connection_lost",
        "NVIDIA/nccl init.cc",
    ),
    ("OSError: (External) NCCL error(5), invalid usage.", "nccl_usage", "NVIDIA/nccl#1241"),
    ("RuntimeError: (External) CUDA error(2), out of memory.", "device_out_of_memory", "Paddle"),
    (
        "RuntimeError: (External) CUDA error(719), unspecified launch failure.",
        "kernel_error",
        "Paddle",
    ),
    (
        (
            "RuntimeError: The total number of timed out node is 1. Timed out node list is: [const"
            " vector]{1}"
        ),
        "cluster_timeout",
        "mindspore 2.7.0",
    ),
    (
        (
            "RuntimeError: Failed to initialize distributed job cluster because some processes in"
            " the cluster are not successfully spawned."
        ),
        "cluster_timeout",
        "mindspore 2.7.0",
    ),
    (
        "RuntimeError: Memory not enough: alloc size[1024] is more than free",
        "device_out_of_memory",
        "mindspore 2.7.0",
    ),
    # lines
    (
        (
            "n1:7:9 [0] init.cc:497 NCCL WARN Duplicate GPU detected : rank 2 and rank 0 both on"
            " CUDA device 1000"
        ),
        "duplicate_rank",
        "horovod#3929",
    ),
    (
        "n1:7:9 [0] bootstrap.cc:45 NCCL WARN Bootstrap : no socket interface found",
        "bad_interface",
        "NVIDIA/nccl bootstrap.cc",
    ),
    (
        (
            "EI0006: [PID: 1292363] 2025-04-08-18:07:20.444.436 Getting socket times out. Reason:"
            " Remote Rank did not send the data in time."
        ),
        "hccl_link",
        "vllm-project/vllm-ascend#486",
    ),
    (
        (
            "EI0002: [PID: 7277] 2024-11-28-11:59:30.645.648 The wait execution of the Notify"
            " register times out. Reason: The Notify register"
        ),
        "collective_timeout",
        "gitcode.com/Ascend/pytorch HCCL_timeout.md",
    ),
    (
        (
            "EJ0001: 2024-04-20-10:42:34.020.677 Failed to initialize the HCCP process. Reason:"
            " Maybe the last"
        ),
        "device_busy",
        "hiascend EJ0001",
    ),
    (
        (
            "[PID: 210907] 2026-04-09 Memory_Allocation_Failure(EL0004): Failed to allocate memory"
            " requested by GE module."
        ),
        "device_out_of_memory",
        "CANN 8.3: the process and the time stand before the name",
    ),
    (
        "Memory_Allocation_Failure(EL0004): Failed to allocate memory requested by GE module.",
        "device_out_of_memory",
        "CANN 8.5",
    ),
    (
        (
            "EI0005: 2024-04-24-06:32:27.781.599 The arguments for collective communication are"
            " inconsistent between ranks:tag[x]"
        ),
        "collective_mismatch",
        "hiascend EI0005",
    ),
    (
        (
            "[ERROR] HCCL(2717288,python3):2025-07-23-03:47:57.070.463 [hccl_socket.cc:100]"
            " [2717288][HcclSocket][Listen] socket type[1], listen on ip[192.168.20.160] and"
            " specific port[16666] fail. Please check the port status"
        ),
        "port_in_use",
        "vllm-project/vllm-ascend#1955",
    ),
    (
        (
            "[ERROR] HCCL(137309,t):2025-12-24-16:19:45.416.014 [hccl_socket_manager.cc:813]"
            " [137400][Wait][LinkEstablish]wait socket establish timeout, role[0] rank[0]"
            " timeout[120 s]"
        ),
        "hccl_link",
        "hiascend, EI0006",
    ),
    (
        (
            "[WARNING] DISTRIBUTED(7085,7fd577a14b80,python):2026-11-20-21:04:15.698.110"
            " [mindspore/ccsrc/distributed/rpc/tcp/socket_operation.cc:421] Listen] Failed to call"
            " bind, url: 127.0.0.1:17978 Address already in use"
        ),
        "port_in_use",
        "msrun of mindspore 2.7.0 with a taken port",
    ),
    (
        (
            "[WARNING] DISTRIBUTED(7085,7fd577a14b80,python):2026-11-20-21:04:15.698.110 [a.cc:421]"
            " Connect] Topology build timed out."
        ),
        None,
        "a warning",
    ),
    (
        "ORTE was unable to reliably start one or more daemons.",
        "mpi_start",
        "runs with mpirun here",
    ),
    (
        "An ORTE daemon has unexpectedly failed after launch and before",
        "mpi_start",
        "help-errmgr-base.txt",
    ),
    (
        "[node1:01920] PMIX ERROR: ERROR in file gds_ds12_lock_pthread.c at line 168",
        "mpi_runtime",
        "PMIx",
    ),
    ("[node1:01920] Signal: Segmentation fault (11)", "segfault", "runs with mpirun here"),
    (
        "MPI_ABORT was invoked on rank 2 in communicator MPI_COMM_WORLD",
        "mpi_abort",
        "help-mpi-api.txt",
    ),
    (
        "mpirun was unable to find the specified executable file, and therefore",
        "data_missing",
        "mpirun 4.1 here",
    ),
    (
        "There are not enough slots available in the system to satisfy the 4",
        "mpi_slots",
        "help-orte-rmaps-base.txt",
    ),
]


WORDS = [
    (
        "E0111 10:20:32 41 place.cc:130] Invalid CUDAPlace(3), must inside [0, 2)",
        "device_unavailable",
        "Paddle, pybind/place.cc",
    ),
    (
        "Cannot use GPU because you have installed CPU version PaddlePaddle.",
        "version_mismatch",
        "Paddle, pybind/place.cc",
    ),
    (
        "RuntimeError: Failed to find function HcclCommInitRootInfoConfig",
        "version_mismatch",
        "torch_npu, with an older CANN",
    ),
    (
        "F1021 grpc_client.cc:418] SendRPC name:[NCCLID], ep:[h:6171] error: Deadline Exceeded",
        "store_timeout",
        "PaddlePaddle/Paddle#20725",
    ),
    (
        "PermissionError: [Errno 13] Permission denied: '/dev/shm/pym-199'",
        "permission",
        "Python's multiprocessing, heap.py",
    ),
    ("OSError: '/dev/shm/pym-199' is short", "bus_error", "a file of shared memory"),
    ("UCX: failed to register user buffer", "mpi_runtime", "openucx/ucx#8049"),
    ("TypeError: Can't read The image file a.jpg!", "data_corrupt", "PaddleX, its reader"),
    (
        "[ra_host.c:621]tid:4,ra_rdev_init(621) : ra rdev init failed. ret(-67)",
        "hccl_link",
        "HCCP, ra_host.c",
    ),
    ("HW Exception: by GPU node-1 reason :GPU Hang", "accelerator_call", "ROCm"),
    ("pynvml.NVMLError_Unknown: Unknown Error", "accelerator_call", "NVML"),
    ("pynvml.NVMLError_LibraryNotFound: NVML Not Found", "python_exception", "NVML"),
    ("Assertion: x.cu:105 Assertion `false` failed. find nan or inf", "nan", "Paddle#57955"),
]


@pytest.mark.parametrize("words, cause, origin", WORDS)
def test_words_of_libraries(words, cause, origin):
    kind, _colon, text = words.partition(": ")
    origin_of_words = "line"
    if "Error" in kind:
        origin_of_words = "python"
    assert failure_catalogue.classify(kind, text, origin_of_words)["cause"] == cause, origin


def first_error(text):
    found = parser.LogScan(parser.Table())
    found.feed(text.encode())
    return found.finish()["first_error"]


@pytest.mark.parametrize("message, cause, origin", MESSAGES)
def test_real_messages(message, cause, origin):
    lines = (
        message
        if re.match(r"(?:E[IJ]\d|\[|n1:|\w+\(E|ORTE|An ORTE|MPI_|There are|mpirun was)", message)
        else TRACEBACK % "/srv/a.py" + message
    )
    found = first_error("noise\n" + lines + "\nafter\n")
    assert (found and found["cause"]) == cause, origin


def test_none_instead_of_an_image_is_a_data_fault_in_data_code_only():
    said = "AttributeError: 'NoneType' object has no attribute 'shape'\n"
    assert (
        first_error(TRACEBACK % "/env/ppdet/data/transform/operators.py" + said)["cause"]
        == "data_corrupt"
    )
    assert (
        first_error(TRACEBACK % "/env/ppdet/modeling/heads.py" + said)["cause"]
        == "python_exception"
    )


def test_what_cann_says_below_an_exception_says_what_it_was():
    text = TRACEBACK % "/a.py" + (
        "RuntimeError: Call GE RunGraphWithStreamAsync Failed, ret is: 4294967295\n\n"
        + "-" * 52
        + "\n- Ascend Error Message:\n"
        + "-" * 52
    )
    found = first_error(
        text
        + "\nEI0006: 2025-04-08-18:07:20.444.436 Getting socket times out. Reason: rank 3\n       "
        " Solution: 1. Check\n"
    )
    assert (found["kind"], found["cause"], found["grade"]) == (
        "RuntimeError",
        "hccl_link",
        "shared",
    )
    assert found["text"].startswith("Call GE RunGraph") and "[EI0006: " in found["text"]


AGAIN = (
    "ppocr ERROR: When parsing line b'a.jpg', error happened with msg: "
    + TRACEBACK % "/p/ppocr/data/simple_dataset.py"
)
DEEP = (
    '  File "/p/ppocr/data/simple_dataset.py", line 176, in __getitem__\n    return'
    " self.__getitem__(rnd_idx)\n"
)


@pytest.mark.parametrize(
    "before, cause",
    [
        ((AGAIN + "Exception: /data/a.jpg does not exist!\n\n") * 40, "data_missing"),
        ((AGAIN + "PermissionError: [Errno 13] Permission denied: 'a.jpg'\n\n") * 3, "permission"),
        (
            AGAIN
            + "Exception: /data/a.jpg does not exist!\n\n"
            + AGAIN
            + "OSError: image file is truncated\n\n",
            "python_exception",
        ),
        ("", "data_corrupt"),
    ],
)
def test_a_data_set_that_gave_up_tells_what_it_had_met(before, cause):
    end = "RecursionError: maximum recursion depth exceeded\n"
    found = first_error(
        before
        + TRACEBACK % "/a.py"
        + DEEP * 3
        + "  [Previous line repeated 900 more times]\n"
        + end
    )
    assert (found["kind"], found["cause"], found["handled"]) == ("RecursionError", cause, False)
    assert first_error(TRACEBACK % "/a.py" + end)["cause"] == "python_exception"


@pytest.mark.parametrize(
    "first, link, cause",
    [
        (
            "OSError: [Errno 28] No space left on device",
            "During handling of the above exception, another exception occurred:",
            "disk_full",
        ),
        (
            "MemoryError",
            "During handling of the above exception, another exception occurred:",
            "out_of_memory",
        ),
        (
            "FileNotFoundError: [Errno 2] No such file: 'cache'",
            "During handling of the above exception, another",
            "python_exception",
        ),
        (
            "FileNotFoundError: [Errno 2] No such file: 'a'",
            "The above exception was the direct cause of the following",
            "data_missing",
        ),
        (
            "KeyError: 'a'",
            "The above exception was the direct cause of the following",
            "python_exception",
        ),
        (
            "ConnectionResetError: [Errno 104] Connection reset by peer",
            "The above exception was the direct cause of the",
            "python_exception",
        ),
    ],
)
def test_an_exception_in_vague_words_has_the_cause_of_what_it_came_from(first, link, cause):
    text = (
        TRACEBACK % "/a.py"
        + first
        + "\n\n"
        + link
        + "\n\n"
        + TRACEBACK % "/b.py"
        + "RuntimeError: the checkpoint was not saved\n"
    )
    found = first_error(text)
    assert (found["kind"], found["cause"]) == ("RuntimeError", cause)
    assert (
        first_error(text.replace("RuntimeError: the", "ValueError: [Errno 24] the"))["cause"]
        == "resource_limit"
    )


def test_what_a_loaders_worker_died_of_comes_before_that_it_died():
    """Two threads write at once, so that each breaks the traceback of the other. Paddle 3.3.1
    prints an exception of a worker in this way.
    """
    torn = (
        "Exception in thread Thread-1 (_thread_loop):\n"
        + 'Traceback (most recent call last):\n  File "/threading.py", line 1, in run\n'
    )
    queue = (
        TRACEBACK
        % "/a.py"
        + "SystemError: (Fatal) Blocking queue is killed because the data reader raises an"
        " exception.\n\n"
    )
    nested = (
        "    self.run()\nValueError: DataLoader worker(0) caught ValueError with message:\n"
        + TRACEBACK % "/load.py"
    )
    found = first_error(
        torn + queue + nested + "ValueError: invalid literal for int() with base 10: 'five'\n"
    )
    assert (found["kind"], found["cause"]) == ("ValueError", "python_exception")
    assert first_error(torn + queue)["cause"] == "worker_died"
    assert first_error(queue + TRACEBACK % "/a.py" + "KeyError: 1\n")["kind"] == "KeyError"


RULE = "-" * 66 + "\n"


@pytest.mark.parametrize(
    "text, kind, cause",
    [
        (
            "RuntimeError: Exception thrown from dataset pipeline. Refer to 'Dataset Pipeline Error"
            " Message'. \n\n"
            + RULE
            + "- Dataset Pipeline Error Message: \n"
            + RULE
            + "[ERROR] Invalid file, failed to decode image, the image may be broken: /a.jpg\n",
            "RuntimeError",
            "data_corrupt",
        ),
        (
            "RuntimeError: Exception thrown from user defined Python function in dataset. \n\n"
            + RULE
            + "- Python Call Stack: \n"
            + RULE
            + TRACEBACK % "/d.py"
            + "FileNotFoundError: [Errno 2] No such file or directory: 'a.jpg'\n\n"
            + RULE
            + "- Dataset Pipeline Error Message: \n"
            + RULE
            + "[ERROR] Execute user Python code failed, check 'Python Call Stack' above.\n",
            "FileNotFoundError",
            "data_missing",
        ),
        (
            (
                "ValueError: For 'load_checkpoint', the crc check is failed, please check whether"
                " it is damaged\n"
            ),
            "ValueError",
            "checkpoint_damaged",
        ),
    ],
)
def test_what_mindspore_says_below_an_exception(text, kind, cause):
    found = first_error(TRACEBACK % "/a.py" + text)
    assert (found["kind"], found["cause"]) == (kind, cause)
    refers = text.replace("in dataset. ", "in dataset. Refer to 'Dataset Pipeline Error Message'.")
    assert first_error(TRACEBACK % "/a.py" + refers)["cause"] == cause


def test_a_line_that_calls_itself_an_error_yields_to_what_ends_a_process():
    tagged = (
        "[ERROR] DISTRIBUTED(1,7f,python):2026-11-20-14:39:49.952.006 [a/b.cc:485] Connect]"
        " Topology build timed out.\n"
    )
    assert first_error(tagged)["cause"] == "cluster_timeout"
    assert (
        first_error(tagged * 50 + TRACEBACK % "/a.py" + "ValueError: x\n")["cause"]
        == "python_exception"
    )
    assert (
        first_error(tagged.replace("Topology build timed out.", "nothing that anybody knows"))
        is None
    )
    assert first_error(tagged.replace("timed out.", "timed out., retry(3/600).")) is None
    gloo = (
        "terminate called after throwing an instance of 'gloo::IoException'\n  what():  Connection"
        " closed by peer\n" + "\n" * 12
    )
    assert (
        first_error(gloo + tagged)["cause"]
        == first_error(tagged + gloo)["cause"]
        == "cluster_timeout"
    )
    own = (
        "[ERROR] HCCL(7,p):2025 [hccl_socket.cc:100] [7][Listen] listen on ip[192.0.2.1] and"
        " specific port[16666] fail.\n"
    )
    assert first_error(own + gloo)["cause"] == "port_in_use"
    assert first_error(own + TRACEBACK % "/a.py" + "ValueError: x\n")["cause"] == "python_exception"
    assert (
        first_error(
            tagged.replace("Topology build timed out.", "[Errno 13] Permission denied: 'x'")
        )
        is None
    )
    warned = TRACEBACK % "/a.py" + tagged.replace("ERROR", "WARNING") + "ValueError: x\n"
    torn = parser.LogScan(parser.Table())
    torn.feed(warned.encode())
    assert torn.finish()["errors"] == 1
    many = parser.LogScan(parser.Table())
    many.feed((tagged * 50).encode())
    assert many.finish()["errors"] == 1
    step = {"step": {"line": r"step (?P<step>\d+)"}}
    found = parser.LogScan(parser.Table(step))
    found.feed((tagged + "step 1\n").encode())
    assert found.finish()["first_error"] is None


@pytest.mark.parametrize(
    "text, said",
    [
        (
            (
                "[ERROR] ME(1:2,MainProcess):x [a.py:1] Worker process 2575 exit with exception."
                " Error code: -11."
            ),
            (None, None, 2575, -11, True),
        ),
        (
            (
                "mpirun noticed that process rank 1 with PID 0 on node node2 exited on signal 9"
                " (Killed)."
            ),
            (None, 1, None, -9, True),
        ),
        ("  Process name: [[36225,1],3]\n  Exit code:    7\n", (None, 3, None, 7, True)),
        (
            "Container rank 1 status failed cmd ['a'] code 250 log log/workerlog.1 \n",
            (1, None, None, 250, False),
        ),
    ],
)
def test_what_launchers_say_of_their_children(text, said):
    found = parser.LogScan(parser.Table())
    found.feed(text.encode())
    assert found.finish()["containers"]
    found = parser.LogScan(parser.Table())
    found.feed(
        (TRACEBACK % "/a.py" + "ValueError: x\n" + text).encode()
    )  # the console has what the rank said just above
    child = found.finish()["containers"][0]
    assert tuple(child[key] for key in ("local_rank", "rank", "pid", "code", "first")) == said


def test_no_line_of_a_good_run_means_anything(root, samples):
    """Each line alone, without the lines around it, of every completed run that is here. The
    samples always exist. Runs may be missing.
    """
    good = [path for path in (samples / "logs").glob("*/*/*") if "failure" not in str(path)]
    for record in root.glob("runs/*/run.json"):
        attempts = json.loads(record.read_text())["attempts"]
        good += [
            path
            for attempt in attempts
            if (attempt["verdict"] or {}).get("outcome") == "completed"
            for path in record.parent.glob(f"attempt-{attempt['number']}/*.log")
        ]
    assert len(good) >= 20
    for path in good:
        seen = {}
        for line in path.read_text(errors="replace").splitlines():
            seen.setdefault(re.sub(r"\d+", "0", line), line)
        for line in seen.values():
            python = error_patterns.TRACEBACK.match(line) or error_patterns.FRAME.match(
                line
            )  # these mean something together only
            if not python and any(word in line for word in error_patterns.LITERALS):
                assert first_error(line + "\n") is None, f"{path}: {line[:300]}"


def test_every_entry_is_whole():
    assert {entry["cause"] for entry in failure_catalogue.CATALOGUE} >= {
        *(
            "import_error",
            "out_of_memory",
            "device_out_of_memory",
            "bus_error",
            "port_in_use",
            "duplicate_rank",
            "loopback_address",
        ),
        *(
            "bad_interface",
            "store_timeout",
            "nccl_system_error",
            "hccl_link",
            "killed",
            "segfault",
            "disk_full",
            "nan",
            "data_missing",
        ),
        *("data_corrupt", "version_mismatch", "cluster_timeout", "mpi_start"),
    }
    for name, entry in failure_catalogue.every().items():
        assert re.fullmatch(r"[a-z][a-z0-9_]+", name)
        assert entry["grade"] in ("primary", "shared", "secondary")
        assert (
            entry["meaning"][0].isupper()
            and entry["meaning"].endswith(".")
            and ". " not in entry["meaning"]
        ), name
        assert (
            entry["remedy"] and not entry["remedy"].endswith(".") and "\n" not in entry["remedy"]
        ), name
        assert len(entry["source"]) > 3, name


def test_no_pattern_fits_everything():
    """An alternative without text in a pattern would give each error the entry's cause."""
    for entry in failure_catalogue.CATALOGUE:
        for text in ("", "KeyError: 'lr'", "ValueError: too many values to unpack (expected 4)"):
            assert not re.search(entry["pattern"], text) or entry.get("where"), entry["cause"]


@pytest.mark.parametrize(
    ("number", "cause"),
    [(13, "kernel_error"), (31, "kernel_error"), (43, "kernel_error"), (48, "device_error")]
    + [(79, "device_error"), (95, "device_error"), (119, "device_error")],
)
def test_only_some_of_the_drivers_numbers_blame_a_device(number, cause):
    text = f"NVRM: Xid (PCI:0000:3b:00): {number}, pid=4711, name=python"
    assert failure_catalogue.classify("RuntimeError", text, "python")["cause"] == cause


def test_the_user_page_says_what_the_catalogue_says(root):
    page = (root / "docs" / "runbooks" / "verdict.md").read_text()
    # The tables before it explain the words of the verdict block.
    table = page[page.index("| cause |") :]
    rows = dict(re.findall(r"^\| `([a-z_]+)` \| (.*?) \|$", table, re.MULTILINE))
    told = {
        name: f"{entry['meaning']} | {entry['remedy']}".replace("\n", " ")
        for name, entry in failure_catalogue.every().items()
    }
    assert rows == told


def test_the_suites_own_lines_do_not_hide_errors(root):
    """The patterns of a suite for steps, evaluations and saved files take a line before the error
    scan sees it. So none of them may match a real message.
    """
    suites = root / "playbooks" / "suites"
    for path in suites.glob("*.yml"):
        table = parser.Table(yaml.safe_load(path.read_text()).get("logs"))
        for message, _cause, _origin in MESSAGES:
            assert not any(
                p.search(message)
                for p in table.step + table.evaluation + table.saved + table.totals
            ), (path.name, message)
