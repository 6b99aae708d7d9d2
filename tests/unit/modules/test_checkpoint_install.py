# SPDX-License-Identifier: Apache-2.0
"""checkpoint_install: a copy on the controller is complete or does not exist. No link leads
elsewhere.
"""

from __future__ import annotations

import hashlib
import os
import shutil

import pytest
from ansible_collections.trainyard.cluster.plugins.module_utils.checkpoints import (
    model_collector,
)
from ansible_collections.trainyard.cluster.plugins.plugin_utils.checkpoints import (
    checkpoint_copy,
)
from core_support import modes, put
from unit.modules.test_checkpoint_info import SAVED, attempt


@pytest.fixture
def home(run_action, tmp_path):
    """Fetch a suite's model to the controller as collect does.

    home(suite, wanted, harm={name: content or None}) returns (the attempt on the controller,
    result).
    """

    def bring(suite, wanted, harm=(), check=False, **there):
        root, asked = attempt(tmp_path / "node", suite, **there)
        patterns = {"best": asked["best"], "last": asked["last"]}
        files = model_collector.find_checkpoint(root, asked["folders"], patterns, wanted)["files"]
        place = tmp_path / "home" / suite
        place.mkdir(parents=True, exist_ok=True)
        staging = place / checkpoint_copy.STAGING
        if run_action("checkpoint_compare", {"path": str(place), "files": files})["lacking"]:
            for name in files:
                target = staging / name
                target.parent.mkdir(parents=True, exist_ok=True)
                shutil.copy2(tmp_path / "node" / SAVED[suite][0] / name, target)
            for name, text in dict(harm).items():
                put(staging, {name: text}) if text is not None else os.unlink(staging / name)
        return place, run_action("checkpoint_install", {"path": str(place), "files": files}, check)

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
    assert names(place / checkpoint_copy.STAGING) == ["best_model.pdema", "best_model.pdparams"]
    assert (
        home("paddledetection", "best")[1]["changed"] is True
        and not (place / checkpoint_copy.STAGING).exists()
    )


def test_a_new_one_replaces_an_old_one_only_when_it_is_whole(home, tmp_path):
    place, _first = home("mindocr", "best")
    put(tmp_path / "node", {"tmp_rec/best.ckpt": "better"})
    fresh = {"best.ckpt": ["f", 6, "0" * 64]}
    put(place, {checkpoint_copy.STAGING + "/best.ckpt": "bettex"})
    with pytest.raises(model_collector.CheckpointError, match="best.ckpt"):
        checkpoint_copy.install_copy(str(place), fresh)
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
@pytest.mark.parametrize("action", ["checkpoint_compare", "checkpoint_install"])
def test_a_name_that_leaves_the_directory_touches_nothing(run_action, tmp_path, name, action):
    mine = put(tmp_path / "mine", {"x": "mine"})
    os.chmod(mine + "/x", 0o644)
    place = put(tmp_path / "home" / "attempt-1", {checkpoint_copy.STAGING + "/best": "evil"})
    given = {"path": place, "files": {name: ENTRY, "best": ENTRY}}
    assert run_action(action, given)["failed"] is True
    assert os.stat(mine + "/x").st_mode & 0o777 == 0o644 and names(tmp_path / "mine") == ["x"]
    assert names(place) == [checkpoint_copy.STAGING + "/best"]


@pytest.mark.parametrize(
    "planted",
    [
        checkpoint_copy.STAGING,
        "checkpoint",
        ".checkpoint.new",
        ".checkpoint.old",
        checkpoint_copy.STAGING + "/sub",
        "checkpoint/sub",
    ],
)
def test_a_link_on_the_way_leads_nowhere(run_action, tmp_path, planted):
    mine = put(tmp_path / "mine", {"best": "mine", "sub/best": "mine", "left": "mine"})
    before = {
        name: (os.stat(os.path.join(mine, name)).st_mode, os.stat(os.path.join(mine, name)).st_ino)
        for name in names(mine)
    }
    place = put(tmp_path / "home" / "attempt-1", {"ranks.json": "{}"})
    put(
        place,
        {} if planted == checkpoint_copy.STAGING else {checkpoint_copy.STAGING + "/best": "evil"},
    )
    os.makedirs(os.path.dirname(os.path.join(place, planted)), exist_ok=True)
    os.symlink(mine if not planted.endswith("sub") else mine + "/sub", os.path.join(place, planted))
    for files in (
        {"best": ENTRY},
        {"best": ENTRY, "sub/best": ENTRY},
        {"best": ["f", 4, "0" * 64], "sub/best": ENTRY},
    ):
        run_action("checkpoint_install", {"path": place, "files": files})
    assert before == {
        name: (os.stat(os.path.join(mine, name)).st_mode, os.stat(os.path.join(mine, name)).st_ino)
        for name in names(mine)
    }
    assert all(
        open(os.path.join(mine, name), encoding="utf-8").read() == "mine" for name in names(mine)
    )


def test_a_file_that_is_a_link_or_a_pipe_is_no_checkpoint(run_action, tmp_path):
    mine = put(tmp_path / "mine", {"x": "evil"})
    os.chmod(mine + "/x", 0o644)
    for make in (lambda path: os.symlink(mine + "/x", path), os.mkfifo):
        place = tmp_path / make.__name__ / "attempt-1"
        (place / checkpoint_copy.STAGING).mkdir(parents=True)
        make(place / checkpoint_copy.STAGING / "best")
        assert (
            run_action("checkpoint_install", {"path": str(place), "files": {"best": ENTRY}})[
                "failed"
            ]
            is True
        )
        assert not (place / "checkpoint").exists()
    assert os.stat(mine + "/x").st_mode & 0o777 == 0o644
