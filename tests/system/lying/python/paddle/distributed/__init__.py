# SPDX-License-Identifier: Apache-2.0
"""Ranks that know each other by their environment alone."""

import os


def init_parallel_env():
    return None


def get_rank():
    return int(os.environ.get("PADDLE_TRAINER_ID", "0"))


def get_world_size():
    return int(os.environ.get("PADDLE_TRAINERS_NUM", "1"))


def all_reduce(values):
    values[:] = [value * get_world_size() for value in values]
