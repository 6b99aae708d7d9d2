# SPDX-License-Identifier: Apache-2.0
"""Faults from inside a rank, for the corpus: Python runs this file before a training where its
folder is on PYTHONPATH.

CORPUS_FAULT is a JSON list of {rank, at, how, ...}; without `rank` the fault is every rank's. `at`
is a moment and its count: start, join:1 (before the ranks meet), step:3 (before the third backward
pass or training step), eval:1, save:1, end (at the interpreter's exit). What comes of the fault is
the training's own doing: nothing here writes to a log except where `how` is a program that goes on.
"""

import atexit
import builtins
import functools
import importlib.util
import json
import os
import signal
import sys
import time


def own_rank():
    """Return this process's global rank; None for a launcher or MindSpore's scheduler."""
    if os.environ.get("MS_ROLE") == "MS_SCHED":
        return None
    names = ("PADDLE_TRAINER_ID", "TRAINYARD_RANK", "RANK_ID", "MS_NODE_ID")
    return next(
        (int(os.environ[name]) for name in names if os.environ.get(name, "").isdigit()), None
    )


# --- what ends a rank, or makes it end


def fail_raise(fault):
    raise getattr(builtins, fault["error"])(fault["text"])


def fail_exit(fault):
    os._exit(fault["code"])


def fail_leave(fault):
    sys.exit(fault["code"])


def fail_kill(fault):
    os.kill(os.getpid(), signal.SIGKILL)


def fail_stop(fault):
    os.kill(os.getpid(), signal.SIGSTOP)


def fail_segv(fault):
    import ctypes

    ctypes.string_at(0)


def fail_abort(fault):
    os.abort()


def fail_bus(fault):
    """Read a mapped file beyond the end that it has got meanwhile."""
    import mmap

    with open("cache.bin", "w+b") as handle:
        handle.truncate(1 << 16)
        pages = mmap.mmap(handle.fileno(), 1 << 16)
        handle.truncate(0)
        sys.stdout.write(str(pages[4096]))


def fail_limit(fault):
    """From here on the rank may have only so much more memory: what needs more fails where it needs
    it.
    """
    import resource

    with open("/proc/self/statm", encoding="ascii") as handle:
        now = int(handle.read().split()[0]) * os.sysconf("SC_PAGE_SIZE")
    limit = now + (fault["mib"] << 20)
    resource.setrlimit(resource.RLIMIT_AS, (limit, limit))


def fail_take(fault):
    """Take memory that is really there, up to 6 GiB, until something objects; then go on without
    it.
    """
    taken = [bytearray(os.urandom(1 << 20)) * 64 for _piece in range(96)]
    del taken


def fail_array(fault):
    import numpy

    return numpy.ones((fault["gib"] << 27,))


def fail_tensor(fault):
    import paddle

    return paddle.ones([fault["gib"] << 18, 1024])


def fail_hang(fault):
    while True:
        time.sleep(60)


def fail_worker(fault):
    """A data loader of the framework's own, one of whose workers meets a bad sample."""
    import paddle

    class Samples(paddle.io.Dataset):
        def __len__(self):
            return 8

        def __getitem__(self, number):
            if number == 5:
                os._exit(3) if fault.get("dies") else int("five")
            return number

    for _batch in paddle.io.DataLoader(Samples(), batch_size=2, num_workers=1):
        pass


# --- what looks bad, and the training goes on


def fail_caught(fault):
    import traceback

    try:
        with open("/srv/shared/extra_labels.txt", encoding="utf-8") as handle:
            handle.read()
    except OSError:
        traceback.print_exc()


def fail_logged(fault):
    import logging
    import socket

    log = logging.getLogger("metrics")
    log.addHandler(logging.StreamHandler(sys.stdout))
    try:
        socket.create_connection(("127.0.0.1", 9), 2)
    except OSError:
        log.exception("metrics are not sent: the collector does not answer")


def fail_thread(fault):
    import threading

    threading.Thread(target=lambda: {}["heartbeat"], name="Thread-heartbeat", daemon=True).start()


class Half:
    def __del__(self):
        self.handle.close()


def fail_del(fault):
    Half()


def fail_helper(fault):
    """A helper program that dies of a segmentation fault, which the shell says."""
    os.system("env -u PYTHONPATH python3 -c 'import ctypes; ctypes.string_at(0)'; true")


def fail_download(fault):
    import traceback
    import urllib.request

    for number in (1, 2):
        try:
            urllib.request.urlopen("http://127.0.0.1:9/weights.pdparams", timeout=2)
        except OSError:
            traceback.print_exc()
            print(
                "download of weights.pdparams failed, try %d of 2; the weights of the last run are"
                " used" % number,
                flush=True,
            )


def fail_smaller(fault):
    import numpy

    try:
        numpy.ones((1 << 44,))
    except MemoryError as error:
        print(f"MemoryError: {error}; the cache is left out", flush=True)


def fail_full(fault):
    try:
        with open("/dev/full", "w", encoding="ascii") as handle:
            handle.write("cache")
    except OSError as error:
        print(f"OSError: {error}: no cache is written", flush=True)


def fail_optional(fault):
    """An optional package that is not installed, which a library says with its traceback."""
    import traceback

    try:
        importlib.import_module("corpus_fast_augment")
    except ImportError:
        traceback.print_exc()
        print("corpus_fast_augment is not installed: the slow augmentation is used", flush=True)


