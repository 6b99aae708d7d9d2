# SPDX-License-Identifier: Apache-2.0
"""checkpoint_fetch: copied by real rsync from the node itself or from others; and what a point adds to a plan."""

from __future__ import annotations

import json
import os
import shutil
import sys
import time
import tracemalloc
from pathlib import Path

import checkpoint_fetch as module
import pytest
import yaml
from ansible_collections.trainyard.cluster.plugins.module_utils.attempts import mesh_credential
from ansible_collections.trainyard.cluster.plugins.module_utils.base import manifest
from ansible_collections.trainyard.cluster.plugins.module_utils.checkpoints import (
    finder,
)
from ansible_collections.trainyard.cluster.plugins.module_utils.inputs import tree_install
from ansible_collections.trainyard.cluster.plugins.module_utils.mesh import mesh_gate
from ansible_collections.trainyard.cluster.plugins.module_utils.plan import compiler, resume_inputs
from ansible_collections.trainyard.cluster.plugins.module_utils.recovery import (
    bounded_rsync,
    checkpoint_transfer,
)
from ansible_collections.trainyard.cluster.plugins.plugin_utils.inputs import describe
from ansible_collections.trainyard.cluster.plugins.plugin_utils.plan import (
    readiness,
    render,
    resume_config,
)
from ansible_collections.trainyard.cluster.plugins.plugin_utils.preflight import proof_cache
from ansible_collections.trainyard.cluster.plugins.plugin_utils.suites import suite_file
from core_support import RUN, compiled, gang, program, put

RULE = suite_file.load("paddledetection")["resume"]
POINT = {
    "attempt": 1, "name": "4", "stem": "4", "digest": "a" * 64, "epoch": 5, "step": 60, "lr": 0.01,
    "note": "", "home": "/runs/r/attempt-1/checkpoint",
    "files": {"4.pdopt": ["f", 1, "b" * 64], "4.pdparams": ["f", 2, "c" * 64]},
    "sources": [{"source": "node1", "path": "/n"}],
}  # fmt: skip


# The same with the digest that its files have, as a node says it.
TRUE = dict(
    POINT,
    digest=manifest.digest(POINT["files"]),
    instead=False,
    saved=1.0,
    first="node1",
    path="/n",
)


# --- brought


@pytest.fixture
def holder(tmp_path, monkeypatch):
    """A node whose home is empty, a checkpoint in another's attempt, and a ssh that starts the
    other's gate here, unless the node is called down.
    """
    monkeypatch.setenv("HOME", str(tmp_path / "home"))

    def hold(name, files):
        base = tmp_path / name / ".trainyard"
        put(base / "mesh", {"gate.py": Path(mesh_gate.__file__).read_text()})
        mesh_credential.register(str(tmp_path / name), str(base))
        attempt = base / "runs" / RUN / "attempt-1"
        plan_text = json.dumps({"suite": {"checkpoints": {"folders": ["output"]}}})
        put(
            attempt,
            {"attempt.json": json.dumps({"run": RUN, "attempt": 1}), "plan.json": plan_text},
        )
        return put(attempt / "output", files)

    root = hold("node2", {"4.pdparams": "parameters", "4.pdopt": "optimizer", "3.pdopt": "older"})
    entries = manifest.scan(root, ["4.pdparams", "4.pdopt"])
    shell = (
        '[ "$3" = -G ] && exit 1\necho "$@" >> $LOG\nwhile [ "$1" != "${1#-}" ]; do shift 2; done\n[ "$1" = down ] && {'
        ' echo "ssh: connect to host down port 22: No route to host" >&2; exit 255; }\nNODE=$1; shift\nSSH_ORIGINAL_COMMAND="$*" exec'
        f" {sys.executable} -I {tmp_path}/$NODE/.trainyard/mesh/gate.py node1"
    )
    monkeypatch.setenv("PATH", program(tmp_path / "bin", "ssh", shell), prepend=os.pathsep)
    point = dict(POINT, files=entries, digest=manifest.digest(entries))
    return root, point, str(tmp_path / "bin" / "ssh.log"), hold


def bring(run_module, point, *sources, **more):
    given = dict(point, sources=[{"source": name, "path": path} for name, path in sources])
    return run_module(module, {"node": "node1", "point": given}, **more)


def place_of(tmp_path, point):
    return tree_install.tree_paths(
        str(tmp_path / "home" / ".trainyard"), "checkpoints", point["digest"]
    )[0]


