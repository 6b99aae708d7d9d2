# SPDX-License-Identifier: Apache-2.0
"""Checkouts as users have them: data, outputs and links inside, partial clones.

The tests look at digests and at what a real rsync brings.
"""

from __future__ import annotations

import os
import subprocess

import pytest
from ansible_collections.trainyard.cluster.plugins.module_utils.base import manifest
from ansible_collections.trainyard.cluster.plugins.module_utils.base.files import read_json
from ansible_collections.trainyard.cluster.plugins.module_utils.inputs import remote_outline
from ansible_collections.trainyard.cluster.plugins.plugin_utils.config import job as jobs
from ansible_collections.trainyard.cluster.plugins.plugin_utils.inputs import sources, tree_route
from core_support import put

CONFIG = "configs/s.yml"
CODE = {
    "tools/train.py": "# reads pretrain_weights\n",
    CONFIG: "epoch: 3\nsave_dir: output\nTrainDataset: {dataset_dir: dataset/coco}\n",
}


def git(root, *words):
    argv = ["git", "-C", str(root), "-c", "user.name=t", "-c", "user.email=t@example.org", *words]
    environment = {"PATH": os.environ["PATH"], "HOME": str(root), "GIT_CONFIG_GLOBAL": os.devnull}
    output = subprocess.run(argv, check=True, capture_output=True, env=environment).stdout
    return output.decode().strip()


@pytest.fixture(params=["git", "plain"])
def code(tmp_path, monkeypatch, request):
    """A checkout, in git with everything committed or outside of git."""
    monkeypatch.setenv("GIT_CEILING_DIRECTORIES", str(tmp_path))
    root = put(tmp_path / "code", CODE)
    if request.param == "git":
        git(root, "init", "-q")
        git(root, "add", ".")
        git(root, "commit", "-qm", "x")
    return root


@pytest.fixture
def given(code, tmp_path):
    put(tmp_path / "coco", {"a.json": "{}", "train2017/1.jpg": "one"})
    return {
        "suite": jobs.load_suite("paddledetection"),
        "job": {
            "suite": "paddledetection",
            "launcher": "paddle",
            "config": CONFIG,
            "arguments": [],
            "overrides": {},
            "scaling": "advise",
        },
        "code": code,
        "data": {"coco": {"path": str(tmp_path / "coco")}},
        "cache_dir": str(tmp_path / "cache"),
        "weights": {},
    }


@pytest.fixture
def describe(run_action, given):
    """Return a function that describes the inputs, with changes to what is given."""

    def run(**changes):
        return run_action("job_inputs", {**given, **changes})

    return run


def send(tree, cache_dir, target):
    """Send a tree with rsync as its task does, and return the manifest of what arrived."""
    names = os.path.join(cache_dir, "manifests", tree["digest"] + ".files")
    options = tree_route.synchronize_arguments(tree, names, str(target))
    assert options["links"] and options["copy_links"] is bool(tree.get("follow"))
    argv = ["rsync", "--links", "--perms", "--times"]
    if options["copy_links"]:
        argv.append("--copy-links")
    os.makedirs(target, exist_ok=True)  # as the task before it does
    argv += [*options["rsync_opts"], options["src"], options["dest"]]
    subprocess.run(argv, check=True)
    assert read_json(names[: -len(".files")] + ".json") == manifest.scan(str(target))
    return manifest.scan(str(target))


def tree_of(result, kind):
    return next(tree for tree in result["trees"] if tree["kind"] == kind)


# --- what links cover is no code


def test_the_users_link_at_the_place_of_a_data_set_is_no_code(describe, given, code, tmp_path):
    before = describe()
    os.makedirs(os.path.join(code, "dataset"))
    os.symlink(tmp_path / "coco", os.path.join(code, "dataset/coco"))
    result = describe()
    assert result["code"] == before["code"] and result["data"] == before["data"]
    assert [(item["path"], item["target"]) for item in result["left_out"]] == [
        ("dataset/coco", str(tmp_path / "coco"))
    ]
    assert len(result["remarks"]) == 1 and "dataset/coco" in result["remarks"][0]
    arrived = send(tree_of(result, "code"), given["cache_dir"], tmp_path / "node")
    assert sorted(arrived) == sorted(CODE)


