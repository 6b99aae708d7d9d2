# SPDX-License-Identifier: Apache-2.0
"""Proofs: kept where nothing is in the way, bound to plan, boots and time, never in check mode."""

from __future__ import annotations

import copy
import os
import shutil
from pathlib import Path

import pytest
from ansible_collections.trainyard.cluster.plugins.module_utils.base.findings import finding
from ansible_collections.trainyard.cluster.plugins.module_utils.plan import compiler as core
from ansible_collections.trainyard.cluster.plugins.plugin_utils.preflight import proof_cache
from ansible_collections.trainyard.cluster.plugins.plugin_utils.start import proof_verdict
from core_support import gang

PLUGINS = Path(__file__).resolve().parents[3] / "plugins"


@pytest.fixture
def given():
    arguments = gang(count=2)
    made = core.compile_plan(**arguments)
    return {"kind": "network", "plan": made, "facts": arguments["facts"], "results": {}}


def judge(monkeypatch, *found):
    for kind in proof_cache.KINDS:
        monkeypatch.setitem(proof_verdict.JUDGES, kind, lambda made, results, allowed: list(found))


def kept(given, folder, now=None):
    key = proof_cache.proof_keys(given["plan"], given["facts"])[given["kind"]]
    path = proof_cache.path_of(str(folder), given["kind"], key)
    return (
        proof_cache.read_proof(
            str(folder), given["kind"], key, 1, os.path.getmtime(path) + 1 if now is None else now
        )
        if os.path.exists(path)
        else None
    )


def test_a_proof_is_kept_only_where_nothing_stops_and_the_look_was_full(
    run_action, monkeypatch, tmp_path, given
):
    arguments = dict(given, state_dir=str(tmp_path))
    judge(monkeypatch, finding("mtu.seen", "1500", level="note"))
    run_action("proof", arguments, check=True)
    run_action("proof", dict(arguments, depth="quick"))
    assert kept(given, tmp_path) is None
    result = run_action("proof", arguments)
    assert not result.get("failed") and [line.split() for line in result["lines"]] == [
        ["NOTE", "all", "nodes", "mtu.seen", "1500"]
    ]
    assert kept(given, tmp_path)["result"]["findings"][0]["check"] == "mtu"
    assert (os.stat(tmp_path / "proofs").st_mode & 0o777) == 0o700


def test_another_rehearsal_script_makes_another_proof(monkeypatch, tmp_path, given):
    keys = proof_cache.proof_keys(given["plan"], given["facts"])
    folder = tmp_path / "module_utils"
    shutil.copytree(PLUGINS / "module_utils/rehearsal", folder / "rehearsal")
    script = folder / "agent" / "rehearsal_rank.py"
    script.parent.mkdir()
    shutil.copy(PLUGINS / "module_utils/agent/rehearsal_rank.py", script)
    monkeypatch.setattr(
        proof_cache.rehearsal, "__file__", str(folder / "rehearsal" / "__init__.py")
    )
    assert proof_cache.proof_keys(given["plan"], given["facts"]) == keys
    for path in (script, folder / "rehearsal" / "outcome.py"):
        path.write_text(path.read_text() + "\n")
        changed = proof_cache.proof_keys(given["plan"], given["facts"])
        assert changed["rehearsal"] != keys["rehearsal"] and changed["network"] == keys["network"]
        keys = changed


def test_every_stop_is_said_however_many_there_are(run_action, monkeypatch, tmp_path, given):
    judge(
        monkeypatch,
        *[
            finding("reach.no_answer", "%d %s" % (number, "x" * 200), nodes="node%d" % number)
            for number in range(40)
        ],
    )
    said = run_action("proof", dict(given, state_dir=str(tmp_path)))["msg"]
    assert all("node%d " % number in said for number in range(40))


@pytest.mark.parametrize("kind, keeps", [("network", True), ("rehearsal", False)])
def test_a_rehearsal_that_showed_nothing_is_no_proof(
    run_action, monkeypatch, tmp_path, given, kind, keeps
):
    """A slow network is a proven one; ranks that did not come to an end in time have proven
    nothing, and nothing stops.
    """
    judge(monkeypatch, finding("x.slow", "slow", level="warn"))
    arguments = dict(given, kind=kind, state_dir=str(tmp_path))
    assert (
        not run_action("proof", arguments).get("failed")
        and (kept(arguments, tmp_path) is not None) == keeps
    )