def test_brought_once_from_another_node(run_module, holder, tmp_path):
    root, point, log, _hold = holder
    assert bring(run_module, point, ("node2", root), check=True)[
        "brought"
    ] is True and not os.path.exists(place_of(tmp_path, point))
    found = bring(run_module, point, ("home", "/nowhere"), ("node2", root))
    assert (found["changed"], found["brought"], found["said"]) == (True, True, [])
    assert manifest.scan(place_of(tmp_path, point)) == point["files"] and not os.access(
        place_of(tmp_path, point) + "/4.pdopt", os.W_OK | os.X_OK
    )
    assert bring(run_module, point, ("node2", root))["changed"] is False
    with open(log, encoding="utf-8") as handle:
        words = handle.read().splitlines()
    assert (
        len(words) == 1
        and "/.trainyard/mesh/config -o BatchMode=yes -o ConnectTimeout=5" in words[0]
        and words[0].endswith(f" node2 pull {RUN} 1 output --server --daemon .")
    )


def test_its_own_attempt_comes_first(run_module, holder, tmp_path):
    root, point, log, _hold = holder
    assert bring(run_module, point, ("down", root), ("node1", root))["brought"] is True
    assert not os.path.exists(log)


def test_a_file_of_its_own_attempt_with_other_bytes_stays_as_it_is(run_module, holder, tmp_path):
    root, point, _log, hold = holder
    own = Path(hold("node1", {"4.pdparams": "parameters", "4.pdopt": "Optimizer"}))
    info = os.stat(Path(root) / "4.pdopt")
    os.utime(own / "4.pdopt", ns=(info.st_atime_ns, info.st_mtime_ns))
    found = bring(run_module, point, ("node1", str(own)), ("node2", root))
    assert found["brought"] is True and manifest.scan(place_of(tmp_path, point)) == point["files"]
    kept = os.stat(own / "4.pdopt")
    assert (own / "4.pdopt").read_text() == "Optimizer"
    assert (kept.st_mode & 0o200, kept.st_mtime_ns) == (0o200, info.st_mtime_ns)


@pytest.mark.parametrize("size", [None, 3])
def test_its_own_folder_is_passed_over_where_a_file_is_missing_or_of_another_size(
    run_module, holder, tmp_path, size
):
    root, point, _log, _hold = holder
    own = tmp_path / "own"
    own.mkdir()
    shutil.copy2(Path(root) / "4.pdparams", own)
    if size:
        (own / "4.pdopt").write_text("x" * size)
    found = bring(run_module, point, ("node1", str(own)), ("node2", root))
    assert (found["brought"], found["said"]) == (True, [])


def test_the_next_source_is_asked_where_one_is_down_or_has_other_bytes(
    run_module, holder, tmp_path
):
    root, point, _log, hold = holder
    other = Path(hold("node3", {"4.pdparams": "parameters", "4.pdopt": "optimizer"}))
    info = os.stat(Path(root) / "4.pdopt")
    (other / "4.pdopt").write_text(
        "Optimizer"
    )  # of the same size and time: rsync's quick look takes it for the right one
    os.utime(other / "4.pdopt", ns=(info.st_atime_ns, info.st_mtime_ns))
    found = bring(run_module, point, ("down", root), ("node3", str(other)), ("node2", root))
    assert found["brought"] is True and manifest.scan(place_of(tmp_path, point)) == point["files"]
    down, other_bytes = found["said"]
    assert down.startswith("down: ") and other_bytes.startswith("node3: ")
    assert "4.pdopt: other content" in other_bytes and " 9 bytes" in other_bytes


def test_a_node_that_no_call_reaches_is_called_once(run_module, holder):
    root, point, log, _hold = holder
    found = bring(run_module, point, ("down", root), ("down", root + "/more"), ("node2", root))
    assert found["brought"] is True and [text[:5] for text in found["said"]] == ["down:"]
    with open(log, encoding="utf-8") as handle:
        assert [" down " in line for line in handle] == [True, False]


def test_where_no_node_can_give_it_nothing_is_left(run_module, holder, tmp_path):
    root, point, _log, _hold = holder
    found = bring(run_module, point, ("down", root), ("home", root))
    assert (found["changed"], found["brought"]) == (False, False) and len(found["said"]) == 1
    assert os.listdir(tmp_path / "home" / ".trainyard" / "staging") == []
    files = dict(point["files"], **{"4.pdopt": ["f", 9, "0" * 64]})
    other = dict(point, files=files, digest=manifest.digest(files))
    assert "arrived changed" in bring(run_module, other, ("node2", root))["said"][0]


