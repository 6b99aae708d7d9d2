# SPDX-License-Identifier: Apache-2.0
"""PaddleOCR's table on real logs and configs (fixtures: the repository at bf1c33f, CPU, 2 ranks),
and the bundle's parts that need no Paddle.
"""

from __future__ import annotations

import importlib
import sys
from pathlib import Path

import pytest
import yaml
from ansible_collections.trainyard.cluster.plugins.module_utils.environments import (
    python_env,
)
from ansible_collections.trainyard.cluster.plugins.module_utils.logs import parser
from ansible_collections.trainyard.cluster.plugins.module_utils.suites import suite_table
from ansible_collections.trainyard.cluster.plugins.plugin_utils.suites import suite_file
from PIL import Image

ROOT = Path(__file__).resolve().parents[3]
LOGS = Path(__file__).resolve().parents[2] / "fixtures" / "logs" / "paddleocr"
WORKSPACE = ROOT / "examples" / "paddleocr"
CONFIG = WORKSPACE / "configs" / "rec" / "rec_mv3_none_bilstm_ctc.yml"
SUITE = suite_file.load("paddleocr")
STEP = (
    "[2026/11/20 13:29:28] ppocr INFO: epoch: [3/72], global_step: 20, lr: 0.000500, acc: 0.500000,"
    " loss: %s, loss_ctc: 3.000000, avg_reader_cost: 0.00601 s, avg_batch_cost: 0.57930 s,"
    " avg_samples: 8.0, ips: 13.80977 samples/s, eta: %s, %s\n"
)


def scan(text):
    found = parser.LogScan(parser.Table(SUITE["logs"]))
    found.feed(text.encode() if isinstance(text, str) else text)
    return found.finish()


# -- logs
# --------------------------------------------------------------------------------------------------


def test_recognition_rank_0():
    found = scan((LOGS / "crnn_2x_rank0.log").read_bytes())
    assert found["steps"] == 8
    assert found["first_step"]["loss"] == 72.708084
    assert found["last_step"] == {
        "line": 113, "time": "2026/11/20 13:29:31", "epoch": 2, "epochs": 2, "steps": 4,
        "global_step": 8, "lr": 0.0005, "loss": 61.756769,
        "batch_cost": 0.42776, "data_cost": 0.00013, "batch": 8.0, "ips": 18.70198, "eta": 0,
    }  # fmt: skip
    assert [entry["path"].rpartition("/")[2] for entry in found["saved"]] == [
        "best_accuracy", "latest", "iter_epoch_1", "best_accuracy", "latest", "iter_epoch_2",
    ]  # fmt: skip
    assert (found["nan"], found["first_error"]) == (None, None)
    assert parser.fraction(found["last_step"], SUITE["logs"]) == 1.0


@pytest.mark.parametrize(
    "name, figures",
    [
        ("crnn_2x_rank0.log", {"acc": 0.0, "norm_edit_dis": 0.02812560742149528, "best_of": "acc"}),
        ("db_rank0.log", {"precision": 0.0, "recall": 0.0, "hmean": 0.0, "best_of": "hmean"}),
    ],
)
def test_an_evaluation_and_the_best_one_so_far(name, figures):
    text = (LOGS / name).read_text(encoding="utf-8")
    evaluation = scan(text[: text.index("save model in")])["evaluation"]
    assert {key: evaluation[key] for key in figures} == figures
    assert (evaluation["best"], evaluation["best_epoch"], evaluation["epoch"]) == (0.0, 1, 1)
    assert evaluation["fps"] > 0
    # The last line of a training says the best once more.
    assert scan(text)["evaluation"]["best_of"] == figures["best_of"]


def test_a_model_with_more_losses():
    found = scan((LOGS / "db_rank0.log").read_bytes())
    assert (found["steps"], found["first_step"]["loss"], found["last_step"]["loss"]) == (
        2,
        9.742995,
        9.167122,
    )


def test_without_an_evaluation_the_best_metric_is_none(samples):
    found = scan((samples / "logs" / "paddleocr_crnn_2x2" / "node1" / "workerlog.0").read_bytes())
    assert (found["steps"], found["saved_count"], found["evaluation"]) == (1, 2, None)


