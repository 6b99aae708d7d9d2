# SPDX-License-Identifier: Apache-2.0
"""What a rank runs in a rehearsal, in the place of the training's script: say who it is, join the
others, add up, measure, end.

This file is copied into the attempt's working directory and is complete in itself (Python >= 3.8,
and the framework that the training uses). It says every step as soon as it is done, as one line of
JSON in ./trainyard_rehearsal/, so that a rank that waits for ever has told how far it came. The
arguments are the training's and are left alone.
"""

from __future__ import annotations

import json
import os
import socket
import sys
import time
import traceback

FOLDER = "trainyard_rehearsal"
# A value in Paddle's and MindSpore's numbers of 32 bits.
BYTES = 4


def identity(framework, environment):
    """Return who the launcher says this rank is: rank, world, endpoint, endpoints (None where it
    does not say).
    """
    names = {
        "paddle": (
            "PADDLE_TRAINER_ID",
            "PADDLE_TRAINERS_NUM",
            "PADDLE_CURRENT_ENDPOINT",
            "PADDLE_TRAINER_ENDPOINTS",
        ),
        "mindspore": ("MS_NODE_ID", "MS_WORKER_NUM", None, None),
    }[framework]
    if framework == "mindspore" and "MS_NODE_ID" not in environment:
        # mpirun with its own collectives, or a rank table (contract D5, D7).
        names = (
            ("RANK_ID", "RANK_SIZE", None, None)
            if "RANK_ID" in environment
            else ("OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE", None, None)
        )
    rank, world, endpoint, endpoints = (environment.get(name) if name else None for name in names)
    return {
        "rank": int(rank) if rank and rank.isdigit() else None,
        "world": int(world) if world and world.isdigit() else None,
        "endpoint": endpoint,
        "endpoints": endpoints.split(",") if endpoints is not None else None,
    }


class Paddle:
    """paddle.distributed as the suites use it; the backend is Paddle's own choice."""

    def load(self, accelerator):
        import paddle

        self.paddle = paddle
        paddle.set_device("gpu" if accelerator == "gpu" else "cpu")
        self.version = paddle.__version__

    def join(self):
        self.paddle.distributed.init_parallel_env()
        return self.paddle.distributed.get_rank(), self.paddle.distributed.get_world_size()

    def backend(self, accelerator):
        return "nccl" if accelerator == "gpu" else "gloo"

    def values(self, value, count):
        return self.paddle.full([count], value, dtype="float32")

    def add_up(self, values):
        """All-reduce; return the first value, which waits for the device."""
        if self.paddle.distributed.get_world_size() > 1:
            self.paddle.distributed.all_reduce(values)
        return float(values[0])


class MindSpore:
    """mindspore.communication and the operator that its optimizers use."""

    def load(self, accelerator):
        import mindspore
        import numpy

        self.mindspore, self.numpy = mindspore, numpy
        self.version = mindspore.__version__

    def join(self):
        from mindspore import communication

        self.alone = not any(
            name in os.environ for name in ("MS_NODE_ID", "RANK_TABLE_FILE", "OMPI_COMM_WORLD_SIZE")
        )
        if self.alone:
            return 0, 1
        communication.init()
        return communication.get_rank(), communication.get_group_size()

    def backend(self, accelerator):
        return {"ascend": "hccl", "gpu": "nccl"}.get(accelerator, "mccl")

    def values(self, value, count):
        return self.mindspore.Tensor(self.numpy.full([count], value, self.numpy.float32))

    def add_up(self, values):
        if self.alone:
            return float(values.asnumpy()[0])
        return float(self.mindspore.ops.AllReduce()(values).asnumpy()[0])


def rehearse(say, asked, framework):
    """Join the others and add up; say every step."""
    framework.load(asked["accelerator"])
    say("imported", version=framework.version, backend=framework.backend(asked["accelerator"]))
    rank, world = framework.join()
    say("joined", joined_rank=rank, joined_world=world)
    say(
        "added",
        sum=framework.add_up(framework.values(float(rank + 1), 1)),
        expected=world * (world + 1) / 2.0,
    )
    count, times = asked["bytes"] // BYTES, asked["times"]
    framework.add_up(
        framework.values(1.0, count)
    )  # connections and buffers of this size are made at the first use
    spent = 0.0
    for _time in range(times):
        values = framework.values(1.0, count)
        began = time.monotonic()
        framework.add_up(values)
        spent += time.monotonic() - began
    # What every rank's wire carries in a ring, as NVIDIA's nccl-tests count it ("bus bandwidth").
    share = 2.0 * (world - 1) / world
    say(
        "measured",
        bytes=count * BYTES,
        seconds=spent / times,
        bandwidth=share * count * BYTES * times / max(spent, 1e-9),
    )
    framework.add_up(framework.values(1.0, 1))  # nobody leaves before all have measured


def main():
    with open(os.path.join(FOLDER, "asked.json"), encoding="utf-8") as handle:
        asked = json.load(handle)
    if os.environ.get("MS_ROLE") == "MS_SCHED":
        # msrun runs the training's script as its scheduler, too; that one is no rank and never
        # returns from this
        from mindspore import communication

        return communication.init()
    told = identity(asked["framework"], os.environ)
    name = "%s-%d" % (told["rank"], os.getpid())
    # NCCL's own words are the only place where it says which network it took; it reads these when
    # it is initialised.
    os.environ.update(
        NCCL_DEBUG="INFO",
        NCCL_DEBUG_SUBSYS="INIT,NET",
        NCCL_DEBUG_FILE=os.path.join(FOLDER, f"{name}.nccl"),
    )
    with open(os.path.join(FOLDER, f"{name}.jsonl"), "a", encoding="utf-8") as handle:

        def say(stage, **values):
            line = json.dumps(dict(values, stage=stage, time=time.time()))
            handle.write(line + "\n")
            handle.flush()
            print(f"rehearsal: {line}", flush=True)

        say("started", host=socket.gethostname(), pid=os.getpid(), python=sys.executable, **told)
        try:
            rehearse(say, asked, {"paddle": Paddle, "mindspore": MindSpore}[asked["framework"]]())
        except BaseException as error:
            say(
                "failed",
                error=traceback.format_exception_only(type(error), error)[-1].strip()[-2000:],
            )
            raise
        say("ended")


if __name__ == "__main__":
    main()
