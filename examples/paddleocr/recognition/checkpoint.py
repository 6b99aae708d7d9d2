# SPDX-License-Identifier: Apache-2.0
"""Checkpoints as the suite lays them out: NAME.pdparams, NAME.pdopt, NAME.states side by side."""

from __future__ import annotations

import os
import pickle

import paddle


def save(folder, name, model, optimizer, states):
    """Write a checkpoint; return its path without an ending."""
    os.makedirs(folder, exist_ok=True)
    path = os.path.join(folder, name)
    paddle.save(model.state_dict(), path + ".pdparams")
    paddle.save(optimizer.state_dict(), path + ".pdopt")
    with open(path + ".states", "wb") as handle:
        pickle.dump(states, handle, protocol=2)
    return path


def stem(path):
    return path[: -len(".pdparams")] if path.endswith(".pdparams") else path


def load_weights(path, model):
    model.set_state_dict(paddle.load(stem(path) + ".pdparams"))


def resume(path, model, optimizer):
    """Go on from a checkpoint, on every rank; return its states. All three files must be there."""
    path = stem(path)
    load_weights(path, model)
    optimizer.set_state_dict(paddle.load(path + ".pdopt"))
    with open(path + ".states", "rb") as handle:
        return pickle.load(handle)