def test_a_distilled_model_is_judged_by_its_own_figures():
    line = (
        "[2026/11/20 13:29:28] ppocr INFO: cur metric, acc: 0.75, norm_edit_dis: 0.9, Teacher_acc:"
        " 0.5, fps: 8.5\n"
    )
    for text in (
        line,
        line.replace(
            "acc: 0.75, norm_edit_dis: 0.9, Teacher_acc: 0.5", "Teacher_acc: 0.5, acc: 0.75"
        ),
    ):
        assert scan(text)["evaluation"]["acc"] == 0.75


def test_a_loss_that_is_no_number_is_padded_with_x():
    found = scan((LOGS / "nan_rank0.log").read_bytes())
    assert found["nan"] == {"epoch": 1, "global_step": 2, "line": 101, "loss": "nan"}
    assert (found["steps"], found["last_step"]["loss"]) == (4, None)
    assert scan(STEP % ("infxxx", "0:00:01", ""))["last_step"]["loss"] is None


def test_days_and_memory():
    step = scan(
        STEP % ("2.500000", "1 day, 2:03:04", "max_mem_reserved: 900 MB, max_mem_allocated: 800 MB")
    )["last_step"]
    assert (step["eta"], step["memory_mb"], step["loss"]) == (93784, 800, 2.5)


def test_the_other_ranks_log_errors_only():
    """An image that is missing is replaced by another one: the rank logs a traceback and goes
    on.
    """
    found = scan((LOGS / "missing_image_rank1.log").read_bytes())
    assert (found["steps"], found["evaluation"], found["saved"]) == (0, None, [])
    assert (found["first_error"]["cause"], found["first_error"]["handled"]) == (
        "data_missing",
        True,
    )


# -- configuration
# -------------------------------------------------------------------------------------------------


@pytest.fixture
def config():
    return yaml.safe_load(CONFIG.read_text(encoding="utf-8"))


def test_what_the_product_reads_of_a_config(config):
    overrides, problems = suite_table.settle_overrides(SUITE, config, {}, "cpu", 2)
    assert (overrides, problems) == ({"Global.use_gpu": False}, [])
    assert suite_table.settle_overrides(SUITE, config, {}, "gpu", 16) == ({}, [])
    assert suite_table.settings(SUITE, config, []) == {
        "epochs": 10, "iterations": None, "batch": 16, "learning_rate": 0.003,
        "save_interval": None,
        "save": "./output/rec/mv3_none_bilstm_ctc/",
    }  # fmt: skip


def test_label_files_are_relative_to_the_working_directory(config, tmp_path):
    assert suite_table.data_paths(SUITE, config, []) == [
        ("Train.dataset.data_dir", "train_data/ic15_data"),
        ("Train.dataset.label_file_list", "train_data/ic15_data/rec_gt_train.txt"),
        ("Eval.dataset.data_dir", "train_data/ic15_data"),
        ("Eval.dataset.label_file_list", "train_data/ic15_data/rec_gt_test.txt"),
    ]
    (tmp_path / "rec_gt_train.txt").touch()
    used, problems = suite_table.find_data(SUITE, config, [], {"ic15_data": str(tmp_path)})
    assert used == ["ic15_data"]
    assert len(problems) == 1 and "rec_gt_test.txt is not" in problems[0]


def test_lmdb_sets_and_configs_that_read_all_of_train_data(config, tmp_path):
    config["Train"]["dataset"] = {
        "name": "LMDBDataSet",
        "data_dir": "./train_data/data_lmdb_release/training/",
    }
    config["Eval"]["dataset"] = {
        "name": "SimpleDataSet",
        "data_dir": "./train_data",
        "label_file_list": ["./train_data/val_list.txt"],
    }
    (tmp_path / "data_lmdb_release" / "training").mkdir(parents=True)
    (tmp_path / "val_list.txt").touch()
    assert suite_table.find_data(SUITE, config, [], {"train_data": str(tmp_path)}) == (
        ["train_data"],
        [],
    )
    assert suite_table.data_path(SUITE, "data_lmdb_release") == "train_data/data_lmdb_release"


def test_resume_is_an_override():
    assert suite_table.resume_options(SUITE, "resume/latest") == (
        [],
        {"Global.checkpoints": "resume/latest"},
    )


