# SPDX-License-Identifier: Apache-2.0
"""A stand-in for Paddle on a pretended node: as much as the rehearsal and the product's look at an
environment take.
"""

from types import SimpleNamespace

from paddle import distributed

__all__ = ["device", "distributed", "full", "nn", "set_device", "version"]
__version__ = "2.6.2"
version = SimpleNamespace(
    full_version="2.6.2", commit="0" * 40, cuda=lambda: "False", cudnn=lambda: "False"
)
device = SimpleNamespace(is_compiled_with_cuda=lambda: False)


def is_compiled_with_cuda():
    return False


def set_device(_name):
    return None


def full(shape, value, dtype="float32"):
    return [value] * shape[0]


class _Values(list):
    def flatten(self):
        return self


# Of ones, as the rehearsal has them.
nn = SimpleNamespace(
    functional=SimpleNamespace(
        conv2d=lambda _image, kernels: _Values([sum(map(float, kernels)) * 27 / len(kernels)])
    )
)
