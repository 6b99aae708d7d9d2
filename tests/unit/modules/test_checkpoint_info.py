# SPDX-License-Identifier: Apache-2.0
"""The checkpoint module: which trained model of every suite is fetched to the controller. A copy is
complete, or it does not exist.
"""

from __future__ import annotations

import os
import shutil

import checkpoint_info as module
import pytest
from ansible_collections.trainyard.cluster.plugins.plugin_utils.suites import suite_file
from core_support import put

# Names as the suites wrote them in real runs: {suite: (folder, files of the best one, files of the
# last one, older ones)}.
SAVED = {
    "paddledetection": (
        "output/ppyoloe_crn_s_300e_coco",
        ["best_model.pdparams", "best_model.pdopt", "best_model.pdema"],
        ["model_final.pdparams", "model_final.pdopt", "model_final.pdema"],
        ["0.pdparams", "1.pdparams"],
    ),
    "paddleocr": (
        "output/rec/mv3_none_bilstm_ctc",
        ["best_accuracy.pdparams", "best_accuracy.pdopt", "best_accuracy.states"],
        ["latest.pdparams", "latest.pdopt", "latest.states"],
        ["iter_epoch_3.pdparams", "config.yml", "train.log"],
    ),
    "paddleseg": (
        "output/pp_liteseg",
        ["best_model/model.pdparams"],
        ["iter_30/model.pdparams", "iter_30/model.pdopt"],
        ["iter_9/model.pdparams", "iter_20/model.pdparams"],
    ),
    "mindocr": ("tmp_rec", ["best.ckpt"], ["train_resume.ckpt"], ["result.log", "epoch_1.ckpt"]),
}


def attempt(folder, suite, best=True, last=True):
    """Lay out what a suite saves below an attempt's directory; return (its path, the module's
    arguments but for wanted).
    """
    where, bests, lasts, others = SAVED[suite]
    names = others + (bests if best else []) + (lasts if last else [])
    root = put(folder, {f"{where}/{name}": f"{name} of {suite}" for name in names})
    for name in others:
        os.utime(os.path.join(root, where, name.split("/")[0]), (1, 1))
    table = suite_file.load(suite)["checkpoints"]
    folders = [text.format(save=where, stem=os.path.basename(where)) for text in table["folders"]]
    return root, {
        "path": root,
        "folders": folders,
        "best": table["best"],
        "last": table["last"],
    }


@pytest.fixture
def found(run_module, tmp_path):
    """Ask for a suite's model: found(suite, wanted, best=..., last=...)."""

    def ask(suite, wanted, **there):
        return run_module(
            module, dict(attempt(tmp_path / "node", suite, **there)[1], wanted=wanted), check=True
        )["saved"]

    return ask


@pytest.mark.parametrize("suite", sorted(SAVED))
@pytest.mark.parametrize("wanted", ["best", "last"])
def test_the_wanted_one_of_every_suite(found, suite, wanted):
    saved = found(suite, wanted)
    folder, bests, lasts, _others = SAVED[suite]
    assert (saved["kind"], saved["folder"], saved["note"], saved["passed_over"]) == (
        wanted,
        folder,
        "",
        [],
    )
    assert sorted(saved["files"]) == sorted(bests if wanted == "best" else lasts)
    assert saved["bytes"] == sum(len(f"{name} of {suite}") for name in saved["files"])


@pytest.mark.parametrize("suite", sorted(SAVED))
def test_without_an_evaluation_the_last_one_and_it_is_said(found, suite):
    saved = found(suite, "best", best=False)
    assert saved["kind"] == "last" and sorted(saved["files"]) == sorted(SAVED[suite][2])
    best = suite_file.load(suite)["checkpoints"]["best"]
    assert f" no {best} (" in saved["note"] and "evaluated" in saved["note"]
    assert "so the last one" in saved["note"]


@pytest.mark.parametrize("wanted", ["best", "last"])
def test_a_detection_that_was_killed_has_its_newest_epoch(found, wanted):
    saved = found("paddledetection", wanted, best=False, last=False)
    assert (saved["kind"], saved["name"], list(saved["files"])) == ("last", "1", ["1.pdparams"])


