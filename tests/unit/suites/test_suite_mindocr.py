# SPDX-License-Identifier: Apache-2.0
"""MindOCR: its table on real logs and on the bundled workspace, the workspace's data set, and what
its environment holds.
"""

from __future__ import annotations

import importlib.util
import shutil
from pathlib import Path

import pytest
import yaml
from ansible_collections.trainyard.cluster.plugins.module_utils.environments import (
    python_env,
)
from ansible_collections.trainyard.cluster.plugins.module_utils.logs import parser
from ansible_collections.trainyard.cluster.plugins.module_utils.suites import suite_table
from ansible_collections.trainyard.cluster.plugins.plugin_utils.inputs import sources
from ansible_collections.trainyard.cluster.plugins.plugin_utils.suites import suite_file
from PIL import Image

ROOT = Path(__file__).resolve().parents[3]
WORKSPACE = ROOT / "examples" / "mindocr"
CONFIG = "configs/rec/crnn/crnn_resnet34.yaml"
# worker_N.log of the bundled workspace over msrun on two nodes, MindSpore 2.7.0; and what MindOCR
# itself (commit 6dd7792) wrote.
EXCERPTS = ROOT / "tests" / "fixtures" / "logs" / "mindocr"
SMALL = ["--train", "6", "--val", "3"]


def load_make_data():
    spec = importlib.util.spec_from_file_location(
        "example_mindocr_make_data", WORKSPACE / "make_data.py"
    )
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


make_data = load_make_data()


@pytest.fixture(scope="module")
def suite():
    return suite_file.load("mindocr")


@pytest.fixture(scope="module")
def config(suite):
    return sources.config_chain(str(WORKSPACE), CONFIG, suite["config_keys"]["base"], [CONFIG])[1]


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    """One small data set; tests that change it work on a copy."""
    out = tmp_path_factory.mktemp("made") / "digits"
    assert make_data.main([str(out), *SMALL]) == 0
    return out


@pytest.fixture
def copy(made, tmp_path):
    return Path(shutil.copytree(made, tmp_path / "digits"))


def scan(suite, data, piece=1 << 20):
    found = parser.LogScan(parser.Table(suite["logs"]))
    for begin in range(0, len(data), piece):
        found.feed(data[begin : begin + piece])
    return found.finish()


# -- what is read from the logs
# -----------------------------------------------------------------------------------------------


def test_a_real_training_whose_loss_is_lost(suite, samples):
    found = scan(
        suite, (samples / "logs" / "mindocr_crnn_msrun_2x1" / "node1" / "worker_0.log").read_bytes()
    )
    assert found["first_step"] == {
        **{
            "line": 51,
            "time": "2026-11-20 09:31:13",
            "epoch": 1,
            "epochs": 2,
            "step": 1,
            "steps": 4,
            "loss": 73.372452,
            "lr": 0.0005,
        },
        **{"batch_cost": 18.457601, "ips": 0.43},
    }
    assert found["nan"] == {"epoch": 1, "step": 2, "line": 52, "loss": "nan"}
    assert (
        found["last_step"]["epoch"] == 2
        and parser.fraction(found["last_step"], suite["logs"]) == 1.0
    )
    assert (found["evaluation"], found["saved_count"], found["first_error"]) == (None, 0, None)


def test_the_first_rank_alone_shows_steps(suite, samples):
    found = scan(
        suite, (samples / "logs" / "mindocr_crnn_msrun_2x1" / "node2" / "worker_1.log").read_bytes()
    )
    assert found["steps"] == 0 and suite["logs"]["step"]["ranks"] == "first"


def test_the_real_suites_log(suite):
    found = scan(suite, (EXCERPTS / "upstream.log").read_bytes())
    assert (found["first_step"]["loss"], found["first_step"]["steps"]) == (73.345459, 4)
    # the epoch's mean, which is the log's last line of the kind, is no step
    assert found["last_step"]["loss"] == 16.38055 and found["nan"] is None
    assert [each["best"] for each in found["saved"]] == [50.17961883544922, 17.23691177368164]


