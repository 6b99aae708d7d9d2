# SPDX-License-Identifier: Apache-2.0
"""The protocol of the supervisors as machine code. Schedules then take about 60 % of the time.

mypyc, which comes with mypy, compiles the product's own sources. It needs a C compiler. A schedule
plays exactly as with the plain modules (simulate.py compares both).
"""

from __future__ import annotations

import importlib
import re
import subprocess
import sys
import tempfile
import types
from pathlib import Path

import supervision_support as simulator

PACKAGE = "compiled_supervision"
CONSTANT = r"(?m)^%s = [^#\n]*"


def compile_protocol():
    """Return the parts of the protocol as simulator.load does, compiled.

    Raises CalledProcessError.
    """
    folder = Path(tempfile.mkdtemp(prefix="trainyard-simulate-"))
    package = folder / PACKAGE
    package.mkdir()
    (package / "__init__.py").touch()
    constants = dict(simulator.SECONDS, ELECTION=simulator.ELECTION)
    for name in simulator.MODULES:
        text = (simulator.SOURCES / f"{name}.py").read_text(encoding="utf-8")
        for constant, value in constants.items():
            text = re.sub(CONSTANT % constant, f"{constant} = {value}  ", text)
        (package / f"{name}.py").write_text(text, encoding="utf-8")
    sources = [f"{PACKAGE}/{name}.py" for name in simulator.MODULES]
    command = [sys.executable, "-m", "mypyc", *sources]
    subprocess.run(command, cwd=folder, check=True, stdout=subprocess.DEVNULL)
    sys.path.insert(0, str(folder))
    made = {name: importlib.import_module(f"{PACKAGE}.{name}") for name in simulator.MODULES}
    assert made["raft"].__file__.endswith(".so") and constants["LEASE"] == made["supervisor"].LEASE
    names = ("Supervisor", "Report", "Beginning")
    return types.SimpleNamespace(
        RunState=made["run_state"].RunState,
        keeps_names=False,
        **{name: getattr(made["supervisor"], name) for name in names},
        **simulator.load_rules(),
        **simulator.SECONDS,
    )


def end_of(seed, parts):
    """Return how a schedule ends, so that two protocols can be compared."""
    world = simulator.World(seed, parts)
    world.play()
    return world.committed, world.trained, world.sequence, world.chance.getstate()
