# SPDX-License-Identifier: Apache-2.0
"""Rank of a rehearsal: a short all-reduce in the place of the training's script.

It notes its identity, joins the others, adds up, measures, convolves and ends. It stands in the
rehearsal's plan in the place of the training's script, and the launcher starts it with the Python
that trains. So it is one file, complete in itself (Python >= 3.8, and the framework that the
training uses), and not part of agent.pyz. It notes each step as soon as it is done, as one line of
JSON in ./trainyard_rehearsal/. So the last line of a rank that waits for ever shows how far it
came. The arguments are the training's and are ignored.
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
# Of the image of the small convolution, whose kernels are 3 x 3. All values are 1.
CHANNELS = 3
# The variables that name a rank and the number of ranks. The first pair whose first name is set
# counts. MindSpore's are those of msrun, of a rank table, and of mpirun with its own collectives
# (contract D5, D7).
VARIABLES = {
    "paddle": [("PADDLE_TRAINER_ID", "PADDLE_TRAINERS_NUM")],
    "mindspore": [
        ("MS_NODE_ID", "MS_WORKER_NUM"),
        ("RANK_ID", "RANK_SIZE"),
        ("OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE"),
    ],
}


def identity(framework, environment):
    """Return {rank, world, endpoint, endpoints} of this rank as the launcher names it.

    A value that the launcher does not give is missing (None). Raises KeyError for an unknown
    framework.
    """
    pairs = VARIABLES[framework]
    rank_name, world_name = next((pair for pair in pairs if pair[0] in environment), pairs[-1])
    names = {
        "rank": number(environment.get(rank_name)),
        "world": number(environment.get(world_name)),
        "endpoint": None,
        "endpoints": None,
    }
    if framework == "paddle":
        names["endpoint"] = environment.get("PADDLE_CURRENT_ENDPOINT")
        endpoints = environment.get("PADDLE_TRAINER_ENDPOINTS")
        if endpoints is not None:
            names["endpoints"] = endpoints.split(",")
    return names


def number(text):
    """Return a text as a number, None where it is not one."""
    if text and text.isdigit():
        return int(text)
    return None


class Paddle:
    """paddle.distributed as the suites use it, with the backend that Paddle chooses."""

    def load(self, accelerator):
        """Import the framework and set its device."""
        import paddle

        self.paddle, device = paddle, "cpu"
        if accelerator == "gpu":
            device = "gpu"
        paddle.set_device(device)
        self.version = paddle.__version__

    def join(self):
        """Join the other ranks and return (rank, number of ranks)."""
        self.paddle.distributed.init_parallel_env()
        return self.paddle.distributed.get_rank(), self.paddle.distributed.get_world_size()

    def backend(self, accelerator):
        """Return the name of the communication backend."""
        return {"gpu": "nccl"}.get(accelerator, "gloo")

    def values(self, value, count):
        """Return a tensor with so many equal values."""
        return self.paddle.full([count], value, dtype="float32")

    def add_up(self, values):
        """Return the first value after an all-reduce, which waits for the device."""
        if self.paddle.distributed.get_world_size() > 1:
            self.paddle.distributed.all_reduce(values)
        return float(values[0])

    def convolve(self):
        """Return the first value of a small convolution. On a GPU it loads cuDNN."""
        image = self.paddle.full([1, CHANNELS, 8, 8], 1.0, dtype="float32")
        kernels = self.paddle.full([4, CHANNELS, 3, 3], 1.0, dtype="float32")
        return float(self.paddle.nn.functional.conv2d(image, kernels).flatten()[0])


class MindSpore:
    """mindspore.communication and the operator that its optimizers use."""

    def load(self, accelerator):
        """Import the framework."""
        import mindspore
        import numpy

        self.mindspore, self.numpy = mindspore, numpy
        self.version = mindspore.__version__

    def join(self):
        """Join the other ranks and return (rank, number of ranks)."""
        from mindspore import communication

        self.alone = not any(
            name in os.environ for name in ("MS_NODE_ID", "RANK_TABLE_FILE", "OMPI_COMM_WORLD_SIZE")
        )
        if self.alone:
            return 0, 1
        communication.init()
        return communication.get_rank(), communication.get_group_size()

    def backend(self, accelerator):
        """Return the name of the communication backend."""
        return {"ascend": "hccl", "gpu": "nccl"}.get(accelerator, "mccl")

    def values(self, value, count):
        """Return a tensor with so many equal values."""
        return self.mindspore.Tensor(self.numpy.full([count], value, self.numpy.float32))

    def add_up(self, values):
        """Return the first value after an all-reduce, which waits for the device."""
        if self.alone:
            return float(values.asnumpy()[0])
        return float(self.mindspore.ops.AllReduce()(values).asnumpy()[0])

    def convolve(self):
        """Return the first value of a small convolution. On a GPU it loads cuDNN."""
        ones = self.numpy.ones
        image = self.mindspore.Tensor(ones([1, CHANNELS, 8, 8], self.numpy.float32))
        kernels = self.mindspore.Tensor(ones([4, CHANNELS, 3, 3], self.numpy.float32))
        return float(self.mindspore.ops.Conv2D(4, 3)(image, kernels).asnumpy().ravel()[0])


def rehearse(say, settings, framework):
    """Join the others, add up, measure and convolve.

    say: a function that notes a step. settings: the content of asked.json.
    """
    framework.load(settings["accelerator"])
    say("imported", version=framework.version, backend=framework.backend(settings["accelerator"]))
    rank, world = framework.join()
    say("joined", joined_rank=rank, joined_world=world)
    say(
        "added",
        sum=framework.add_up(framework.values(float(rank + 1), 1)),
        expected=world * (world + 1) / 2.0,
    )
    count, times = settings["bytes"] // BYTES, settings["times"]
    # Connections and buffers of this size are made at the first use.
    framework.add_up(framework.values(1.0, count))
    spent = 0.0
    for _time in range(times):
        values = framework.values(1.0, count)
        started = time.monotonic()
        framework.add_up(values)
        spent += time.monotonic() - started
    # The load of each rank's wire in a ring, as NVIDIA's nccl-tests count it ("bus bandwidth").
    share = 2.0 * (world - 1) / world
    say(
        "measured",
        bytes=count * BYTES,
        seconds=spent / times,
        bandwidth=share * count * BYTES * times / max(spent, 1e-9),
    )
    say("convolved", convolution=framework.convolve())
    framework.add_up(framework.values(1.0, 1))  # no rank leaves before all have measured


def main():
    """Rehearse as asked.json says, and note each step."""
    with open(os.path.join(FOLDER, "asked.json"), encoding="utf-8") as handle:
        settings = json.load(handle)
    if os.environ.get("MS_ROLE") == "MS_SCHED":
        # msrun runs the training's script as its scheduler, too. That one is not a rank and never
        # returns from this.
        from mindspore import communication

        return communication.init()
    names = identity(settings["framework"], os.environ)
    name = f"{names['rank']}-{os.getpid()}"
    # NCCL writes only to its own log which network it took. It reads these when it is initialised.
    os.environ.update(
        NCCL_DEBUG="INFO",
        NCCL_DEBUG_SUBSYS="INIT,NET",
        NCCL_DEBUG_FILE=os.path.join(FOLDER, f"{name}.nccl"),
    )
    with open(os.path.join(FOLDER, f"{name}.jsonl"), "a", encoding="utf-8") as handle:
        reached = []

        def say(stage, **values):
            reached.append(stage)
            line = json.dumps(dict(values, stage=stage, time=time.time()))
            handle.write(line + "\n")
            handle.flush()
            print(f"rehearsal: {line}", flush=True)

        say("started", host=socket.gethostname(), pid=os.getpid(), python=sys.executable, **names)
        try:
            framework = {"paddle": Paddle, "mindspore": MindSpore}[settings["framework"]]()
            rehearse(say, settings, framework)
        except BaseException as error:
            say(
                "failed",
                after=reached[-1],
                error=traceback.format_exception_only(type(error), error)[-1].strip()[-2000:],
            )
            raise
        say("ended")


if __name__ == "__main__":
    main()
