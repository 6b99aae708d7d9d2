# SPDX-License-Identifier: Apache-2.0
"""Whether a run that ended badly is started again: every cause has its class, and what is
documented is what is done.
"""

from __future__ import annotations

import re

import pytest
from ansible_collections.trainyard.cluster.plugins.module_utils.logs import (
    failure_catalogue,
)
from ansible_collections.trainyard.cluster.plugins.module_utils.recovery import (
    restart_policy,
)
from core_support import ROOT, RUN

STEPPED = [{"rank": 0, "last_step": {"step": 3}, "saved_count": 0}]
SAVED = [{"rank": 0, "last_step": {"step": 3}, "saved_count": 2}]


def attempt(number, cause, ranks=STEPPED, point=None, again=None, outcome="failed"):
    """One attempt of run.json."""
    resume = point and {"digest": point * 64}
    return {
        "number": number,
        "started": 1.0,
        "verdict": {"outcome": outcome, "cause": cause},
        "ranks": ranks,
        "resume": resume,
        "again": again,
    }


def decide(*attempts, limit=5, live=True):
    return restart_policy.decide({"attempts": list(attempts)}, limit, live)


AGAIN = {"again": True}


def test_every_cause_of_the_catalogue_has_a_class():
    assert set(failure_catalogue.every()) <= set(restart_policy.CLASSES)
    assert {kind for kind, _why in restart_policy.CLASSES.values()} == {
        restart_policy.AGAIN,
        restart_policy.TRAINED,
        restart_policy.NEVER,
    }


def test_the_page_has_the_table_as_it_is():
    text = (ROOT / "docs/runbooks/resume.md").read_text(encoding="utf-8")
    rows = dict(re.findall(r"^\| `(\w+)` \| (again|trained|never) \|", text, re.MULTILINE))
    assert rows == {cause: kind for cause, (kind, _why) in restart_policy.CLASSES.items()}


@pytest.mark.parametrize("cause", sorted(restart_policy.CLASSES))
def test_what_each_class_does(cause):
    kind, _why = restart_policy.restart_class(cause)
    stepped, before = decide(attempt(1, cause)), decide(attempt(1, cause, ranks=[]))
    assert (stepped["again"], before["again"]) == (
        kind != restart_policy.NEVER,
        kind == restart_policy.AGAIN,
    )
    assert stepped["again"] or stepped["reason"] == restart_policy.NEVER


def test_what_the_issue_asks_for():
    for cause in ("killed", "device_error", "connection_lost", "unreachable", "node_lost"):
        assert decide(attempt(1, cause, ranks=[]))["again"], cause
    for cause in (
        "python_exception",
        "nan",
        "bad_config",
        "data_missing",
        "import_error",
        "out_of_memory",
        "device_out_of_memory",
    ):
        assert not decide(attempt(1, cause))["again"], cause
    for cause in ("unknown", "hang", "a cause of tomorrow", None):
        assert (
            decide(attempt(1, cause))["again"] and not decide(attempt(1, cause, ranks=[]))["again"]
        ), cause


def test_what_a_person_stopped_stays_stopped():
    found = decide(attempt(1, "stopped_by_guard", outcome="stopped"))
    assert (found["again"], found["reason"], found["cause"]) == (False, "never", "stopped_by_user")
    assert found["code"] == "restart.cause_remains"
    assert "by hand" not in restart_policy.describe(found, RUN)


def test_what_completed_or_has_no_end_is_no_question():
    assert (
        decide(attempt(1, None, outcome="completed")) is None
        and decide({"number": 1, "verdict": None}) is None
        and decide() is None
    )


def test_the_limit_counts_restarts_over_the_whole_run():
    assert not decide(attempt(1, "killed"), limit=0)["again"]
    first, second = attempt(1, "killed", again=AGAIN), attempt(2, "killed", SAVED)
    assert decide(first, second, limit=2)["again"] and decide(first, second, limit=2)["number"] == 2
    found = decide(first, second, limit=1)
    assert (found["again"], found["reason"]) == (False, "max_restarts")
    assert found["why"].startswith("1 of 1 restarts")
    assert restart_policy.describe(decide(attempt(1, "killed"), limit=0), RUN) == ""


def test_it_waits_longer_as_long_as_nothing_comes_of_it():
    """10, 20, 40, ... seconds; a newer checkpoint begins from the front."""
    delays, attempts = [], [attempt(1, "killed", [], again=AGAIN)]
    for number in (2, 3):
        delays.append(decide(*attempts)["delay"])
        attempts.append(attempt(number, "killed", [], again=AGAIN))
    assert delays + [decide(*attempts)["delay"]] == [10, 20, 40]
    assert decide(*attempts, attempt(4, "killed", SAVED))["delay"] == 10


def test_another_controller_leaves_the_first_turn_to_the_one_that_started_it():
    assert (
        decide(dict(attempt(1, "killed"), started=None))["delay"]
        == 10 + restart_policy.SECOND_TURN_SECONDS
    )


def test_three_restarts_without_progress_end_it():
    same = [attempt(1, "killed", SAVED, again=AGAIN)] + [
        attempt(number, "killed", STEPPED, "a", AGAIN) for number in (2, 3)
    ]
    assert decide(*same)["again"]  # two of them
    found = decide(*same, attempt(4, "killed", STEPPED, "a"))
    assert (found["again"], found["reason"]) == (False, "no_progress")
    assert found["why"].startswith("3 restarts in a row")
    assert restart_policy.describe(found, RUN).endswith(
        f"by hand: ansible-playbook playbooks/resume.yml -e run={RUN}"
    )


def test_a_start_that_was_refused_is_no_restart_without_progress():
    refused = [attempt(number, "not_started", ranks=[], again=AGAIN) for number in (2, 3)]
    found = decide(attempt(1, "killed", ranks=SAVED, again=AGAIN), *refused, attempt(4, "killed"))
    assert (found["again"], found["delay"]) == (True, 20), found


def test_progress_is_what_the_next_one_could_go_on_from():
    """An attempt whose log says that it saved, and whose checkpoint is truncated each time, brings
    nothing.
    """
    truncated = [attempt(1, "killed", SAVED, again=AGAIN)] + [
        attempt(number, "killed", SAVED, "a", AGAIN) for number in (2, 3, 4)
    ]
    assert restart_policy.count_fruitless([*truncated, attempt(5, "killed", STEPPED, "a")]) == 4
    moving = [
        attempt(1, "killed", SAVED),
        *(attempt(number, "killed", SAVED, "abcd"[number - 2]) for number in (2, 3, 4)),
    ]
    assert (
        restart_policy.count_fruitless(moving) == 0
        and restart_policy.count_fruitless([*moving, attempt(5, "killed", STEPPED, "d")]) == 1
    )


def test_an_end_of_long_ago_starts_nothing():
    found = decide(attempt(1, "killed"), live=False)
    assert (found["again"], found["reason"]) == (False, "late")


def test_tries_of_a_restart_end():
    delays = [
        restart_policy.next_delay(number) for number in range(1, restart_policy.MAX_TRIES + 1)
    ]
    assert delays == [20, 40, 80, 160, None]