def staged(tmp_path):
    """Return how many bytes lie in the directories of copies that are not whole yet."""
    folder = tmp_path / "home" / ".trainyard" / "staging"
    return sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())


HOSTILE_RSYNC = {
    # A receiver that a hostile daemon has made write more than was announced, in one file, in many,
    # or under other names.
    "one file": "exec head -c 300000000 /dev/zero > $TO/4.pdopt",
    "another name": "exec head -c 300000000 /dev/zero > $TO/.4.pdopt.Xa12",
    "many files": (
        "i=0; while [ $i -lt 2000 ]; do head -c 9 /dev/zero > $TO/.f.$i; i=$((i+1)); done"
    ),
    "fast enough for no look": "head -c 900000 /dev/zero > $TO/4.pdopt",
}


@pytest.mark.parametrize("lie", HOSTILE_RSYNC)
def test_a_source_that_sends_more_than_it_announced_leaves_nothing_and_the_next_is_asked(
    run_module, holder, tmp_path, monkeypatch, lie
):
    root, point, _log, _hold = holder
    real = shutil.which("rsync")
    honest = f'case "$*" in *node2::*) exec {real} "$@";; esac\n'
    program(
        tmp_path / "bin",
        "rsync",
        honest + "for TO; do :; done\ncat > /dev/null\n" + HOSTILE_RSYNC[lie],
    )
    found = bring(run_module, point, ("node3", root))
    (said,) = found["said"]
    assert found["brought"] is False and staged(tmp_path) == 0
    assert said.startswith("node3: ") and "more than" in said
    found = bring(run_module, point, ("node3", root), ("node2", root))
    assert found["brought"] is True and manifest.scan(place_of(tmp_path, point)) == point["files"]


def test_no_file_grows_beyond_what_was_announced(holder, tmp_path, monkeypatch):
    """The kernel ends the writer, so that not even what goes between two looks fills the disk."""
    _root, point, _log, _hold = holder
    place = put(tmp_path / "s", {"4.pdparams": ""})
    monkeypatch.setattr(bounded_rsync, "CHECK_SECONDS", 600)
    with pytest.raises(bounded_rsync.Excess):
        bounded_rsync.run(
            ["sh", "-c", f"exec head -c 300000000 /dev/zero > {place}/4.pdopt"],
            place,
            point["files"],
            60,
        )
    assert os.path.getsize(place + "/4.pdopt") <= bounded_rsync.LEAST_LIMIT


def test_what_a_source_prints_and_how_long_it_takes_is_bounded(holder, tmp_path):
    _root, point, _log, _hold = holder
    began = time.monotonic()
    tracemalloc.start()
    said = bounded_rsync.run(
        ["sh", "-c", "yes | tr -d '\\n'"], put(tmp_path / "s", {}), point["files"], 2
    )
    most = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert said and time.monotonic() - began < 15 and most < 1 << 20
    said = bounded_rsync.run(
        ["sh", "-c", "yes | head -c 50000000 | tr -d '\\n'; exit 3"],
        put(tmp_path / "s", {}),
        point["files"],
        60,
    )
    assert len(said) <= bounded_rsync.OUTPUT_BYTES


def test_a_source_that_is_slow_leaves_time_for_the_next(run_module, holder, tmp_path, monkeypatch):
    root, point, _log, _hold = holder
    program(
        tmp_path / "bin",
        "rsync",
        'case "$*" in *node2::*) exec {} "$@";; esac\nexec sleep 600'.format(shutil.which("rsync")),
    )
    monkeypatch.setattr(checkpoint_transfer, "MOST_SECONDS", 8)
    began = time.monotonic()
    found = bring(run_module, point, ("node3", root), ("node2", root))
    assert found["brought"] is True and len(found["said"]) == 1 and time.monotonic() - began < 30


def test_a_file_that_is_larger_than_announced_is_not_asked_for(run_module, holder, tmp_path):
    root, point, _log, hold = holder
    large = hold("node3", {"4.pdparams": "parameters", "4.pdopt": "o" * 5000})
    found = bring(run_module, point, ("node3", large))
    assert found["brought"] is False and staged(tmp_path) < 5000 and "4.pdopt" in found["said"][0]