def test_another_link_that_leads_outside_is_refused(describe, code, tmp_path):
    os.makedirs(os.path.join(code, "dataset"))
    os.symlink(tmp_path / "coco", os.path.join(code, "dataset/other"))
    result = describe()
    assert result["failed"] and "dataset/other" in result["msg"]
    assert "trainyard_suites.paddledetection.data" in result["msg"]


def test_data_and_outputs_inside_are_sent_once_and_not_as_code(describe, given, code, tmp_path):
    before = describe()
    put(code, {"dataset/coco/1.jpg": "x" * 1000, "output/s/0.pdparams": "y" * 5000, "log/w": "z"})
    result = describe()
    assert result["code"] == before["code"] and not result["code"]["dirty"]
    assert [(item["path"], item["files"], item["bytes"]) for item in result["left_out"]] == [
        ("dataset/coco", 1, 1000),
        ("log", 1, 1),
        ("output", 1, 5000),
    ]
    put(code, {"output/s/1.pdparams": "y" * 5000})
    assert describe()["code"] == before["code"]
    arrived = send(tree_of(result, "code"), given["cache_dir"], tmp_path / "node")
    assert sorted(arrived) == sorted(CODE)


def test_the_folder_that_the_config_saves_to_is_no_code(describe, given, code):
    overrides = {"save_dir": "mine/run"}
    before = describe(overrides=overrides)
    put(code, {"mine/run/0.pdparams": "y", "mine/tool.py": "1"})
    result = describe(overrides=overrides)
    assert [item["path"] for item in result["left_out"]] == ["mine/run"]
    assert result["code"]["files"] == before["code"]["files"] + 1
    assert describe(overrides={"save_dir": "tools"})["code"]["files"] >= len(CODE)


@pytest.mark.parametrize("code", ["git"], indirect=True)
def test_what_git_ignores_is_not_mentioned(describe, code):
    put(code, {".gitignore": "output/\n"})
    put(code, {"output/0.pdparams": "y"})
    assert describe()["left_out"] == []


@pytest.mark.parametrize("code", ["git"], indirect=True)
def test_code_on_the_nodes_is_dirty_by_its_code_alone(code):
    put(code, {"output/0.pdparams": "y", "data/coco/1.jpg": "x"})
    covered = ["output", "data/coco"]
    commit = git(code, "rev-parse", "HEAD")
    assert remote_outline.read_commit(code) == (commit, True)
    assert remote_outline.read_commit(code, covered) == (commit, False)
    put(code, {"data/own.py": "1"})
    assert remote_outline.read_commit(code, covered) == (commit, True)


# --- links inside data


def test_contents_behind_links_travel_as_files(describe, given, tmp_path):
    disk = put(tmp_path / "disk", {"2.jpg": "two", "deep/3.jpg": "three"})
    os.symlink(disk, tmp_path / "coco/val2017")
    os.symlink(os.path.join(disk, "2.jpg"), tmp_path / "coco/one.jpg")
    os.symlink("train2017", tmp_path / "coco/inside")
    result = describe()
    tree = tree_of(result, "data")
    assert tree["follow"] is True and tree["files"] == 6
    assert any("val2017" in line for line in result["remarks"])
    arrived = send(tree, given["cache_dir"], tmp_path / "node")
    assert {entry[0] for entry in arrived.values()} == {"f"}
    assert (tmp_path / "node/val2017/deep/3.jpg").read_text() == "three"
    assert manifest.digest(arrived) == result["data"]["coco"]


def test_links_that_stay_inside_travel_as_links(describe, given, tmp_path):
    os.symlink("train2017", tmp_path / "coco/inside")
    tree = tree_of(describe(), "data")
    assert "follow" not in tree
    arrived = send(tree, given["cache_dir"], tmp_path / "node")
    assert arrived["inside"][0] == "l" and os.readlink(tmp_path / "node/inside") == "train2017"


