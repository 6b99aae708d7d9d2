# SPDX-License-Identifier: Apache-2.0
"""Which checkpoint a run is resumed from: the newest complete one of all attempts and places, of
every suite.
"""

from __future__ import annotations

import itertools
import json
import os
import pickle
import shutil

import pytest
from ansible_collections.trainyard.cluster.plugins.module_utils.base import manifest
from ansible_collections.trainyard.cluster.plugins.module_utils.checkpoints import (
    finder,
)
from ansible_collections.trainyard.cluster.plugins.plugin_utils.checkpoints import (
    resume_point_choice,
)
from ansible_collections.trainyard.cluster.plugins.plugin_utils.suites import suite_file
from core_support import ROOT, RUN

REAL = ROOT / "tests" / "fixtures" / "checkpoints"
CLOCK = itertools.count(1_000_000)
RULES = {name: suite_file.load(name)["resume"] for name in suite_file.names()}


def pickled(**values):
    return pickle.dumps(dict(values, weight=b"w" * 5000), protocol=4)


def detection(epochs, name=None):
    """The files of a PaddleDetection snapshot as they are written: parameters, EMA, optimizer."""
    name = name or str(epochs - 1)
    options = pickled(
        last_epoch=epochs, LR_Scheduler={"last_epoch": epochs * 12, "last_lr": 0.5 / epochs}
    )
    return {
        name + ".pdparams": pickled(of=epochs),
        name + ".pdema": pickled(ema=epochs),
        name + ".pdopt": options,
    }


def recognition(epochs, name="latest", step=None):
    states = pickle.dumps(
        {"best_model_dict": {"acc": 0.5}, "epoch": epochs, "global_step": step or epochs * 64},
        protocol=2,
    )
    return {
        name + ".pdopt": pickled(LR_Scheduler={"last_lr": 0.003}),
        name + ".pdparams": pickled(of=epochs),
        name + ".states": states,
    }


def segmentation(step):
    return {
        "iter_%d/model.%s" % (step, end): (REAL / "paddle/iter_6" / ("model." + end)).read_bytes()
        for end in ("pdparams", "pdopt")
    }


def save(folder, files):
    """Write files one after the other, each later than the last."""
    for name, data in files.items():
        path = os.path.join(folder, name)
        os.makedirs(os.path.dirname(path), exist_ok=True)
        with open(path, "wb") as handle:
            handle.write(data)
        os.utime(path, (next(CLOCK),) * 2)
    return folder


@pytest.fixture
def attempt(tmp_path):
    """Lay out an attempt of a run on a node: attempt(node, number, suite, *saved in this order);
    return the run's directory there.
    """

    def make(node, number, suite, *saved, first="node1", folder="output"):
        run = tmp_path / node / "runs" / RUN
        home = run / ("attempt-%d" % number)
        home.mkdir(parents=True, exist_ok=True)
        plan = {
            "suite": {"checkpoints": {"folders": [folder]}, "resume": RULES[suite]},
            "nodes": [{"name": first}, {"name": "node2"}],
        }
        (home / "plan.json").write_text(json.dumps(plan))
        for files in saved:
            save(str(home / folder), files)
        return str(run)

    return make


def chosen(**runs):
    """Choose among {node: directory of the run there}; `home` is the controller's."""
    return resume_point_choice.choose(
        {name: finder.find_in_run(path, {}, name == "home") for name, path in runs.items()}
    )


def cut(run, path, size):
    path = os.path.join(run, path)
    info = os.stat(path)
    os.truncate(path, int(info.st_size * size) if size < 1 else info.st_size - 1)
    os.utime(path, ns=(info.st_atime_ns, info.st_mtime_ns))


def numbers(point):
    return point["name"], point["epoch"], point["step"], point["lr"]


