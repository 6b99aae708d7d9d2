# SPDX-License-Identifier: Apache-2.0
"""The exit code tells completed, failed, stopped, lost and refused apart."""

from __future__ import annotations

import pytest
from ansible_collections.trainyard.cluster.plugins.module_utils.attempts.states import Outcome

from trainyard.exit_codes import OF_OUTCOME, Exit, exit_code


def test_every_outcome_of_an_ended_attempt_has_its_own():
    ended = {outcome.value for outcome in Outcome} - {"running"}
    assert set(OF_OUTCOME) == ended
    assert len(set(OF_OUTCOME.values())) == len(ended)


@pytest.mark.parametrize(
    "code, result, expected",
    [
        (0, {"verdict": {"outcome": "completed"}}, Exit.COMPLETED),
        (2, {"verdict": {"outcome": "completed"}}, Exit.ERROR),
        (2, {"verdict": {"outcome": "failed"}}, Exit.FAILED),
        (2, {"verdict": {"outcome": "stopped"}}, Exit.STOPPED),
        (2, {"verdict": {"outcome": "lost"}}, Exit.LOST),
        (2, {"verdict": {"outcome": "?"}}, Exit.UNKNOWN),
        (2, {"problems": [{"codes": ["job.unknown_key"]}]}, Exit.REFUSED),
        (4, {"unreachable": ["gpu-01"]}, Exit.REFUSED),
        (0, {"unreachable": ["gpu-01"]}, Exit.COMPLETED),
        (99, {"detached": "first_step"}, Exit.COMPLETED),
        (99, {"detached": "interrupted"}, Exit.DETACHED),
        (1, {}, Exit.ERROR),
        (0, {}, Exit.COMPLETED),
    ],
)
def test_what_a_playbook_reports(code, result, expected):
    assert exit_code(code, result) is expected
