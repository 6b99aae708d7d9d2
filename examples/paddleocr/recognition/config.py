# SPDX-License-Identifier: Apache-2.0
"""The suite's command line and configuration: one file, then `-o key=value ...` on top of it."""

from __future__ import annotations

import argparse

import yaml


class Refused(Exception):
    """The configuration asks for something that this bundle does not have."""


def parse_args(argv=None):
    parser = argparse.ArgumentParser(
        description="Train CRNN with CTC: PaddleOCR's command line for a small network."
    )
    parser.add_argument(
        "-c",
        "--config",
        required=True,
        metavar="FILE",
        help="configuration, relative to the working directory",
    )
    parser.add_argument(
        "-o",
        "--opt",
        nargs="+",
        default=[],
        metavar="KEY=VALUE",
        help="values that replace the configuration's",
    )
    return parser.parse_args(argv)


def read(path, overrides):
    """Return the configuration with the overrides in it. A value is YAML:
    `Global.eval_batch_step=[0,20]`.
    """
    with open(path, encoding="utf-8") as handle:
        config = yaml.safe_load(handle)
    for word in overrides:
        dotted, equals, text = word.partition("=")
        *parents, last = dotted.split(".")
        section = config
        for name in parents:
            section = section.get(name) if isinstance(section, dict) else None
        if not equals or not isinstance(section, dict):
            raise Refused(
                f"-o {word}: want key=value, every section before the last dot one that {path} has"
            )
        section[last] = yaml.safe_load(text)
    return config


def only(section, known, where):
    """Return what `known` has under the section's name, or refuse with the names that there are."""
    name = section.get("name")
    if name not in known:
        raise Refused(
            f"{where}.name: this bundle has {', '.join(known)}; got {name!r}. Train others with the"
            " PaddleOCR repository"
        )
    return known[name]


def lines(config, depth=0):
    """The configuration as the suite logs it at the start: keys in order, one a line."""
    for key, value in sorted(config.items()):
        yield f"{' ' * 4 * depth}{key} : {'' if isinstance(value, dict) else value}"
        if isinstance(value, dict):
            yield from lines(value, depth + 1)