def test_a_checkpoint_that_does_not_fit_is_not_begun(run_module, holder, tmp_path):
    root, point, log, _hold = holder
    files = dict(point["files"], **{"4.pdopt": ["f", 1 << 44, "0" * 64]})
    found = bring(
        run_module, dict(point, files=files, digest=manifest.digest(files)), ("node2", root)
    )
    assert found["brought"] is False and len(found["said"]) == 1 and not os.path.exists(log)


@pytest.mark.parametrize("age, gone", [(checkpoint_transfer.OLD_SECONDS + 9, True), (0, False)])
def test_a_copy_that_was_never_whole_goes_when_it_is_old(tmp_path, age, gone):
    base = tmp_path / "base"
    put(base / "staging" / ("checkpoints-" + "1" * 16), {"sub/.4.pdopt.Xa12": "x"})
    put(base / "staging" / ("code-" + "1" * 16), {"x": "x"})
    checkpoint_transfer.remove_old_copies(lambda _words: (0, "", ""), str(base), time.time() + age)
    assert (
        sorted(os.listdir(base / "staging"))
        == ["checkpoints-" + "1" * 16, "code-" + "1" * 16][gone:]
    )


@pytest.mark.parametrize("digest", ["0" * 64, "../../../x", "/etc/cron.d/x", "", None])
def test_a_digest_that_is_not_that_of_the_files_names_no_directory(
    run_module, holder, tmp_path, digest
):
    root, point, _log, _hold = holder
    assert bring(run_module, dict(point, digest=digest), ("node2", root))["failed"] is True
    assert not (tmp_path / "home").exists()


@pytest.mark.parametrize(
    "holds, gone", [("", True), (f"trainyard-{RUN}-1.service loaded active running d", False)]
)
def test_copies_that_nobody_asks_for_go_unless_an_attempt_holds_the_node(
    run_module, holder, tmp_path, holds, gone
):
    root, point, _log, _hold = holder
    program(tmp_path / "bin", "systemctl", f"echo '{holds}'")
    folder = tmp_path / "home" / ".trainyard" / "checkpoints"
    for name in ("0" * 16, "1" * 16, "mine"):
        put(folder / name, {"3.pdopt": "older"})
        put(folder, {name + ".manifest.json": "{}", name + ".scan.json": "{}"})
        tree_install.protect(str(folder / name))
        os.utime(folder / name, (1, 1) if name != "1" * 16 else None)
    assert bring(run_module, point, ("node1", root))["brought"] is True
    left = {name.split(".")[0] for name in os.listdir(folder)}
    assert left == {"1" * 16, "mine", point["digest"][:16]} | (set() if gone else {"0" * 16})


# --- in the plan


def resumed(point=POINT, **given):
    return compiled(resume=point, **given)


def test_the_suites_own_words_and_a_link_that_is_the_same_on_every_node():
    bare, made = compiled(), resumed()
    assert made["script"] == [
        *bare["script"][:3],
        *bare["script"][3:],
        "-r",
        "resume/aaaaaaaaaaaaaaaa/4",
    ]
    assert made["links"] == dict(
        bare["links"], **{"resume/aaaaaaaaaaaaaaaa": "checkpoints/aaaaaaaaaaaaaaaa"}
    )
    assert made["resume"] == {
        "attempt": 1, "name": "4", "digest": "a" * 64, "epoch": 5, "step": 60, "lr": 0.01,
        "unresumed": compiler.sha256(bare),
    }  # fmt: skip
    assert bare["resume"] is None and bare["suite"]["resume"] == {
        key: RULE[key] for key in ("holds", "names", "state")
    }
    assert readiness.required_trees(made)["checkpoints"] == ["a" * 64]
    facts = gang()["facts"]
    facts["node1"]["trees"]["checkpoints/aaaaaaaaaaaaaaaa"] = {
        "ok": True,
        "present": True,
        "differences": [],
    }
    todo = readiness.pending_steps(made, facts, 0)
    assert todo["checkpoints"] == todo["trees"] == ["node2"]
    shown = render.summary(made, todo)
    (note,) = [line for line in shown if line.startswith("note: resumed ")]
    values = ["4 of attempt 1", "5 epochs done", "60 steps done", "rate 0.01", "digest " + "a" * 12]
    parts = note.split(", ")
    assert len(parts) == 5 and all(map(str.endswith, parts, values))
    assert any(line.endswith(": checkpoints on node2") for line in shown)


