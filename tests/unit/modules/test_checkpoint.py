# SPDX-License-Identifier: Apache-2.0
"""The checkpoint module: which trained model comes home, of every suite; and that a copy is whole
or is none.
"""

from __future__ import annotations

import hashlib
import os
import shutil

import checkpoint as module
import pytest
from ansible_collections.trainyard.cluster.plugins.module_utils.checkpoints import (
    model_collector,
)
from ansible_collections.trainyard.cluster.plugins.module_utils.suites import suite_table
from core_support import modes, put

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
    table = suite_table.load(suite)["checkpoints"]
    folders = [text.format(save=where, stem=os.path.basename(where)) for text in table["folders"]]
    return root, {
        "state": "found",
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
    assert saved[
        "note"
    ] == "there is no {} (was anything evaluated?), so the last one was taken".format(
        suite_table.load(suite)["checkpoints"]["best"]
    )


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
    assert (lambda saved: (saved["kind"], saved["files"], saved["note"]))(found("mindocr",
        "none")) == (
        "", {}, "left on the nodes, as collect_checkpoint says",
    )  # fmt: skip
    (tmp_path / "empty").mkdir()
    arguments = {
        "state": "found",
        "path": str(tmp_path / "empty"),
        "folders": ["output"],
        "best": "best",
        "last": "last",
    }
    assert run_module(module, arguments)["saved"]["note"] == "the training has saved none"


def test_an_empty_file_is_said(found, run_module, tmp_path):
    root, arguments = attempt(tmp_path / "node", "mindocr")
    put(root, {"tmp_rec/best.ckpt": ""})
    assert (
        run_module(module, dict(arguments, wanted="best"))["saved"]["note"] == "best.ckpt is empty"
    )


def test_links_pipes_and_odd_names_are_passed_over_and_named(run_module, tmp_path):
    """ansible.posix.synchronize joins a name into rsync's command line unquoted: ` --rsh=...` in it
    would run on the controller.
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


# --- at home


@pytest.fixture
def home(run_module, tmp_path, found):
    """Bring a suite's model home as collect does: home(suite, wanted, harm={name: content or None})
    -> (the attempt at home, result).
    """

    def bring(suite, wanted, harm=(), check=False, **there):
        files = found(suite, wanted, **there)["files"]
        place = tmp_path / "home" / suite
        place.mkdir(parents=True, exist_ok=True)
        staging = place / model_collector.STAGING
        if run_module(module, {"state": "compared", "path": str(place), "files": files})["lacking"]:
            for name in files:
                target = staging / name
                target.parent.mkdir(parents=True, exist_ok=True)
                shutil.copy2(tmp_path / "node" / SAVED[suite][0] / name, target)
            for name, text in dict(harm).items():
                put(staging, {name: text}) if text is not None else os.unlink(staging / name)
        return place, run_module(
            module, {"state": "taken", "path": str(place), "files": files}, check
        )

    return bring


def names(folder):
    return sorted(
        os.path.relpath(os.path.join(where, name), folder)
        for where, _f, found in os.walk(folder)
        for name in found
    )


@pytest.mark.parametrize("suite", sorted(SAVED))
def test_it_comes_home_whole_and_a_second_time_moves_nothing(home, suite):
    place, result = home(suite, "best")
    assert result["changed"] is True and names(place) == sorted(
        "checkpoint/" + name for name in SAVED[suite][1]
    )
    assert set(modes(place / "checkpoint").values()) <= {0o600, 0o700}
    before = {name: os.stat(place / name).st_ino for name in names(place)}
    assert home(suite, "best")[1]["changed"] is False
    assert {name: os.stat(place / name).st_ino for name in names(place)} == before


def test_the_other_one_comes_beside_it(home):
    place, _first = home("paddleseg", "best")
    assert home("paddleseg", "last")[1]["changed"] is True
    assert names(place / "checkpoint") == [
        "best_model/model.pdparams",
        "iter_30/model.pdopt",
        "iter_30/model.pdparams",
    ]
    assert home("paddleseg", "best")[1]["changed"] is False


@pytest.mark.parametrize(
    "harm", [{"best_model.pdopt": None}, {"best_model.pdopt": "torn"}, {"best_model.pdopt": ""}]
)
def test_a_copy_that_was_interrupted_never_looks_whole(home, harm):
    place, result = home("paddledetection", "best", harm)
    assert (
        result["failed"]
        and "best_model.pdopt" in result["msg"]
        and not (place / "checkpoint").exists()
    )
    # what differs is gone, what is right stays for the next copy
    assert names(place / model_collector.STAGING) == ["best_model.pdema", "best_model.pdparams"]
    assert (
        home("paddledetection", "best")[1]["changed"] is True
        and not (place / model_collector.STAGING).exists()
    )


def test_a_new_one_replaces_an_old_one_only_when_it_is_whole(home, tmp_path):
    place, _first = home("mindocr", "best")
    put(tmp_path / "node", {"tmp_rec/best.ckpt": "better"})
    fresh = {"best.ckpt": ["f", 6, "0" * 64]}
    put(place, {model_collector.STAGING + "/best.ckpt": "bettex"})
    with pytest.raises(model_collector.CheckpointError, match="best.ckpt"):
        model_collector.take(str(place), fresh)
    assert (place / "checkpoint/best.ckpt").read_text() == "best.ckpt of mindocr"


@pytest.mark.parametrize("left", [".checkpoint.new", ".checkpoint.old"])
def test_what_an_interruption_has_left_is_no_hindrance(home, left):
    place, _first = home("mindocr", "best")
    if left == ".checkpoint.old":  # between the two renames
        os.rename(place / "checkpoint", place / left)
    else:
        put(place, {left + "/best.ckpt": "half"})
    assert home("mindocr", "last")[1]["changed"] is True
    assert not (place / left).exists() and names(place / "checkpoint") == [
        "best.ckpt",
        "train_resume.ckpt",
    ]
    assert home("mindocr", "best")[1]["changed"] is False


def test_check_mode_writes_nothing(home):
    place, result = home("mindocr", "best", check=True)
    assert result["changed"] is True and not (place / "checkpoint").exists()


def test_a_place_that_is_a_link_is_not_written_through(home, tmp_path):
    place, _first = home("mindocr", "best")
    shutil.rmtree(place / "checkpoint")
    (tmp_path / "big").mkdir()
    os.symlink(tmp_path / "big", place / "checkpoint")
    assert "is a link" in home("mindocr", "best")[1]["msg"] and os.listdir(tmp_path / "big") == []


# --- names and links that lead elsewhere

ENTRY = ["f", 4, hashlib.sha256(b"evil").hexdigest()]
LEAVING = [
    "../../mine/x",
    "/etc/x",
    "a/../../../mine/x",
    "-x",
    "a\nb",
    "",
    "a//b",
    "n" * 300,
    "./x",
    "a/" * 20 + "x",
    "\x1b]52;c;x\x07",
]


@pytest.mark.parametrize("name", LEAVING)
@pytest.mark.parametrize("state", ["compared", "taken"])
def test_a_name_that_leaves_the_directory_touches_nothing(run_module, tmp_path, name, state):
    mine = put(tmp_path / "mine", {"x": "mine"})
    os.chmod(mine + "/x", 0o644)
    place = put(tmp_path / "home" / "attempt-1", {model_collector.STAGING + "/best": "evil"})
    given = {"state": state, "path": place, "files": {name: ENTRY, "best": ENTRY}}
    assert run_module(module, given)["failed"] is True
    assert os.stat(mine + "/x").st_mode & 0o777 == 0o644 and names(tmp_path / "mine") == ["x"]
    assert names(place) == [model_collector.STAGING + "/best"]


@pytest.mark.parametrize(
    "planted",
    [
        model_collector.STAGING,
        "checkpoint",
        ".checkpoint.new",
        ".checkpoint.old",
        model_collector.STAGING + "/sub",
        "checkpoint/sub",
    ],
)
def test_a_link_on_the_way_leads_nowhere(run_module, tmp_path, planted):
    mine = put(tmp_path / "mine", {"best": "mine", "sub/best": "mine", "left": "mine"})
    before = {
        name: (os.stat(os.path.join(mine, name)).st_mode, os.stat(os.path.join(mine, name)).st_ino)
        for name in names(mine)
    }
    place = put(tmp_path / "home" / "attempt-1", {"ranks.json": "{}"})
    put(
        place,
        {} if planted == model_collector.STAGING else {model_collector.STAGING + "/best": "evil"},
    )
    os.makedirs(os.path.dirname(os.path.join(place, planted)), exist_ok=True)
    os.symlink(mine if not planted.endswith("sub") else mine + "/sub", os.path.join(place, planted))
    for files in (
        {"best": ENTRY},
        {"best": ENTRY, "sub/best": ENTRY},
        {"best": ["f", 4, "0" * 64], "sub/best": ENTRY},
    ):
        run_module(module, {"state": "taken", "path": place, "files": files})
    assert before == {
        name: (os.stat(os.path.join(mine, name)).st_mode, os.stat(os.path.join(mine, name)).st_ino)
        for name in names(mine)
    }
    assert all(
        open(os.path.join(mine, name), encoding="utf-8").read() == "mine" for name in names(mine)
    )


def test_a_file_that_is_a_link_or_a_pipe_is_no_checkpoint(run_module, tmp_path):
    mine = put(tmp_path / "mine", {"x": "evil"})
    os.chmod(mine + "/x", 0o644)
    for make in (lambda path: os.symlink(mine + "/x", path), os.mkfifo):
        place = tmp_path / make.__name__ / "attempt-1"
        (place / model_collector.STAGING).mkdir(parents=True)
        make(place / model_collector.STAGING / "best")
        assert (
            run_module(module, {"state": "taken", "path": str(place), "files": {"best": ENTRY}})[
                "failed"
            ]
            is True
        )
        assert not (place / "checkpoint").exists()
    assert os.stat(mine + "/x").st_mode & 0o777 == 0o644


@pytest.mark.parametrize(
    "entry",
    [
        ["x", 4, "0" * 64],
        ["f", -1, "0" * 64],
        ["f", True, "0" * 64],
        ["f", 4, "x"],
        ["f", 4],
        "f",
        None,
        ["f", 1 << 60, "0" * 64],
    ],
)
def test_an_entry_that_is_none(run_module, tmp_path, entry):
    assert (
        run_module(module, {"state": "compared", "path": str(tmp_path), "files": {"best": entry}})[
            "failed"
        ]
        is True
    )
    many = {"f%d" % number: ENTRY for number in range(model_collector.MOST_FILES + 1)}
    assert (
        run_module(module, {"state": "compared", "path": str(tmp_path), "files": many})["failed"]
        is True
    )
    assert (
        run_module(
            module,
            {"state": "compared", "path": str(tmp_path), "files": {"a": ENTRY, "a/b": ENTRY}},
        )["failed"]
        is True
    )