@pytest.mark.parametrize("piece", [1 << 20, 97])
def test_the_bundles_log(suite, piece):
    found = scan(suite, (EXCERPTS / "trained.log").read_bytes(), piece)
    first, last = found["first_step"], found["last_step"]
    assert (first["epoch"], first["step"], first["steps"], last["epoch"], last["epochs"]) == (
        1,
        8,
        32,
        12,
        12,
    )
    assert first["loss"] > 10 > 3 > last["loss"] and parser.fraction(last, suite["logs"]) == 1.0
    assert found["evaluation"]["acc"] > 0.9 and found["evaluation"]["epoch"] == 12
    assert suite["logs"]["evaluation"]["main"] in found["evaluation"]
    assert found["saved_count"] > 1 and found["first_error"] is None


def test_a_resumed_training_counts_on(suite):
    found = scan(suite, (EXCERPTS / "resumed.log").read_bytes())
    assert (found["first_step"]["epoch"], found["last_step"]["epoch"]) == (13, 14)
    assert found["first_step"]["loss"] < 5


def test_a_detectors_lines_and_epochs_without_steps(suite):
    """What DBNet with dataset_sink_mode shows: parameters in groups, no step lines, a metric of
    three numbers.
    """
    prefix = "[2026-11-20 09:31:29] mindocr.utils.callbacks INFO - "
    text = (
        "epoch: [1/4], loss: 3.500000, epoch time: 33.959 s, per step time: 8489.726 ms, fps per"
        " card: 0.94 img/s\nPerformance: {'recall': 0.25, 'precision': 0.5, 'f-score': 0.3333},"
        " eval time: 0.5\nepoch: [2/4] step: [3/4], loss: 2.5, lr_0: 0.000427, per step time:"
        " 3812.521 ms, fps per card: 2.10 img/s\n"
    )
    found = scan(suite, "".join(prefix + line + "\n" for line in text.splitlines()).encode())
    assert (
        found["first_step"]["epoch"] == 1
        and parser.fraction(found["first_step"], suite["logs"]) == 0.25
    )
    assert {key: found["evaluation"][key] for key in ("recall", "precision", "hmean")} == {
        "recall": 0.25,
        "precision": 0.5,
        "hmean": 0.3333,
    }
    assert (
        found["last_step"]["lr"] == 0.000427
        and parser.fraction(found["last_step"], suite["logs"]) == 7 / 16
    )


# -- what a job of this suite is told
# ------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "world, given, switched, refused",
    [
        (2, {}, True, False),
        (1, {}, None, False),
        (2, {"system.distribute": False}, False, True),
        (2, {"system.distribute": True}, True, False),
    ],
)
def test_the_ranks_know_of_each_other_or_do_not_start(
    suite, config, world, given, switched, refused
):
    overrides, problems = suite_table.settle_overrides(suite, config, given, "cpu", world)
    assert config["system"]["distribute"] is False, "as MindOCR's files for one device are"
    assert overrides.get("system.distribute") is switched and bool(problems) is refused
    assert overrides["system.amp_level"] == "O0"


def test_settings_are_read_from_the_config(suite, config):
    assert suite_table.settings(suite, config, []) == {
        **{
            "epochs": 12,
            "iterations": None,
            "batch": 8,
            "learning_rate": 0.006,
            "save_interval": None,
            "save": "./tmp_rec",
        },
    }


def test_the_data_appears_where_the_config_looks_for_it(suite, config, made):
    overrides, _problems = suite_table.settle_overrides(suite, config, {}, "cpu", 2)
    effective = suite_table.apply_overrides(config, overrides)
    assert suite_table.find_data(suite, effective, [], {"digits": str(made)}) == (["digits"], [])
    (made.parent / "empty").mkdir(exist_ok=True)
    assert (
        "digits/training"
        in suite_table.find_data(suite, effective, [], {"digits": str(made.parent / "empty")})[1][0]
    )


def test_resume_is_an_override_that_the_bundles_config_takes(suite, config):
    assert suite_table.resume_options(suite, "resume/train_resume") == (
        [],
        {"model.resume": "resume/train_resume.ckpt"},
    )
    assert "resume" in config["model"], "-o takes only keys that the config has"


def test_every_word_the_suite_passes_is_a_key_of_the_config(suite, config):
    overrides, _problems = suite_table.settle_overrides(suite, config, {}, "cpu", 2)
    keys = [*overrides, *suite["resume"]["overrides"], suite["distributed"]["key"]]
    assert [key for key in keys if suite_table.lookup(config, key) is None] == []