def fail_chained(fault):
    """An exception raised from another one, and logged with exc_info by the handler."""
    import logging

    try:
        try:
            {}["cache"]
        except KeyError as error:
            raise RuntimeError("the cache of samples cannot be opened") from error
    except RuntimeError:
        logging.getLogger("cache").error("samples are read without a cache", exc_info=True)


def fail_process(fault):
    """A child process that dies of an exception, and is started again by the training."""
    import multiprocessing

    context = multiprocessing.get_context("fork")
    for work in (lambda: int("five"), lambda: None):
        child = context.Process(target=work)
        child.start()
        child.join()
        if not child.exitcode:
            break
        print(f"the helper ended with {child.exitcode}; it is started again", flush=True)


def fail_pool(fault):
    """An exception of a pool's worker that comes back with its remote traceback, caught."""
    import concurrent.futures
    import traceback

    with concurrent.futures.ProcessPoolExecutor(1) as pool:
        try:
            pool.submit(int, "five").result()
        except ValueError:
            traceback.print_exc()


def fail_task(fault):
    """An asyncio task whose exception nobody takes."""
    import asyncio

    async def send():
        raise ConnectionResetError("the metrics server went away")

    async def main():
        asyncio.ensure_future(send())
        await asyncio.sleep(0)

    asyncio.run(main())


def fail_program(fault):
    """A helper program in Python that ends with a traceback in the rank's log."""
    os.system("env -u PYTHONPATH python3 -c 'import json; json.load(open(\"/nothere.json\"))'")


def fail_grouped(fault):
    """Several exceptions at once, printed by their handler (Python 3.11)."""
    import traceback

    errors = [OSError(28, "No space left on device"), ValueError("the record has no label")]
    try:
        raise builtins.ExceptionGroup("two samples were left out", errors)
    except builtins.ExceptionGroup:
        traceback.print_exc()


def fail_logging(fault):
    """A record that cannot be formatted, which the module logging says with two tracebacks."""
    import logging

    log = logging.getLogger("rate")
    log.addHandler(logging.StreamHandler())
    log.warning("images per second: %d", "none")


def fail_probe(fault):
    """A probe for memory: a tensor that Paddle refuses, caught, and a smaller one."""
    import traceback

    import paddle

    for gib in (1 << 14, 0):
        try:
            paddle.ones([gib << 18, 1024])
        except (MemoryError, RuntimeError, SystemError, OSError):
            traceback.print_exc()
            print("the probe was too large; a smaller cache is used", flush=True)


def fail_warned(fault):
    import warnings

    warnings.warn("Error: failed to open the annotations' index; it is made anew", stacklevel=1)


def fail_stacks(fault):
    """All threads' stacks, as a program prints them that is only slow."""
    import faulthandler

    faulthandler.dump_traceback(all_threads=True)


FAULTS = {
    name[5:]: function for name, function in list(globals().items()) if name.startswith("fail_")
}

# --- when


class Moments:
    """Counts the moments of this rank and does what is due at each."""

    def __init__(self, faults):
        self.due, self.seen = {}, {}
        for fault in faults:
            self.due.setdefault(fault["at"], []).append(fault)

    def reach(self, kind):
        self.seen[kind] = self.seen.get(kind, 0) + 1
        for fault in self.due.pop("%s:%d" % (kind, self.seen[kind]), ()):
            time.sleep(fault.get("delay", 0))
            FAULTS[fault["how"]](fault)

    def before(self, owner, name, kind):
        """Let every call of owner.name be a moment."""
        original = getattr(owner, name)

        @functools.wraps(original)
        def wrapper(*given, **named):
            self.reach(kind)
            return original(*given, **named)

        setattr(owner, name, wrapper)

    def paddle(self, module):
        self.before(module.Tensor, "backward", "step")
        self.before(module.nn.Layer, "eval", "eval")
        self.before(module, "save", "save")
        self.before(module.distributed, "init_parallel_env", "join")

    def mindspore(self, module):
        import mindspore.communication

        self.before(module.nn.TrainOneStepCell, "__call__", "step")
        self.before(module, "save_checkpoint", "save")
        self.before(mindspore.communication, "init", "join")
        original = module.nn.Cell.set_train

        def set_train(cell, mode=True):
            if not mode and self.seen.get("step"):
                self.reach("eval")
            return original(cell, mode)

        module.nn.Cell.set_train = set_train


class Import:
    """Finds a framework as ever, and says when it has been imported."""

    def __init__(self, moments):
        self.waiting = {"paddle": moments.paddle, "mindspore": moments.mindspore}

    def find_spec(self, name, path=None, target=None):
        if name not in self.waiting:
            return None
        then = self.waiting.pop(name)
        spec = importlib.util.find_spec(name)
        if spec is not None:
            execute = spec.loader.exec_module

            def exec_module(module):
                execute(module)
                then(module)

            spec.loader.exec_module = exec_module
        return spec


def main():
    rank = own_rank()
    faults = [
        fault
        for fault in json.loads(os.environ.get("CORPUS_FAULT", "[]"))
        if fault.get("rank", rank) == rank
    ]
    if rank is None or not faults:
        return
    moments = Moments(faults)
    atexit.register(lambda: moments.reach("end"))
    sys.meta_path.insert(0, Import(moments))
    moments.reach("start")


main()
