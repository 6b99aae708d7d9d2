# SPDX-License-Identifier: Apache-2.0
"""What a suite's table means for one job: overrides, settings, data, distribute, resume; and a
fifth suite that is one file.
"""

from __future__ import annotations

import pytest
import yaml
from ansible_collections.trainyard.cluster.plugins.module_utils.suites import suite_table
from ansible_collections.trainyard.cluster.plugins.plugin_utils.suites import suite_file
from core_support import ROOT, put

DETECTION = suite_file.load("paddledetection")
# What a suite for MindOCR's kind of config would say.
SWITCHED = dict(DETECTION, distributed={"key": "system.distribute"})
COCO = {
    "TrainDataset": {
        "dataset_dir": "dataset/coco",
        "image_dir": "train2017",
        "anno_path": "annotations/train.json",
    },
    "EvalDataset": {"dataset_dir": "dataset/voc", "image_dir": "", "anno_path": "gone.json"},
}


@pytest.mark.parametrize("name", suite_file.names())
def test_every_table_fits_its_schema(name):
    table = suite_file.load(name)
    assert table["name"] == name and table["launchers"] and table["logs"]["step"]


def test_a_fifth_suite_is_one_file(tmp_path):
    """docs/adding-a-suite.md: PaddleClas from the page's own text, loaded as the others are."""
    page = (ROOT / "docs" / "adding-a-suite.md").read_text(encoding="utf-8")
    text = page.split("```yaml\n", 1)[1].split("```", 1)[0]
    put(tmp_path, {"paddleclas.yml": text})
    assert suite_file.names(str(tmp_path)) == ["paddleclas"]
    assert suite_file.load("paddleclas", str(tmp_path))["title"] == "PaddleClas"


def test_a_table_is_parsed_once_until_its_file_changes(tmp_path, monkeypatch):
    text = (ROOT / "playbooks/suites/paddleseg.yml").read_text(encoding="utf-8")
    put(tmp_path, {"mine.yml": text})
    reads, read = [], suite_file.yaml_source.read
    monkeypatch.setattr(
        suite_file.yaml_source, "read", lambda *given: reads.append(given) or read(*given)
    )
    first = suite_file.load("mine", str(tmp_path))
    count = len(reads)
    first["env"]["CHANGED_BY_A_CALLER"] = "1"
    assert "CHANGED_BY_A_CALLER" not in suite_file.load("mine", str(tmp_path))["env"]
    assert len(reads) == count
    put(tmp_path, {"mine.yml": text.replace("title: PaddleSeg", "title: Another")})
    assert suite_file.load("mine", str(tmp_path))["title"] == "Another"


@pytest.mark.parametrize(
    "change, words",
    [
        ({"config_key": {}}, "unknown key"),
        ({"launchers": []}, "suites/x.yml:"),
        ({"data": {"place": "dataset"}}, "must be a path with {name} in it"),
        ({"accelerators": {"tpu": {}}}, "tpu"),
        ({"scripts": None}, "scripts"),
        (
            {"launchers": ["paddle", "fleetrunn"]},
            "suites/x.yml: launchers: fleetrunn; allowed: fleetrun, mpirun",
        ),
        (
            {"logs": {"step": {"line": "(?P<epoch\\d+)"}}},
            "suites/x.yml: logs.step.line: not a regular expression",
        ),
    ],
)
def test_a_table_that_cannot_be_used(tmp_path, change, words):
    table = {key: value for key, value in DETECTION.items() if key not in ("name", "distributed")}
    put(tmp_path, {"x.yml": yaml.safe_dump(dict(table, **change))})
    with pytest.raises(suite_file.SuiteError) as error:
        suite_file.load("x", str(tmp_path))
    assert words in str(error.value)


@pytest.mark.parametrize(
    "dotted, value",
    [
        ("a.b", 1),
        ("a", {"b": 1, "l": [{"c": 2}]}),
        ("a.l.0.c", 2),
        ("a.l.1.c", None),
        ("a.b.c", None),
        ("x", None),
        (None, None),
        ("", None),
    ],
)
def test_lookup(dotted, value):
    assert suite_table.lookup({"a": {"b": 1, "l": [{"c": 2}]}}, dotted) == value


def test_overrides_reach_every_depth_and_leave_the_rest():
    values = {"a": {"b": 1, "c": {"d": 2}}}
    assert suite_table.apply_overrides(values, {"a.c.d": 3, "e.f": 4, "a.b": {"x": 1}}) == {
        "a": {"b": {"x": 1}, "c": {"d": 3}},
        "e": {"f": 4},
    }
    assert values == {"a": {"b": 1, "c": {"d": 2}}}


# --- what the command line carries


def test_the_suites_own_overrides_are_the_weakest():
    assert suite_table.settle_overrides(DETECTION, {}, {"epoch": 3}, "cpu", 2) == (
        {"use_gpu": False, "epoch": 3},
        [],
    )
    assert suite_table.settle_overrides(DETECTION, {}, {"use_gpu": True}, "cpu", 2) == (
        {"use_gpu": True},
        [],
    )
    assert suite_table.settle_overrides(DETECTION, {}, {}, "gpu", 2) == ({}, [])