# NumPy 1, against which Paddle 2 was built, has no wheel for Python 3.13. Paddle 2 has none either.
@pytest.mark.parametrize(
    "python, paddle, numpy",
    [("3.9", "2.6.2", "1."), ("3.12", "2.6.2", "1."), ("3.13", "3.3.1", "2.")],
)
def test_the_pinned_list_is_complete(python, paddle, numpy):
    text = (ROOT / "roles" / "runtime" / "files" / "paddleocr.txt").read_text(encoding="utf-8")
    asked = {"package": "paddlepaddle", "version": paddle, "requirements": ["paddleocr.txt"]}
    packages = python_env.resolve(python_env.read_environment(asked), [text], python, "x86_64")
    assert packages["numpy"].startswith(numpy)
    assert {"lmdb", "pyclipper", "rapidfuzz", "opencv-python-headless"} <= packages.keys()
    assert not {"opencv-python", "opencv-contrib-python"} & packages.keys()


# -- the bundle
# --------------------------------------------------------------------------------------------------


@pytest.fixture
def bundle(monkeypatch):
    """Import a module of the bundle, without leaving its common names behind."""
    monkeypatch.syspath_prepend(str(WORKSPACE))
    yield importlib.import_module
    for name in [
        name
        for name in sys.modules
        if name == "make_data" or name.partition(".")[0] == "recognition"
    ]:
        monkeypatch.delitem(sys.modules, name)


def test_overrides_are_yaml_and_name_a_section_that_is_there(bundle):
    module = bundle("recognition.config")
    args = module.parse_args(
        ["-c", str(CONFIG), "-o", "Global.eval_batch_step=[0,4]", "Global.use_gpu=False"]
    )
    read = module.read(args.config, args.opt)
    assert (read["Global"]["eval_batch_step"], read["Global"]["use_gpu"]) == ([0, 4], False)
    for wrong in ("Globl.use_gpu=False", "Global.use_gpu", "Global.use_gpu.x=1"):
        with pytest.raises(module.Refused, match="every section before the last dot"):
            module.read(args.config, [wrong])
    with pytest.raises(
        module.Refused, match="Backbone.name: this bundle has SmallConv; got 'MobileNetV3'"
    ):
        module.only({"name": "MobileNetV3"}, {"SmallConv": None}, "Backbone")


def test_ctc_reading_and_edit_distance(bundle):
    metric = bundle("recognition.metric")
    assert list(
        metric.words([[0, 1, 1, 0, 1, 2], [0, 0, 0, 0, 0, 0], [3, 3, 0, 0, 2, 2]], "abc")
    ) == ["aab", "", "cb"]
    for one, other, faults in (
        ("", "", 0),
        ("12", "", 2),
        ("123", "123", 0),
        ("123", "1223", 1),
        ("kitten", "sitting", 3),
    ):
        assert metric.distance(one, other) == metric.distance(other, one) == faults


def test_words_are_drawn_once_and_never_over_anything_else(bundle, tmp_path, capsys):
    make_data = bundle("make_data")
    small = ["--train", "6", "--test", "3"]
    out = tmp_path / "ic15_data"
    assert make_data.main([str(out), *small]) == 0
    assert sorted(path.name for path in out.iterdir()) == [
        "SHA256SUMS",
        "rec_gt_test.txt",
        "rec_gt_train.txt",
        "test",
        "train",
    ]
    lines = [line.split("\t") for line in (out / "rec_gt_train.txt").read_text().splitlines()]
    assert [name for name, _word in lines] == [f"train/word_{n}.jpg" for n in range(1, 7)]
    for name, word in lines:
        assert 2 <= len(word) <= 4 and word.isdecimal()
        with Image.open(out / name) as picture:
            low, high = picture.convert("L").getextrema()
            assert picture.size == (64, 32) and high - low > 50, "no ink on the paper"
    assert make_data.main([str(tmp_path / "again"), *small]) == 0
    assert (tmp_path / "again" / "SHA256SUMS").read_text() == (out / "SHA256SUMS").read_text()

    capsys.readouterr()
    assert make_data.main([str(out), *small]) == 0
    assert "nothing done" in capsys.readouterr().out
    assert make_data.main([str(out), "--train", "5", "--test", "3"]) == 1
    assert "train/word_6.jpg is not" in capsys.readouterr().err
    assert make_data.main([str(out), *small, "--seed", "1"]) == 1
    assert "with other options" in capsys.readouterr().err
    (out / "test" / "word_2.jpg").write_bytes(b"x")
    assert make_data.main([str(out), *small]) == 1
    assert "an image was changed" in capsys.readouterr().err
    assert (out / "test" / "word_2.jpg").read_bytes() == b"x"