def test_of_one_that_came_to_its_end_the_final_one_is_the_last(run_module, tmp_path):
    root, asked = attempt(tmp_path / "node", "paddledetection", best=False)
    folder = os.path.join(root, SAVED["paddledetection"][0])
    for age, name in enumerate(
        sorted(os.listdir(folder), reverse=True)
    ):  # model_final.* first, 0.pdparams last
        os.utime(os.path.join(folder, name), (9 - age, 9 - age))
    assert (
        run_module(module, dict(asked, wanted="last"), check=True)["saved"]["name"] == "model_final"
    )


def test_one_that_was_cut_off_before_its_first_epoch_ended_says_what_was_looked_for(
    run_module, tmp_path
):
    root, asked = attempt(tmp_path / "node", "paddledetection", last=False)
    for name in SAVED["paddledetection"][3]:
        os.unlink(os.path.join(root, SAVED["paddledetection"][0], name))
    saved = run_module(module, dict(asked, wanted="last"), check=True)["saved"]
    said = (
        "there is no model_final or [0-9]* (the training did not come to its end), so the best one"
        " was taken"
    )
    assert (saved["kind"], saved["note"]) == ("best", said)


@pytest.mark.parametrize("suite", ["paddleocr", "mindocr"])
def test_a_training_that_was_cut_off_has_its_best_one(found, suite):
    saved = found(suite, "last", last=False)
    assert saved["kind"] == "best" and "did not come to its end" in saved["note"]


def test_none_stays_where_it_is_and_nothing_saved_is_said(found, run_module, tmp_path):
    left = found("mindocr", "none")
    assert (left["kind"], left["files"]) == ("", {}) and "collect_checkpoint" in left["note"]
    (tmp_path / "empty").mkdir()
    arguments = {
        "path": str(tmp_path / "empty"),
        "folders": ["output"],
        "best": "best",
        "last": "last",
    }
    assert run_module(module, arguments)["saved"]["note"].endswith(" saved none")
    absent = run_module(module, dict(arguments, path=str(tmp_path / "absent")))
    assert absent["saved"]["kind"] == "" and not absent.get("failed")


def test_an_empty_file_is_said(found, run_module, tmp_path):
    root, arguments = attempt(tmp_path / "node", "mindocr")
    put(root, {"tmp_rec/best.ckpt": ""})
    assert (
        run_module(module, dict(arguments, wanted="best"))["saved"]["note"] == "best.ckpt is empty"
    )


def test_links_pipes_and_odd_names_are_passed_over_and_named(run_module, tmp_path):
    """ansible.posix.synchronize puts a name unquoted into rsync's command line. A part such as
    ` --rsh=...` in it would run on the controller.
    """
    root, arguments = attempt(tmp_path / "node", "paddledetection")
    folder = os.path.join(root, SAVED["paddledetection"][0])
    secret = put(tmp_path / "elsewhere", {"id_ed25519": "a key"}) + "/id_ed25519"
    os.symlink(secret, os.path.join(folder, "best_model.key"))
    os.mkfifo(os.path.join(folder, "best_model.pipe"))
    os.mkdir(os.path.join(folder, "best_model"))
    os.symlink(secret, os.path.join(folder, "best_model", "link"))
    for odd in ("best_model.x --rsh=touch", "best_model.*", "best_model.a\nb", "best_model/-v"):
        put(folder, {odd: "x"})
    saved = run_module(module, dict(arguments, wanted="best"))["saved"]
    assert sorted(saved["files"]) == sorted(SAVED["paddledetection"][1])
    assert sorted(name.rpartition("/")[2] for name in saved["passed_over"]) == [
        "-v", "best_model.*", "best_model.a\\nb", "best_model.key", "best_model.pipe",
        "best_model.x --rsh=touch",
    ]  # fmt: skip


def test_a_folder_that_is_a_link_is_not_entered(run_module, tmp_path):
    root, arguments = attempt(tmp_path / "node", "mindocr")
    shutil.move(os.path.join(root, "tmp_rec"), tmp_path / "outside")
    os.symlink(tmp_path / "outside", os.path.join(root, "tmp_rec"))
    assert run_module(module, dict(arguments, wanted="best"))["saved"]["files"] == {}
    assert (
        run_module(module, dict(arguments, wanted="best", folders=["../outside"]))["saved"]["files"]
        == {}
    )


def test_it_gives_way_to_the_next_attempt(run_module, tmp_path, lowered):
    _root, arguments = attempt(tmp_path, "paddleseg")
    assert not run_module(module, arguments).get("failed")
    assert lowered == [1]