@pytest.mark.parametrize(
    "config, given, world, overrides",
    [
        (False, {}, 2, {"system.distribute": True}),
        (None, {}, 2, {"system.distribute": True}),
        (True, {}, 2, {}),
        (False, {}, 1, {}),
        (False, {"system.distribute": True}, 2, {"system.distribute": True}),
    ],
)
def test_several_ranks_are_told_of_each_other(config, given, world, overrides):
    """Contract D2: the shipped config says distribute: False, and the job passes the override."""
    values = {"system": {"distribute": config}} if config is not None else {}
    assert suite_table.settle_overrides(SWITCHED, values, given, "gpu", world) == (overrides, [])


@pytest.mark.parametrize(
    "given", [{"system": {"distribute": False}}, {"system": "x"}, {"system": []}]
)
def test_ranks_that_would_train_alone_by_an_override_of_the_whole_section(given):
    problems = suite_table.settle_overrides(
        SWITCHED, {"system": {"distribute": True}}, given, "gpu", 2
    )[1]
    assert len(problems) == 1 and "2 ranks would" in problems[0]


@pytest.mark.parametrize("said", [False, "no", 0, None])
def test_ranks_that_would_train_alone_are_refused(said):
    _overrides, problems = suite_table.settle_overrides(
        SWITCHED, {}, {"system.distribute": said}, "gpu", 2
    )
    assert len(problems) == 1 and "2 ranks would" in problems[0]
    assert problems[0].startswith("system.distribute is")
    assert not suite_table.settle_overrides(SWITCHED, {}, {"system.distribute": said}, "gpu", 1)[1]


ROOTED = dict(DETECTION, data=dict(DETECTION["data"], overrides={"data.root": "dataset"}))


@pytest.mark.parametrize(
    "root, overrides", [("/data/sets", {"data.root": "dataset"}), ("path/to", {}), (None, {})]
)
def test_only_an_absolute_path_is_replaced(root, overrides):
    values = {"data": {"root": root}} if root else {}
    assert suite_table.settle_overrides(ROOTED, values, {}, "gpu", 1) == (overrides, [])


# --- settings


@pytest.mark.parametrize(
    "values, arguments, found",
    [
        (
            {"epoch": 300, "LearningRate": {"base_lr": 0.01}, "TrainReader": {"batch_size": 8}},
            [],
            (300, None, 8, 0.01),
        ),
        (
            {"epoch": "300", "LearningRate": {"base_lr": "1e-3"}},
            [],
            (300, None, None, 0.001),
        ),  # YAML 1.1 reads 1e-3 as a text
        ({"epoch": 1, "LearningRate": {"base_lr": float("nan")}}, [], (1, None, None, None)),
        ({"epoch": True, "TrainReader": {"batch_size": "${x}"}}, [], (None, None, None, None)),
        ({}, ["--iters", "35000", "--batch_size=2"], (None, 35000, 2, None)),
        ({}, ["--iters", "1", "--iters=2"], (None, 2, None, None)),
        (
            {"TrainReader": {"batch_size": 4}},
            ["--batch_size", "8", "-o", "TrainReader.batch_size=4"],
            (None, None, 4, None),
        ),
    ],
)
def test_settings_are_numbers_or_unknown(values, arguments, found):
    suite = dict(DETECTION, argument_keys={"--iters": "iterations", "--batch_size": "batch"})
    said = suite_table.settings(
        suite, values, arguments, ["TrainReader.batch_size"] if "-o" in arguments else []
    )
    assert (
        said["epochs"],
        said["iterations"],
        said["batch"],
        said["learning_rate"],
    ) == found and said["save"] is None


def test_the_folder_that_the_config_names():
    suite = dict(
        DETECTION, config_keys=dict(DETECTION["config_keys"], save="Global.save_model_dir")
    )
    assert (
        suite_table.settings(suite, {"Global": {"save_model_dir": "./output/rec/x/"}}, [])["save"]
        == "./output/rec/x/"
    )


# --- data


def find(values, data, arguments=(), there=()):
    return suite_table.find_data(
        DETECTION, values, list(arguments), data, exists=lambda path: path in there
    )


FILES = ("/d/coco", "/d/coco/train2017", "/d/coco/annotations/train.json")


def test_only_what_the_config_reads_is_taken():
    assert find(COCO, {"coco": "/d/coco", "voc": "/d/voc"}, there=FILES) == (["coco"], [])
    assert find({}, {"coco": "/d/coco", "voc": "/d/voc"}) == (
        ["coco", "voc"],
        [],
    )  # a config that names none takes all


def test_a_file_that_is_not_in_the_data_set_is_named():
    names, problems = find(COCO, {"coco": "/d/coco"}, there=FILES[:2])
    (problem,) = problems
    assert names == ["coco"] and problem.startswith("TrainDataset.anno_path: ")
    assert "is not in the data set" in problem and "'coco'" in problem
    assert " /d/coco/annotations/train.json " in problem