@pytest.mark.parametrize("kind", ["outside", "inside"])
def test_a_site_can_refuse_to_follow(describe, given, tmp_path, kind):
    put(tmp_path / "disk", {"2.jpg": "two"})
    target = {"outside": tmp_path / "disk", "inside": tmp_path / "coco/train2017"}[kind]
    os.symlink(target, tmp_path / "coco/val2017")
    data = {"coco": {"path": str(tmp_path / "coco"), "follow_links": False}}
    message = describe(data=data)["msg"]
    assert "val2017" in message and "data.coco.follow_links" in message and "present" in message
    assert ("outside of the tree" in message) == (kind == "outside")
    assert ("ln -sfn train2017" in message) == (kind == "inside")


def test_loops_devices_and_links_to_nothing_are_all_named(describe, tmp_path):
    put(tmp_path / "disk", {"2.jpg": "two"})
    os.symlink(tmp_path / "disk", tmp_path / "coco/val2017")
    os.symlink(tmp_path / "coco", tmp_path / "disk/round")
    os.symlink("/nowhere/at/all", tmp_path / "coco/gone")
    os.symlink("/dev/null", tmp_path / "coco/device")
    os.mkfifo(tmp_path / "disk/pipe")
    message = describe()["msg"]
    for name in ("val2017/round", "val2017/pipe", "gone", "device"):
        assert f"{name} in {tmp_path}/coco: " in message


# --- pretrained weights at a path


@pytest.mark.parametrize(
    "value, files, missing",
    [
        ("pretrain_models/m", {}, True),
        ("./pretrain_models/m", {"pretrain_models/m.pdparams": "w"}, False),
        ("pretrain_models/m", {"pretrain_models/m/model.pdparams": "w"}, False),
        ("output/m.pdparams", {"output/m.pdparams": "w"}, True),
        ("dataset/coco/m.pdparams", {}, True),
        ("dataset/coco/a.json", {}, False),
        ("", {}, False),
        ("/on/the/nodes.pdparams", {}, False),
    ],
)
def test_weights_at_a_path_are_looked_for(describe, code, value, files, missing):
    put(code, files)
    result = describe(overrides={"pretrain_weights": value})
    assert result.get("failed", False) is missing
    if missing:
        assert 'pretrain_weights: ""' in result["msg"]


@pytest.mark.parametrize("suite", ["paddledetection", "paddleseg", "paddleocr", "mindocr"])
def test_every_suite_says_how_weights_are_switched_off(suite):
    assert "no_weights" in jobs.load_suite(suite)["config_keys"]


def test_the_data_set_of_the_weights_is_sent(describe, tmp_path):
    put(tmp_path / "weights", {"m.pdparams": "w"})
    data = {
        "coco": {"path": str(tmp_path / "coco")},
        "mine": {"path": str(tmp_path / "weights")},
    }
    result = describe(data=data, overrides={"pretrain_weights": "dataset/mine/m"})
    assert sorted(result["data"]) == ["coco", "mine"]


# --- a partial clone


@pytest.mark.parametrize("code", ["git"], indirect=True)
def test_local_changes_of_a_partial_clone_are_unknown(run_action, given, code, tmp_path):
    git(code, "config", "uploadpack.allowFilter", "true")
    clone = str(tmp_path / "clone")
    git(code, "clone", "-q", "--filter=blob:none", "--no-checkout", "file://" + code, clone)
    put(clone, CODE)
    commit = git(clone, "rev-parse", "HEAD")
    state = sources.git_state(clone)
    assert (state["commit"], state["dirty"]) == (commit, None) and state["reason"]
    result = run_action("job_inputs", dict(given, code=clone))
    assert result["code"]["commit"] == commit and result["code"]["dirty"] is None
    assert result["code"]["reason"] and result["code_diff"] == ""
    assert any(state["reason"] in line for line in result["remarks"])
