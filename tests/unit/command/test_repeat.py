# SPDX-License-Identifier: Apache-2.0
"""`trainyard export --every`: it goes on after a failure, and ends at a signal and at bad input."""

from __future__ import annotations

import json
import os
import signal
from pathlib import Path

import pytest
from core_support import program

from trainyard import playbook
from trainyard.exit_codes import Exit
from trainyard.product import Product

REFUSAL = json.dumps({"problems": [{"codes": ["cli.unknown_job"]}]})


@pytest.fixture
def looks(tmp_path, monkeypatch):
    """Repeat a program in the place of ansible-playbook; return (how it ended, number of calls)."""

    def repeat(script):
        body = f"echo x >> {tmp_path}/calls; n=$(wc -l < {tmp_path}/calls); {script}"
        folder = program(tmp_path / "bin", "ansible-playbook", body)
        monkeypatch.setattr(playbook, "program", lambda name: os.path.join(folder, name))
        invocation = playbook.Invocation("export", None)
        end = playbook.repeat(invocation, Product(Path(tmp_path), True), False, 0)
        return end, len((tmp_path / "calls").read_text().split())

    return repeat


def test_a_failure_is_tried_again_and_a_refusal_is_the_end(looks):
    script = f"[ $n -lt 3 ] || echo '{REFUSAL}' > $TRAINYARD_RESULT; exit 1"
    assert looks(script) == (Exit.REFUSED, 3)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_is_the_end(looks, number):
    script = f"[ $n -lt 2 ] || kill -{int(number)} {os.getpid()}; sleep 0.3; exit 0"
    assert looks(script) == (Exit.COMPLETED, 2)