def test_evaluation_data_matters_only_where_it_is_evaluated():
    problems = find(COCO, {"coco": "/d/coco"}, ["--eval"], FILES)[1]
    assert len(problems) == 1 and problems[0].startswith("EvalDataset.dataset_dir, ")
    assert "dataset/voc" in problems[0] and "no data set of" in problems[0]
    assert "coco as dataset/coco" in problems[0]
    assert "trainyard_suites.paddledetection.data.voc.path" in problems[0]


@pytest.mark.parametrize(
    "path, name",
    [
        ("train_data/ic15_data/x.txt", "ic15_data"),
        ("train_data/ic15_data", "ic15_data"),
        ("train_data/list.txt", "all"),
    ],
)
def test_the_remedy_names_the_data_set_that_is_missing(path, name):
    suite = dict(
        DETECTION,
        data={
            "place": "train_data/{name}",
            "names": {"all": "train_data"},
            "overrides": {},
            "keys": [{"root": None, "paths": ["a"]}],
        },
    )
    assert (
        f"trainyard_suites.paddledetection.data.{name}.path"
        in suite_table.find_data(suite, {"a": path}, [], {})[1][0]
    )


def test_an_absolute_path_needs_an_override():
    values = {"TrainDataset": {"dataset_dir": "/home/me/coco"}}
    (problem,) = find(values, {"coco": "/d/coco"})[1]
    assert "override TrainDataset.dataset_dir" in problem and "below the working" in problem


def test_a_config_that_names_the_folder_above():
    """PaddleOCR's data_dir is ./train_data/ in many configs, and the files in the label list say
    the rest.
    """
    suite = dict(
        DETECTION,
        data={
            "place": "train_data/{name}",
            "names": {},
            "overrides": {},
            "keys": [{"root": None, "paths": ["dir", "list"]}],
        },
    )
    values = {"dir": "./train_data/", "list": ["./train_data/a/x.txt", "./train_data/b/y.txt"]}
    there = {"/d/a/x.txt", "/d/b"}
    names, problems = suite_table.find_data(
        suite, values, [], {"a": "/d/a", "b": "/d/b"}, exists=lambda path: path in there
    )
    assert names == ["a", "b"] and len(problems) == 1
    assert "y.txt is not in the data" in problems[0] and "'b'" in problems[0]


def test_a_data_set_that_is_missing_is_one_problem():
    _names, lost = find(COCO, {"coco": "/d/coco", "voc": "/d/voc"}, ["--eval"], [])
    assert [text.count("trainyard_suites.paddledetection.data.") for text in lost] == [1, 1]
    _names, unknown = find(COCO, {}, ["--eval"], [])
    assert len(unknown) == 2 and not [text for text in unknown if "did you mean" in text]


def test_the_deepest_data_set_has_a_path_and_none_lies_in_another():
    suite = dict(
        DETECTION,
        data={
            "place": "d/{name}",
            "names": {"all": "d"},
            "overrides": {},
            "keys": [{"root": None, "paths": ["a", "b"]}],
        },
    )
    sets = {"all": "/all", "one": "/one"}
    assert suite_table.find_data(
        suite, {"a": "d/one/x"}, [], sets, exists=lambda path: path == "/one/x"
    ) == (["one"], [])
    names, problems = suite_table.find_data(
        suite, {"a": "d/one/x", "b": "d/list.txt"}, [], sets, exists=lambda path: True
    )
    assert names == ["all", "one"] and "'all' and 'one'" in problems[0]
    assert "one inside the other" in problems[0]


def test_a_list_in_the_code_tree_is_no_data_set():
    values = {"TrainDataset": {"anno_path": "mine/list.txt"}}
    assert suite_table.find_data(DETECTION, values, [], {}, code={"mine/list.txt": 1}) == ([], [])
    assert len(suite_table.find_data(DETECTION, values, [], {}, code={"other": 1})[1]) == 1


@pytest.mark.parametrize("folder", [None, "output", "./output/rec/x/", "tmp_rec", "tools/out"])
def test_folders_that_checkpoints_come_home_from(folder):
    assert suite_table.save_problem(DETECTION, folder) is None


@pytest.mark.parametrize("folder", ["/data/out", ".", "..", "../x", "dataset/coco/out"])
def test_folders_that_no_checkpoint_would_come_home_from(folder):
    problem = suite_table.save_problem(DETECTION, folder)
    assert "no checkpoint would" in problem and "output/NAME" in problem


def test_resume_in_the_suites_own_words():
    assert suite_table.resume_options(DETECTION, "output/x/3") == (["-r", "output/x/3"], {})
    by_override = dict(DETECTION, resume={"overrides": {"Global.checkpoints": "{path}"}})
    assert suite_table.resume_options(by_override, "output/latest") == (
        [],
        {"Global.checkpoints": "output/latest"},
    )
