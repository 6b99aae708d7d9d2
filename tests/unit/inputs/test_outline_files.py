# SPDX-License-Identifier: Apache-2.0
"""An outline that a node chose: nothing is written outside the controller's own directory, and its
config cannot hold the controller up.
"""

from __future__ import annotations

import copy
import os
import time

import pytest
from ansible_collections.trainyard.cluster.plugins.module_utils.inputs import remote_outline
from ansible_collections.trainyard.cluster.plugins.plugin_utils.config import job as jobs
from ansible_collections.trainyard.cluster.plugins.plugin_utils.inputs import (
    describe,
    outline_files,
    sources,
)
from core_support import put

CONFIG = "configs/a.yml"
JOB = {
    "suite": "paddledetection",
    "launcher": "paddle",
    "arguments": [],
    "overrides": {},
    "scaling": "advise",
    "config": CONFIG,
}


@pytest.fixture
def told(tmp_path):
    """What an honest node says, and the arguments of the module on the controller."""
    code = put(
        tmp_path / "node",
        {
            "tools/train.py": "x",
            CONFIG: "epoch: 3\n_BASE_: b.yml\n",
            "configs/b.yml": "snapshot_epoch: 2\n",
        },
    )
    found = remote_outline.describe_tree(str(tmp_path / "base"), code, CONFIG, [])
    suite = jobs.load_suite("paddledetection")
    given = {
        "suite": suite,
        "job": JOB,
        "code": "/opt/code",
        "placement": "present",
        "cache_dir": str(tmp_path / "cache"),
    }
    return found, given


def files_of(root):
    return sorted(
        os.path.relpath(os.path.join(place, name), root)
        for place, _folders, names in os.walk(root)
        for name in names
    )


def test_an_honest_outline_is_kept_under_the_digest_of_what_came(run_action, told, tmp_path):
    found, given = told
    result = run_action("job_inputs", dict(given, outline=found))
    assert result["config"]["epochs"] == 3 and result["config"]["files"] == [
        CONFIG,
        "configs/b.yml",
    ]
    assert result["code"]["digest"] == found["digest"]
    (folder,) = os.listdir(tmp_path / "cache/code-configs")
    assert outline_files.SHA256.match(folder) and folder != found["digest"]
    again = run_action("job_inputs", dict(given, outline=dict(found, digest="0" * 64)))
    assert again["config"] == result["config"] and os.listdir(tmp_path / "cache/code-configs") == [
        folder
    ]
    other = dict(
        found, texts=dict(found["texts"], **{CONFIG: "epoch: 4\n"})
    )  # the digest of another outline under the same name
    assert run_action("job_inputs", dict(given, outline=other))["config"]["epochs"] == 4


HOSTILE_NAMES = [
    "/etc/x.yml",
    "../x.yml",
    "a/../../x.yml",
    "./x.yml",
    "a//x.yml",
    "",
    ".",
    "a/",
    "x\n.yml",
    "x\0.yml",
    "a/" * 80 + "x",
    "y" * 300,
]


@pytest.mark.parametrize(
    "change",
    [{"digest": value} for value in ("/tmp/x", "../../x", "", "a" * 63, "A" * 64, "a" * 64 + "\n", None, 7, ["a" * 64])]
    + [{"names": [name]} for name in HOSTILE_NAMES]
    + [{"texts": {name: "epoch: 1\n"}} for name in HOSTILE_NAMES]
    + [
        {"texts": {CONFIG: 5}}, {"texts": {CONFIG: "x" * (5 << 20)}}, {"texts": ["a"]}, {"texts": {"no/such.yml": "a: 1"}},
        {"names": "abc"}, {"names": ["n"] * 200_001}, {"names": [1]},
        {"commit": "HEAD; rm"}, {"commit": "a" * 41}, {"commit": 5}, {"dirty": "no"}, {"dirty": 0},
        {"files": -1}, {"files": True}, {"files": "4"}, {"bytes": 2.5}, {"bytes": 1 << 80},
    ],
    ids=lambda change: ascii(change)[:40],
)  # fmt: skip
def test_a_hostile_outline_is_refused_and_nothing_is_written(run_action, told, tmp_path, change):
    found, given = told
    hostile = dict(copy.deepcopy(found), **change)
    if (
        "texts" in change
        and isinstance(change["texts"], dict)
        and "no/such.yml" not in change["texts"]
    ):
        hostile["names"] = hostile["names"] + list(change["texts"])
    before = files_of(tmp_path)
    result = run_action("job_inputs", dict(given, outline=hostile))
    assert result["failed"] and "the outline of the code" in result["msg"]
    assert files_of(tmp_path) == before


@pytest.mark.parametrize(
    "bound, most", [("MOST_NAMES", 2), ("MOST_TEXTS", 1), ("LARGEST_TEXTS", 30)]
)
def test_an_outline_is_bounded_as_a_whole(told, monkeypatch, bound, most):
    outline_files.validate(told[0])
    monkeypatch.setattr(outline_files, bound, most)
    with pytest.raises(outline_files.InvalidOutline):
        outline_files.validate(told[0])


def test_an_outline_keeps_its_own_fields_alone(told):
    assert sorted(outline_files.validate(dict(told[0], root="/etc", ansible_facts={}))) == sorted(
        ["digest", "files", "bytes", "names", "texts", "commit", "dirty"]
    )