@pytest.mark.parametrize(
    "suite, saved, expected",
    [
        ("paddledetection", [detection(1), detection(2)], ("1", 2, 24, 0.25)),
        ("paddledetection", [detection(2), detection(3, "model_final"), detection(3, "best_model")],
        ("best_model", 3, 36, 0.5 / 3)),
        ("paddleocr", [recognition(3, "iter_epoch_3"), recognition(4, "best_accuracy", 200),
        recognition(4)], ("latest", 4, 256, 0.003)),
        ("paddleseg", [segmentation(8), segmentation(10)],
        ("iter_10", None, 10, pytest.approx(0.00406, abs=1e-5))),
        ("mindocr", [{"train_resume.ckpt": (REAL / "mindspore/train_resume.ckpt").read_bytes(),
        "e9.ckpt": b"x"}], ("train_resume", 1, 3, pytest.approx(0.2))),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)  # fmt: skip
def test_the_newest_of_every_suite(attempt, suite, saved, expected):
    run = attempt("node1", 1, suite, *saved)
    point, skipped = chosen(node1=run)
    assert numbers(point) == expected and skipped == []
    assert point["path"] == os.path.join(run, "attempt-1", "output") and point["source"] == "node1"
    assert point["files"] == manifest.scan(point["path"], list(point["files"])) and point[
        "digest"
    ] == manifest.digest(point["files"])


@pytest.mark.parametrize("ending", ["pdparams", "pdema", "pdopt"])
@pytest.mark.parametrize("size", [0, 0.5, 1])
def test_a_truncated_newest_one_is_named_and_the_one_before_is_taken(attempt, ending, size):
    run = attempt("node1", 1, "paddledetection", detection(1), detection(2))
    cut(run, f"attempt-1/output/1.{ending}", size)
    before = sorted(os.listdir(run + "/attempt-1/output"))
    point, skipped = chosen(node1=run)
    assert point["name"] == "0" and [(row["node"], row["name"]) for row in skipped] == [
        ("node1", "1")
    ]
    code = "checkpoint.cut_off" if size else "checkpoint.empty_file"
    assert skipped[0]["code"] == code and skipped[0]["why"].startswith(f"1.{ending} ")
    assert sorted(os.listdir(run + "/attempt-1/output")) == before


def test_a_missing_file_and_a_mixture_of_two_saves_are_named(attempt):
    run = attempt("node1", 1, "paddledetection", detection(1), detection(2), detection(3))
    os.unlink(run + "/attempt-1/output/2.pdopt")
    attempt("node1", 2, "paddleocr", recognition(3, "iter_epoch_3"), recognition(4))
    save(
        run + "/attempt-2/output", {"latest.pdopt": pickled(of=5)}
    )  # the save of epoch 5 was cut after its first file
    point, skipped = chosen(node1=run)
    assert numbers(point)[:2] == ("iter_epoch_3", 3)
    later, missing = skipped
    assert (later["code"], missing["code"]) == ("checkpoint.mixed_saves", "checkpoint.file_missing")
    assert [word for word in later["why"].split() if "." in word] == [
        "latest.pdopt",
        "latest.states",
    ]
    assert "2.pdopt" in missing["why"]


def test_what_was_saved_beside_its_place_belongs_to_nothing(attempt):
    saved = {"train_resume.tmp": b"x" * 99, "train_resume.json": b"{}"}
    point, skipped = chosen(node1=attempt("node1", 1, "mindocr", saved))
    assert point is None and skipped[0]["code"] == "checkpoint.file_missing"
    assert "train_resume.ckpt" in skipped[0]["why"]
    whole = {"train_resume.ckpt": (REAL / "mindspore/train_resume.ckpt").read_bytes()}
    assert sorted(chosen(node1=attempt("node1", 1, "mindocr", whole))[0]["files"]) == [
        "train_resume.ckpt",
        "train_resume.json",
    ]


def test_links_and_odd_names_are_no_checkpoints(attempt, tmp_path):
    run = attempt(
        "node1",
        1,
        "paddledetection",
        detection(1),
        {"9 9.pdparams": pickled(), "9 9.pdopt": pickled()},
    )
    for ending in ("pdparams", "pdopt"):
        save(str(tmp_path / "elsewhere"), {"7." + ending: pickled(last_epoch=7)})
        os.symlink(
            str(tmp_path / "elsewhere" / ("7." + ending)), run + "/attempt-1/output/7." + ending
        )
    point, skipped = chosen(node1=run)
    assert point["name"] == "0" and skipped == []


def test_what_is_above_the_bounds_is_left_out_and_named(attempt, monkeypatch):
    """A training may write names without end; the newest are looked at."""
    run = attempt("node1", 1, "paddledetection", *(detection(number) for number in range(1, 8)))
    attempt("node1", 3, "paddledetection", detection(9))
    monkeypatch.setattr(finder, "MOST_READ", 3)
    for number in range(3, 8):
        cut(run, "attempt-1/output/%d.pdopt" % (number - 1), 0.5)
    point, skipped = chosen(node1=run)
    assert point["attempt"] == 3 and [row["name"] for row in skipped if row["name"]] == [
        "4",
        "5",
        "6",
    ]
    bound = [row for row in skipped if not row["name"]]
    assert [(row["attempt"], row["code"]) for row in bound] == [(1, "checkpoint.not_read")]
    assert bound[0]["why"].startswith("4 ")
    monkeypatch.setattr(finder, "MOST_ATTEMPTS", 1)
    (older,) = chosen(node1=run)[1]
    assert (older["attempt"], older["code"]) == (1, "checkpoint.not_read")
    assert older["why"].startswith("1 older attempts ")
    monkeypatch.setattr(finder, "MOST_ENTRIES", 2)
    assert any(
        row["code"] == "checkpoint.too_many_files" and row["why"].startswith("output ")
        for row in chosen(node1=run)[1]
    )


def test_what_lies_in_the_folders_is_bounded_as_well(attempt, monkeypatch):
    run = attempt("node1", 1, "paddleseg", segmentation(2), segmentation(4))
    monkeypatch.setattr(finder, "MOST_ENTRIES", 6)
    assert chosen(node1=run)[0]["step"] == 4 and chosen(node1=run)[1] == []
    monkeypatch.setattr(finder, "MOST_ENTRIES", 5)
    assert [row["name"] for row in chosen(node1=run)[1]] == [""]


@pytest.mark.parametrize(
    "suite, save_one", [("paddledetection", detection), ("paddleseg", segmentation)]
)
def test_no_more_names_are_read_than_the_bound_allows(attempt, monkeypatch, suite, save_one):
    run = attempt("node1", 1, suite, *(save_one(number) for number in (2, 4, 6)))
    monkeypatch.setattr(finder, "MOST_ENTRIES", 4)
    names, asked = finder._names, []
    monkeypatch.setattr(
        finder, "_names", lambda folder, most: asked.append(most) or names(folder, most)
    )
    root = os.open(run + "/attempt-1", os.O_RDONLY)
    rows, cut_off = finder.list_candidates(root, "output", RULES[suite])
    os.close(root)
    assert (
        cut_off
        and sum(len(files) for _instead, _saved, _name, files in rows) <= 5
        and max(asked) <= 5
    )


def test_the_best_one_counts_only_where_there_is_no_other(attempt):
    run = attempt("node1", 1, "paddleocr", recognition(2), recognition(3, "best_accuracy", 140))
    assert numbers(chosen(node1=run)[0])[:2] == ("latest", 2)
    attempt("node1", 2, "paddleocr", recognition(5, "best_accuracy", 300))
    assert numbers(chosen(node1=run)[0])[:2] == ("latest", 2)
    cut(run, "attempt-1/output/latest.states", 0.5)
    point, skipped = chosen(node1=run)
    assert (
        point["name"] == "best_accuracy"
        and "to its end" in point["note"]
        and skipped[0]["name"] == "latest"
    )


def test_of_several_attempts_the_furthest_counts(attempt):
    run = attempt("node1", 1, "paddledetection", detection(4))
    attempt("node1", 2, "paddledetection", detection(5), detection(6))
    attempt("node1", 3, "paddledetection")
    assert (chosen(node1=run)[0]["attempt"], chosen(node1=run)[0]["epoch"]) == (2, 6)
    shutil.rmtree(run + "/attempt-2")
    attempt(
        "node1", 2, "paddledetection", detection(1)
    )  # begun anew while the node that held the others was away
    assert (chosen(node1=run)[0]["attempt"], chosen(node1=run)[0]["epoch"]) == (1, 4)


def test_equal_ones_in_several_places_are_one_and_a_node_is_asked_first(attempt, tmp_path):
    run = attempt("node1", 1, "paddledetection", detection(1))
    home = tmp_path / "home" / RUN
    shutil.copytree(run, home)
    os.rename(home / "attempt-1" / "output", home / "attempt-1" / "checkpoint")
    shutil.copytree(tmp_path / "node1", tmp_path / "node2")
    point, skipped = chosen(home=str(home), node2=str(tmp_path / "node2" / "runs" / RUN), node1=run)
    assert [each["source"] for each in point["sources"]] == [
        "node1",
        "node2",
        "home",
    ] and skipped == []
    only, _none = chosen(home=str(home), node1=str(tmp_path / "nothing"))
    assert (
        only["source"] == "home"
        and only["digest"] == point["digest"]
        and only["path"].endswith("attempt-1/checkpoint")
    )
    os.unlink(
        home / "attempt-1" / "plan.json"
    )  # a run directory of before: the run's plan says how checkpoints look
    shutil.copyfile(run + "/attempt-1/plan.json", home / "plan.json")
    assert chosen(home=str(home))[0]["digest"] == point["digest"]


def test_different_bytes_under_one_name_are_named_and_rank_0s_are_taken(attempt):
    run = attempt("node1", 1, "paddledetection", detection(2))
    other = attempt(
        "node2", 1, "paddledetection", dict(detection(2), **{"1.pdparams": pickled(of="another")})
    )
    save(other + "/attempt-1/output", {"1.pdopt": detection(2)["1.pdopt"]})
    point, skipped = chosen(node1=run, node2=other)
    assert point["source"] == "node1" and [each["source"] for each in point["sources"]] == ["node1"]
    assert [row["node"] for row in skipped] == ["node2"]
    assert skipped[0]["code"] == "checkpoint.differs" and "node1" in skipped[0]["why"]
    cut(run, "attempt-1/output/1.pdparams", 0.5)
    assert chosen(node1=run, node2=other)[0]["source"] == "node2"


def test_nothing_to_resume_from(attempt):
    run = attempt("node1", 1, "paddledetection")
    assert chosen(node1=run) == (None, []) and chosen(node1=run + "-other") == (None, [])
    assert [line[:31] for line in resume_point_choice.describe_choice(None, [])] == [
        "there is no complete checkpoint"
    ]
    with open(run + "/attempt-1/plan.json", "w", encoding="utf-8") as handle:
        handle.write("{")
    assert chosen(node1=run) == (None, [])


def test_the_tables_rule_beats_the_attempts_own(attempt):
    run = attempt("node1", 1, "paddledetection", detection(2), detection(3, "model_final"))
    found = finder.find_in_run(run, dict(RULES["paddledetection"], names=["[0-9]*"]))
    assert found["point"]["name"] == "1"


def test_the_choice_in_words(attempt):
    run = attempt("node1", 1, "paddledetection", detection(1), detection(2))
    cut(run, "attempt-1/output/1.pdparams", 0)
    point, skipped = chosen(node1=run)
    assert resume_point_choice.describe_choice(point, skipped) == [
        "resumed from 0 of attempt 1 (on node1), 1 epoch done, 12 steps done, learning rate 0.5,"
        " digest {}".format(point["digest"][:12]),
        "skipped: 1 of attempt 1 on node1: 1.pdparams is empty (checkpoint.empty_file)",
    ]


@pytest.mark.parametrize(
    "rule, read, expected",
    [
        ({"epoch": [".pdopt", "last_epoch"]}, {"a.pdopt": {"last_epoch": True}}, None),
        ({"epoch": [".pdopt", "last_epoch"]}, {"a.pdopt": {"last_epoch": float("nan")}}, None),
        ({"epoch": [".pdopt", "last_epoch"]}, {"a.pdopt": {"last_epoch": 10**400}}, None),
        ({"epoch": [".pdopt", "last_epoch"]}, {"a.pdopt": []}, None),
        ({"epoch": [".pdopt", "last_epoch"]}, {"a.pdparams": {"last_epoch": 3}}, None),
        ({"epoch": r"e(\d+)$"}, {}, 12),
        ({"epoch": r"iter_(\d+)$"}, {}, None),
        ({}, {}, None),
    ],
)
def test_a_number_that_is_none_is_unknown(rule, read, expected):
    assert finder.read_progress(rule, "e12", read)["epoch"] == expected


def test_a_row_of_rates_has_one_for_the_next_step():
    rule = {"step": [".ckpt", "global_step"], "lr": [".ckpt", "learning_rate"]}
    for step, rate in ((0, 0.5), (1, 0.25), (9, 0.25)):
        assert (
            finder.read_progress(
                rule, "t", {"t.ckpt": {"global_step": step, "learning_rate": [0.5, 0.25]}}
            )["lr"]
            == rate
        )
    assert finder.read_progress(rule, "t", {"t.ckpt": {"learning_rate": [0.5, 0.25]}})["lr"] is None