def test_where_it_lies_now_is_no_part_of_the_plan_and_a_rehearsal_is_not_repeated_for_it():
    elsewhere = resumed(dict(POINT, sources=[{"source": "home", "path": "/h"}], home="/elsewhere"))
    assert compiler.sha256(resumed()) == compiler.sha256(elsewhere) != compiler.sha256(compiled())
    facts = gang()["facts"]
    assert proof_cache.proof_keys(resumed(), facts) == proof_cache.proof_keys(compiled(), facts)
    assert proof_cache.proof_keys(
        resumed(job={"env": {"X": "1"}}), facts
    ) != proof_cache.proof_keys(compiled(), facts)


def test_a_constant_rate_is_the_configs():
    made = resumed(
        dict(POINT, lr=None), config={"files": [], "epochs": 300, "learning_rate": 0.002}
    )
    assert made["resume"]["lr"] == 0.002


@pytest.mark.parametrize(
    "name, point, config, words",
    [
        ("paddledetection", {"epoch": 5}, {"epochs": 5},
        "4 of attempt 1 has reached the last epoch (5 of 5): nothing is left to train; more of it is"),
        ("paddleocr", {"epoch": 7}, {"epochs": 5}, "a larger Global.epoch_num"),
        ("mindocr", {"epoch": 5}, {"epochs": 5}, "a larger scheduler.num_epochs"),
        ("paddleseg", {"epoch": None, "step": 80}, {"iterations": 80},
        "has reached the last iteration (80 of 80)"),
    ],
)  # fmt: skip
def test_a_training_that_has_reached_its_end_is_refused(name, point, config, words):
    suite, point = suite_file.load(name), dict(POINT, **point)
    assert words in resume_inputs.resume_problem(point, suite, config)
    more = {key: value + 3 for key, value in config.items()}
    assert (
        resume_inputs.resume_problem(point, suite, more) is None
        and resume_inputs.resume_problem(point, suite, {}) is None
    )
    if name == "paddledetection":
        with pytest.raises(compiler.PlanError, match="has reached the last epoch"):
            resumed(point, config=dict(config, files=[]))


def test_a_suite_that_knows_no_way_is_refused():
    said = resume_inputs.resume_problem(POINT, dict(suite_file.load("mindocr"), resume={}), {})
    assert "does not say how" in said


@pytest.mark.parametrize(
    "given",
    [
        {"model": {"type": "rec", "name": "a: b", "lr": 1e-3}, "rows": ["0123", None]},
        {"model": {"resume": False}},
    ],
)
def test_mindocrs_configs_without_the_key_get_a_copy_that_has_it(given):
    suite, point = suite_file.load("mindocr"), dict(POINT, stem="train_resume")
    copy = resume_config.config_file(suite, "configs/rec/crnn/a.yaml", given, point)
    found = resume_inputs.compile_resume(point, suite, {"config": {}, "resume_config": copy})
    path = "resume/aaaaaaaaaaaaaaaa/train_resume.ckpt"
    if "resume" in given["model"]:
        assert (
            copy is None
            and found["overrides"] == {"model.resume": path}
            and found["config"] is None
        )
        return
    assert yaml.safe_load(copy["text"]) == {
        "model": dict(given["model"], resume=path),
        "rows": given["rows"],
    }
    assert (
        found["overrides"] == {}
        and found["files"] == {"configs/rec/crnn/a.resumed.yaml": copy["text"]}
        and found["config"] == copy["path"]
    )
    made = resumed(point, resume_config=copy)
    assert (
        made["script"][2] == "configs/rec/crnn/a.resumed.yaml" and made["files"] == found["files"]
    )


def test_the_tree_of_a_point_is_that_of_its_copy_at_home(tmp_path):
    files = {"4.pdopt": ["f", 1, "b" * 64]}
    point = dict(POINT, files=files, digest=manifest.digest(files))
    (tree,) = describe.checkpoint_tree(point, str(tmp_path))
    assert tree == {
        "kind": "checkpoints",
        "name": "4 of attempt 1",
        "digest": point["digest"],
        "source": point["home"],
        "files": 1,
        "bytes": 1,
    }
    assert (
        tmp_path / "manifests" / (point["digest"] + ".files")
    ).read_text() == "./4.pdopt\n" and describe.checkpoint_tree({}, str(tmp_path)) == []
    assert finder.describe_point(dict(POINT, sources=[])).split(", ")[:2] == [
        "4 of attempt 1",
        "5 epochs done",
    ]
