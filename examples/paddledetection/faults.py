# SPDX-License-Identifier: Apache-2.0
"""Faults to rehearse with: one rank goes wrong at a known step.

A configuration in configs/faults/ names `faults.FailAt` under `callbacks` and says under `fault`
what happens:

    rank   global rank that goes wrong
    epoch  epoch and
    step   step of that epoch, both counted from 0 as in the log, before which it happens
    how    raise     an exception in the training loop
           exit      a silent exit with code 7
           end       exit code 0, as `sys.exit(0)` in a script gives it
           leave     a process is left behind that ignores SIGTERM, and the training goes on
           kill      SIGKILL, as the kernel's out-of-memory killer sends it
           segv      a segmentation fault inside a library
           memory    memory is taken until a limit objects, or 4 GiB have been taken: give the
           node or the run a lower limit
           nan       a weight turns into NaN, and so does the loss of that step; Paddle's own
           checks end the rank one step later
           hang      the rank stops making progress and still obeys SIGTERM
           stubborn  the rank stops making progress, ignores SIGTERM, and has a child in a
           session of its own that does too
"""

from __future__ import annotations

import ctypes
import os
import signal
import subprocess
import sys
import time

import paddle.distributed
from ppdet.engine.callbacks import Callback

MEMORY_GIB = 4  # never the whole machine


def fail_raise(trainer):
    raise ValueError("image 000000012.jpg is truncated")


def fail_exit(trainer):
    os._exit(7)


def fail_end(trainer):
    sys.exit(0)


def fail_leave(trainer):
    words = "import signal, subprocess, sys; signal.signal(signal.SIGTERM, signal.SIG_IGN);"
    words += " subprocess.Popen([sys.executable, '-c', 'import time; time.sleep(86400)'])"
    subprocess.run([sys.executable, "-c", words], check=True)


def fail_kill(trainer):
    os.kill(os.getpid(), signal.SIGKILL)


def fail_segv(trainer):
    ctypes.string_at(0)


def fail_memory(trainer):
    taken = []
    for _piece in range(MEMORY_GIB * 16):
        taken.append(
            os.urandom(1 << 20) * 64
        )  # 64 MiB of written pages: a promise of memory would cost nothing
    raise RuntimeError(
        f"took {MEMORY_GIB} GiB and nothing objected: this rank has no memory limit below that"
    )


def fail_nan(trainer):
    weight = trainer.model.yolo_head.pred_reg[
        0
    ].bias  # of the boxes: NaN in the classes would raise before a loss is logged
    weight.set_value(weight * float("nan"))


def fail_hang(trainer):
    while True:
        time.sleep(60)


def fail_stubborn(trainer):
    signal.signal(signal.SIGTERM, signal.SIG_IGN)  # the child inherits it
    subprocess.Popen(
        [sys.executable, "-c", "import time; time.sleep(86400)"], start_new_session=True
    )
    fail_hang(trainer)


FAULTS = {
    name[len("fail_") :]: function
    for name, function in list(globals().items())
    if name.startswith("fail_")
}


class FailAt(Callback):
    def __init__(self, trainer):
        super().__init__(trainer)
        fault = trainer.cfg["fault"]
        if fault["how"] not in FAULTS:
            raise ValueError(f"fault.how: got {fault['how']!r}; allowed: {', '.join(FAULTS)}")
        self.moment = (fault["rank"], fault["epoch"], fault["step"])
        self.fail = FAULTS[fault["how"]]

    def on_step_begin(self, status):
        here = (paddle.distributed.get_rank(), status["epoch_id"], status["step_id"])
        if status["mode"] == "train" and here == self.moment:
            self.fail(self.model)  # ppdet calls the trainer a callback belongs to its model