def test_the_script_is_where_the_table_says(suite):
    assert sources.find_script(suite, ["tools", "tools/train.py"], "x") == "tools/train.py"
    assert (WORKSPACE / "tools" / "train.py").is_file()


# -- the data set
# --------------------------------------------------------------------------------------------------


def everything(directory):
    return {
        path.relative_to(directory).as_posix(): path.read_bytes()
        for path in directory.rglob("*")
        if path.is_file()
    }


def test_same_options_same_bytes_and_another_seed_others(made, tmp_path):
    assert make_data.main([str(tmp_path / "again"), *SMALL]) == 0
    assert everything(tmp_path / "again") == everything(made)
    assert make_data.main([str(tmp_path / "other"), *SMALL, "--seed", "7"]) == 0
    other, first = everything(tmp_path / "other"), everything(made)
    assert other.keys() == first.keys() and all(other[name] != first[name] for name in first)


def test_labels_fit_the_network(made, config):
    lines = [
        line.split("\t")
        for split in ("training", "validation")
        for line in (made / f"gt_{split}.txt").read_text().splitlines()
    ]
    assert len(lines) == 9
    for _name, word in lines:
        assert (
            set(word) <= set(config["postprocess"]["character_dict"])
            and 3 <= len(word) <= config["common"]["max_text_len"]
        )
    height, width = config["train"]["dataset"]["image_shape"]
    with Image.open(made / "training" / lines[0][0]) as picture:
        assert picture.size == (width, height)
    assert config["common"]["num_classes"] == len(config["postprocess"]["character_dict"]) + 1
    assert config["loss"]["pred_seq_len"] == width // 4


def test_every_digit_is_another_picture():
    drawn = {
        digit: frozenset(name for name in make_data.STROKES if name not in make_data.MISSING[digit])
        for digit in "0123456789"
    }
    assert len(set(drawn.values())) == 10


def test_an_equal_earlier_result_is_left_alone(copy, capsys):
    before = {path: path.stat().st_mtime_ns for path in copy.rglob("*")}
    assert make_data.main([str(copy), *SMALL]) == 0
    assert "already there and equal" in capsys.readouterr().out
    assert {path: path.stat().st_mtime_ns for path in copy.rglob("*")} == before


@pytest.mark.parametrize(
    "change, message",
    [
        (
            lambda out: (out / "notes.txt").write_text("mine"),
            "notes.txt is not part of this data set",
        ),
        (lambda out: (out / "training" / "word_2.png").unlink(), "training/word_2.png is missing"),
        (
            lambda out: (out / "gt_validation.txt").write_text("word_1.png\t1\n"),
            "gt_validation.txt was made with other options",
        ),
    ],
)
def test_a_changed_result_is_refused_and_kept(copy, capsys, change, message):
    change(copy)
    before = everything(copy)
    assert make_data.main([str(copy), *SMALL]) == 1
    assert message in capsys.readouterr().err and everything(copy) == before


def test_an_interrupted_run_leaves_nothing(tmp_path, monkeypatch):
    def full(*_arguments):
        raise OSError("No space left on device")

    monkeypatch.setattr(make_data, "lines", full)  # after the images, before the labels
    with pytest.raises(OSError, match="No space left"):
        make_data.main([str(tmp_path / "digits"), *SMALL])
    assert list(tmp_path.iterdir()) == []


# -- its environment
# --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("python", ["3.9", "3.10", "3.11"])
def test_the_pinned_list_is_complete_and_goes_with_mindspore(suite, python):
    asked = python_env.read_environment(
        {
            "package": "mindspore",
            "version": "2.7.0",
            "requirements": suite["environment"]["requirements"],
        }
    )
    text = (ROOT / "roles" / "runtime" / "files" / "mindocr.txt").read_text(encoding="utf-8")
    packages = python_env.resolve(asked, [text], python, "x86_64")
    assert (
        packages["mindspore"] == "2.7.0"
        and packages["numpy"].startswith("1.")
        and packages["huggingface-hub"] == "0.16.4"
    )
    assert python_env.source_packages([text]) == ["seqeval"]
    assert not {"opencv-python", "paddlepaddle", "torch"} & set(packages)
    assert set(suite["environment"]["packages"]) <= set(python_env.PACKAGES)


def test_the_config_is_yaml_that_any_node_reads():
    assert yaml.safe_load((WORKSPACE / CONFIG).read_text(encoding="utf-8"))["system"]["mode"] == 0