def test_a_text_is_written_into_no_file_that_is_there(tmp_path):
    (tmp_path / "outside").write_text("kept")
    (tmp_path / "in").mkdir()
    os.symlink(tmp_path / "outside", tmp_path / "in" / "a.yml")
    root = os.open(tmp_path / "in", os.O_RDONLY)
    with pytest.raises(outline_files.InvalidOutline):
        outline_files._write(root, ["a.yml"], "x")
    os.close(root)
    assert (tmp_path / "outside").read_text() == "kept"


def test_a_name_that_is_a_file_and_a_directory_ends_as_a_refusal(run_action, told, tmp_path):
    found, given = told
    more = {"configs/x": "a: 1", "configs/x/y.yml": "b: 1"}
    result = run_action(
        "job_inputs",
        dict(
            given,
            outline=dict(
                found, names=found["names"] + list(more), texts=dict(found["texts"], **more)
            ),
        ),
    )
    assert result["failed"] and "not valid" in result["msg"] and files_of(tmp_path / "cache") == []


def test_a_link_in_the_cache_is_not_followed(told, tmp_path):
    found, given = told
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "cache").mkdir()
    os.symlink(tmp_path / "elsewhere", tmp_path / "cache/code-configs")
    with pytest.raises(OSError):
        outline_files.keep_texts(found["texts"], given["cache_dir"])
    os.unlink(tmp_path / "cache/code-configs")
    kept = outline_files.keep_texts(found["texts"], given["cache_dir"])
    os.rename(kept, tmp_path / "moved")
    os.symlink(tmp_path / "elsewhere", kept)
    with pytest.raises(OSError):
        outline_files.keep_texts(found["texts"], given["cache_dir"])
    assert files_of(tmp_path / "elsewhere") == []


LAUGHS = "a0: &a0 [x, x]\n" + "".join(
    "a%d: &a%d [%s]\n" % (n, n, ", ".join(["*a%d" % (n - 1)] * 9)) for n in range(1, 12)
)
MERGES = "a0: &a0 {k: 1}\n" + "".join(
    "a%d: &a%d {<<: [%s]}\n" % (n, n, ", ".join(["*a%d" % (n - 1)] * 9)) for n in range(1, 12)
)


@pytest.mark.parametrize(
    "text",
    [
        LAUGHS,
        MERGES,
        "a: &a [*a]\n",
        "a: " + "[" * 20_000 + "\n",
        "a: " + "1" * 5_000 + "\n",
        "a: 1" + ":1" * 60_000 + "\n",
        "# " + "x" * (1 << 19) + "\n",
        "a: !!python/object/apply:os.system [id]\n",
    ],
    ids=["laughs", "merges", "circle", "depth", "digits", "sexagesimal", "size", "python"],
)
def test_a_hostile_config_ends_soon(run_action, told, text):
    found, given = told
    begun = time.monotonic()
    result = run_action("job_inputs", dict(given, outline=dict(found, texts={CONFIG: text})))
    assert result["failed"] and CONFIG in result["msg"] and len(result["msg"]) < 3000
    assert time.monotonic() - begun < 10


def test_a_chain_of_many_configs_ends(run_action, told):
    found, given = told
    texts = {"configs/%d.yml" % n: "_BASE_: %d.yml\n" % (n + 1) for n in range(200)}
    texts[CONFIG] = "_BASE_: 0.yml\n"
    result = run_action(
        "job_inputs",
        dict(given, outline=dict(found, names=found["names"] + list(texts), texts=texts)),
    )
    assert result["failed"] and "builds on more than" in result["msg"]


@pytest.mark.parametrize(
    "text",
    [
        "epoch: 1.0e+400\n",
        "epoch: 0x%s\n" % ("f" * 90),
        "epoch: [1]\nLearningRate: {base_lr: {a: 1}}\nTrainReader: {batch_size: .nan}\n",
        "TrainReader: [1]\nLearningRate: 5\nTrainDataset: x\n",
        "epoch: 2024-01-01\nLearningRate: {base_lr: !!binary aGk=}\n",
        "save_dir: [1]\nsnapshot_epoch: -.inf\n",
    ],
)
def test_values_of_any_kind_give_a_plan_or_a_refusal(run_action, told, text):
    found, given = told
    result = run_action("job_inputs", dict(given, outline=dict(found, texts={CONFIG: text})))
    if result.get("failed"):
        assert "MODULE" not in result["msg"] and CONFIG in result["msg"]
    else:
        assert result["config"]["epochs"] is None or result["config"]["epochs"] < 10**16


def test_a_value_that_no_table_expects_is_a_refusal(told, monkeypatch):
    """Whatever a config of a node makes the reading stumble over ends as a refusal of that config."""
    found, given = told
    params = dict(
        given,
        outline=found,
        unread="",
        data={},
        weights={},
        overrides={},
        accelerator="cpu",
        nodes=1,
        devices=1,
        resume={},
    )
    monkeypatch.setattr(describe.suite_table, "find_data", lambda *_args, **_more: 1 / 0)
    with pytest.raises(sources.SourceError):
        describe.describe(params, False, None)


def test_a_folder_to_save_to_holds_no_control_character(run_action, told):
    found, given = told
    result = run_action(
        "job_inputs", dict(given, outline=dict(found, texts={CONFIG: 'save_dir: "out\\e[2Jput"\n'}))
    )
    assert result["failed"] and "U+001B" in result["msg"]
