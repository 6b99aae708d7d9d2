# SPDX-License-Identifier: Apache-2.0
"""Overrides without effect or of a wrong type are found, and right ones are left alone."""

from __future__ import annotations

import pytest
from ansible_collections.trainyard.cluster.plugins.module_utils.suites import override_check
from ansible_collections.trainyard.cluster.plugins.plugin_utils.inputs import sources
from ansible_collections.trainyard.cluster.plugins.plugin_utils.suites import suite_file
from core_support import put

CONFIG = {
    "epoch": 8,
    "num_classes": 80,
    "use_ema": True,
    "weights": None,
    "name": "x",
    "metrics": ["a", "b"],
    "TrainReader": {"batch_size": 8, "sample_transforms": [{"Decode": {}}, {"Flip": {}}]},
    "LearningRate": {"base_lr": 0.01},
}
# Names that some program of the suite reads, though the config does not set them.
READ = {"epochs", "use_shared_memory", "batchsize"}
SUITES = ("paddledetection", "paddleocr", "paddleseg", "mindocr")


def judge(given, suite="paddledetection", is_read=READ.__contains__):
    return override_check.judge(suite_file.load(suite), CONFIG, given, is_read)


@pytest.mark.parametrize(
    "given",
    [
        {"epoch": 3},
        {"epoch": "3"},
        {"LearningRate.base_lr": "1e-3"},
        {"LearningRate.base_lr": 1},
        {"use_ema": False},
        {"weights": "/a/b"},
        {"weights": None},
        {"name": 3},
        {"metrics": ["c"]},
        {"metrics": "[c]"},
        {"TrainReader": {"batch_size": 2}},
        {"TrainReader.sample_transforms": []},
        {"num_classes": None},
    ],
)
@pytest.mark.parametrize("suite", SUITES)
def test_what_the_suite_can_use_passes(suite, given):
    assert judge(given, suite) == ([], [])


def test_weights_may_be_given_to_a_config_without_them():
    assert judge({"pretrain_weights": "/a/b.pdparams"}, is_read=set().__contains__) == ([], [])
    assert judge({"pretrained_weights": "/a/b.pdparams"}, is_read=set().__contains__)[0]


@pytest.mark.parametrize(
    "key, near",
    [
        ("num_clases", "num_classes"),
        ("nun_classes", "num_classes"),
        ("TrainReader.batch_sise", "TrainReader.batch_size"),
        ("TrainReadr.batch_size2", "TrainReader.batch_size"),
    ],
)
@pytest.mark.parametrize("suite", SUITES)
def test_a_name_that_nothing_reads_is_refused_with_the_near_one(suite, key, near):
    (problem,), warnings = judge({key: 1}, suite)
    assert key in problem and f"'{near}'" in problem and not warnings


def test_a_name_that_is_like_no_other_may_be_read_by_a_package():
    for suite in ("paddledetection", "mindocr"):
        problems, warnings = judge({"TrainReader.prefetch": 2}, suite, is_read=set().__contains__)
        assert bool(problems) == (suite == "mindocr") and bool(warnings) != bool(problems)


@pytest.mark.parametrize(
    "key", ["epochs", "TrainReader.batchsize", "TrainReader.use_shared_memory"]
)
def test_a_name_that_something_reads_is_a_warning(key):
    problems, (warning,) = judge({key: 1})
    assert not problems and warning.startswith(f"{key}: ")
    # Of code on the nodes the names are not known: nobody is accused.
    assert judge({"num_clases": 1}, is_read=None)[0] == []
    assert len(judge({"num_clases": 1}, is_read=None)[1]) == 1


@pytest.mark.parametrize("suite", SUITES)
@pytest.mark.parametrize("tail", ["0", "0.Decode", "9.Flip.x"])
def test_an_entry_of_a_list_is_refused_with_the_right_form(suite, tail):
    (problem,), _warnings = judge({f"TrainReader.sample_transforms.{tail}": {}}, suite)
    assert problem.endswith("give the whole list as TrainReader.sample_transforms")


@pytest.mark.parametrize("suite", ["paddleocr", "paddleseg"])
def test_a_part_that_is_not_there_ends_some_suites(suite):
    assert len(judge({"Global.epochs": 1}, suite)[0]) == 1
    assert judge({"Global.epochs": 1}, "paddledetection")[0] == []


@pytest.mark.parametrize("value", ["three", True, [3], {"a": 1}])
def test_a_setting_that_is_computed_with_has_to_be_a_number(value):
    assert len(judge({"epoch": value})[0]) == 1
    assert judge({"num_classes": value}) == ([], judge({"num_classes": value})[1])
    assert len(judge({"num_classes": value})[1]) == 1


@pytest.mark.parametrize("value", ["yes please", 3, [True]])
def test_a_switch_and_a_list_keep_their_type(value):
    assert len(judge({"use_ema": value})[1]) == 1
    if not isinstance(value, list):
        assert len(judge({"metrics": value})[1]) == 1
        assert len(judge({"TrainReader": value})[1]) == 1


@pytest.mark.parametrize(
    "suite, refused", [("paddledetection", 0), ("paddleocr", 1), ("paddleseg", 1), ("mindocr", 1)]
)
def test_an_equals_sign_is_one_that_the_script_can_read(suite, refused):
    assert len(judge({"name": "a=b"}, suite)[0]) == refused


def test_names_are_searched_in_programs_and_configs(tmp_path):
    put(tmp_path, {"a/x.py": "def f(anchor_size): pass", "b.yml": "head: 1", "c.txt": "other"})
    names = dict.fromkeys(["a/x.py", "b.yml", "c.txt"], ["f", 0, ""])
    has_name = sources.name_search(str(tmp_path), names)
    assert has_name("anchor_size") and has_name("head") and has_name("no-word")
    assert not has_name("anchor") and not has_name("other")