def test_a_stop_fails_with_all_of_it_and_keeps_nothing(run_action, monkeypatch, tmp_path, given):
    judge(
        monkeypatch,
        finding(
            "reach.no_answer", "node1 does not reach node2\x1b[2J", "open it", ["node1", "node2"]
        ),
        finding("mtu.seen", "1500", level="note"),
    )
    arguments = dict(given, state_dir=str(tmp_path))
    result = run_action("proof", arguments)
    assert (
        result["failed"]
        and "node1 does not reach" in result["msg"]
        and all(code in result["msg"] for code in ("reach.no_answer", "mtu.seen"))
        and "\x1b" not in result["msg"]
    )
    assert result["stops"] == [{"check": "reach", "nodes": ["node1", "node2"]}]
    reported = run_action("proof", dict(arguments, report=True))
    assert not reported.get("failed") and len(reported["findings"]) == 2
    assert kept(given, tmp_path) is None


def test_a_proof_holds_for_its_hours_its_boots_and_its_plan(tmp_path, given):
    made, facts = given["plan"], given["facts"]
    keys = proof_cache.proof_keys(made, facts)
    for kind in proof_cache.KINDS:
        proof_cache.save_proof(str(tmp_path), kind, keys[kind], 1000.0, {})
        assert proof_cache.read_proof(str(tmp_path), kind, keys[kind], 1, 1000.0 + 3599)
        assert not proof_cache.read_proof(str(tmp_path), kind, keys[kind], 1, 1000.0 + 3601)
        assert not proof_cache.read_proof(str(tmp_path), kind, keys[kind], 0, 1000.0)
        assert not proof_cache.read_proof(
            str(tmp_path), kind, keys[kind], 1, 999.0
        )  # written by a clock that was ahead
    booted = copy.deepcopy(facts)
    booted["node2"]["boot"] = "another"
    assert not set(proof_cache.proof_keys(made, booted).values()) & set(keys.values())
    other = dict(made, argv=made["argv"] + ["-x"])
    assert (
        proof_cache.proof_keys(other, facts)["network"] == keys["network"]
        and proof_cache.proof_keys(other, facts)["rehearsal"] != keys["rehearsal"]
    )
    for allowed in ({"bandwidth": 10}, {"matrix": True}):
        asked = proof_cache.proof_keys(made, facts, allowed)
        assert asked["network"] != keys["network"] and asked["rehearsal"] == keys["rehearsal"]
    upgraded = copy.deepcopy(facts)
    upgraded["node1"]["installed"] = {"own": {"packages": {"paddlepaddle": "3.3.1"}}}
    assert proof_cache.proof_keys(made, upgraded)["rehearsal"] != keys["rehearsal"]
    slower = copy.deepcopy(upgraded)
    slower["node1"]["installed"]["own"]["seconds"] = (
        0.032  # how long a look took, and how deep it was, is no other Python
    )
    assert proof_cache.proof_keys(made, slower) == proof_cache.proof_keys(made, upgraded)
    moved = copy.deepcopy(made)
    moved["nodes"][1]["address"] = "10.0.0.9"
    assert proof_cache.proof_keys(moved, facts)["network"] != keys["network"]


def test_a_state_directory_that_cannot_be_written_costs_only_the_memory(
    run_action, monkeypatch, tmp_path, given
):
    judge(monkeypatch)
    (tmp_path / "file").write_text("")
    result = run_action("proof", dict(given, state_dir=str(tmp_path / "file" / "state")))
    assert not result.get("failed") and "cannot be kept" in result["lines"][0]


def test_old_proofs_go(monkeypatch, tmp_path):
    monkeypatch.setattr(proof_cache, "MOST_PROOFS", 3)
    for number in range(6):
        proof_cache.save_proof(str(tmp_path), "network", "%064x" % (number << 200), 1.0, {})
    assert len(os.listdir(tmp_path / "proofs")) == 3
    # Another command has removed one of them in between.
    monkeypatch.setattr(
        proof_cache.os, "listdir", lambda _folder: ["%d.json" % n for n in range(9)]
    )
    proof_cache.save_proof(str(tmp_path), "network", "0" * 64, 1.0, {})
