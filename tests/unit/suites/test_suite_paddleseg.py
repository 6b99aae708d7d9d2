# SPDX-License-Identifier: Apache-2.0
"""PaddleSeg: its table on real logs and on the bundled workspace, the workspace's data set, and
what its environment holds.
"""

from __future__ import annotations

import importlib.util
import re
import shutil
from pathlib import Path

import pytest
from ansible_collections.trainyard.cluster.plugins.module_utils.environments import (
    python_env,
)
from ansible_collections.trainyard.cluster.plugins.module_utils.logs import parser
from ansible_collections.trainyard.cluster.plugins.module_utils.suites import suite_table
from ansible_collections.trainyard.cluster.plugins.plugin_utils.inputs import sources
from ansible_collections.trainyard.cluster.plugins.plugin_utils.suites import suite_file
from PIL import Image, ImageStat

ROOT = Path(__file__).resolve().parents[3]
WORKSPACE = ROOT / "examples" / "paddleseg"
CONFIG = "configs/pp_liteseg/pp_liteseg_stdc1_cityscapes_1024x512_scale0.5_160k.yml"
ARGUMENTS = [
    "--save_dir",
    "output/" + Path(CONFIG).stem,
    "--save_interval",
    "1000",
    "--num_workers",
    "3",
    "--do_eval",
    "--use_vdl",
]
# Excerpts of workerlog.0 of the bundled workspace on two ranks: paddleseg 2.8.0 and Paddle 2.6.2,
# paths shortened.
EXCERPTS = ROOT / "tests" / "fixtures" / "logs" / "paddleseg"
SMALL = ["--train", "6", "--val", "3", "--size", "96x64"]


def load_make_data():
    spec = importlib.util.spec_from_file_location(
        "example_paddleseg_make_data", WORKSPACE / "make_data.py"
    )
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


make_data = load_make_data()


@pytest.fixture(scope="module")
def suite():
    return suite_file.load("paddleseg")


@pytest.fixture(scope="module")
def config(suite):
    entries = [path.relative_to(WORKSPACE).as_posix() for path in WORKSPACE.rglob("*.yml")]
    return sources.config_chain(str(WORKSPACE), CONFIG, suite["config_keys"]["base"], entries)


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    """One small data set; tests that change it work on a copy."""
    out = tmp_path_factory.mktemp("made") / "cityscapes"
    assert make_data.main([str(out), *SMALL]) == 0
    return out


@pytest.fixture
def copy(made, tmp_path):
    return shutil.copytree(made, tmp_path / "cityscapes")


def scan(suite, data, piece=1 << 20):
    found = parser.LogScan(parser.Table(suite["logs"]))
    for begin in range(0, len(data), piece):
        found.feed(data[begin : begin + piece])
    return found.finish()


# -- what is read from the logs
# -----------------------------------------------------------------------------------------------


def test_the_newest_codes_log(suite, samples):
    folder = samples / "logs" / "paddleseg_ppliteseg_2x2" / "node1"
    found = scan(suite, (folder / "workerlog.0").read_bytes())
    assert found["steps"] == 5
    assert (found["first_step"]["global_step"], found["first_step"]["loss"]) == (2, 4.524)
    assert found["last_step"] == {
        "line": 157,
        "epoch": 3,
        "global_step": 10,
        "total_steps": 10,
        "time": "2026/11/20 09:28:00",
        "loss": 3.7344,
        "lr": 0.000055,
        "batch_cost": 1.2502,
        "data_cost": 0.00706,
        "ips": 1.5997,
        "eta": 0,
    }
    assert found["evaluation"] == {
        "epoch": 3,
        "global_step": 10,
        "line": 160,
        "samples": 4,
        "miou": 0.0261,
        "acc": 0.0752,
        "kappa": -0.0042,
        "dice": 0.0491,
        "best_miou": 0.0261,
    }
    assert (found["nan"], found["first_error"]) == (None, None)
    assert parser.fraction(found["last_step"], suite["logs"]) == 1.0


def test_only_global_rank_0_prints_steps(suite, samples):
    folder = samples / "logs" / "paddleseg_ppliteseg_2x2"
    silent = [
        folder / "node1" / "workerlog.1",
        folder / "node2" / "workerlog.0",
        folder / "node2" / "workerlog.1",
    ]
    assert suite["logs"]["step"]["ranks"] == "first"
    assert [scan(suite, path.read_bytes())["steps"] for path in silent] == [0, 0, 0]


def test_the_librarys_log_with_two_evaluations(suite):
    found = scan(suite, (EXCERPTS / "trained.log").read_bytes(), piece=97)
    first, last = found["first_step"], found["last_step"]
    assert (found["steps"], first["global_step"], last["global_step"], last["total_steps"]) == (
        8,
        10,
        80,
        80,
    )
    assert last["loss"] < first["loss"]
    assert re.fullmatch(r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d", last["time"])
    assert found["evaluation"]["global_step"] == 80, (
        "the second evaluation replaces the first one's values"
    )
    assert {"miou", "acc", "kappa", "dice", "best_miou"} <= set(found["evaluation"])
    assert found["first_error"] is None


def test_a_resumed_training_counts_on(suite):
    found = scan(suite, (EXCERPTS / "resumed.log").read_bytes())
    assert (found["first_step"]["global_step"], found["last_step"]["total_steps"]) == (50, 60)


def test_a_nan_loss_is_flagged_where_it_began(suite):
    raw = (EXCERPTS / "nan.log").read_bytes()
    found = scan(suite, raw)
    assert found["nan"]["loss"] == "nan"
    assert b"loss: nan" in raw.splitlines()[found["nan"]["line"] - 1]
    assert found["nan"]["global_step"] > found["first_step"]["global_step"], (
        "the steps before it were finite"
    )


def test_memory_and_moving_average_lines(suite):
    """What a CPU never prints; the first as v2.9.1 has it, the second as newer code has it."""
    line = (
        "[TRAIN] epoch: 1, iter: 10/80, loss: 1.0, lr: 0.1, batch_cost: 1.0, reader_cost: 0.1, ips:"
        " 4.0 samples/sec, %s | ETA 123:00:01\n"
    )
    for memory in (
        "max_mem_reserved: 90 MB, max_mem_allocated: 80 MB",
        "max_mem_reserved: 90 MB,max_mem_allocated: 80 MB",
    ):
        step = scan(suite, (line % memory).encode())["last_step"]
        assert (step["memory_mb"], step["eta"]) == (80, 442801)
    found = scan(
        suite,
        b"[EVAL] The EMA model with the best validation mIoU (0.5000) was saved at iter 80.\n",
    )
    assert found["evaluation"]["best_ema_miou"] == 0.5


def test_a_line_that_another_rank_cut_does_not_count(suite):
    whole = (
        b"2026-11-20 13:00:00 [INFO]\t[TRAIN] epoch: 1, iter: 10/80, loss: 2.5000, lr: 0.001,"
        b" batch_cost: 1.0\n"
    )
    found = scan(
        suite,
        whole
        + b"2026-11-20 13:00:09 [INFO]\t[TRAIN] epoch: 1, it[EVAL] #Ima\n"
        + b"[TRAIN] epoch: 2, iter: 2",
    )
    assert (found["steps"], found["last_step"]["global_step"], found["last_step"]["loss"]) == (
        1,
        10,
        2.5,
    )
    assert found["evaluation"] is None


# -- what the table says of the suite's files
# ----------------------------------------------------------------------------------


def test_the_script_is_found_where_either_release_has_it(suite):
    assert sources.find_script(suite, ["train.py", "tools/train.py"], "/code") == "tools/train.py"
    assert (
        sources.find_script(suite, ["train.py", "paddleseg/core/train.py"], "/code") == "train.py"
    )


def test_what_the_bundles_config_trains_with(suite, config):
    _order, values = config
    found = suite_table.settings(suite, values, ARGUMENTS)
    assert found == {
        "epochs": None,
        "iterations": 80,
        "batch": 4,
        "learning_rate": 0.002,
        "save_interval": 1000,
        "save": "output/" + Path(CONFIG).stem,
    }
    assert suite_table.settings(suite, values, [*ARGUMENTS, "--iters", "8"])["iterations"] == 8


def test_the_bundle_trains_the_published_network(config):
    _order, values = config
    assert values["model"]["type"] == "PPLiteSeg"
    assert values["model"]["backbone"] == {"type": "STDC1", "pretrained": None}
    assert values["lr_scheduler"]["type"] == "PolynomialDecay", (
        "the base file's values are kept where the config has others"
    )


def test_the_data_set_is_where_the_config_looks(suite, config, made):
    assert suite_table.data_path(suite, "cityscapes") == "data/cityscapes"
    assert suite_table.data_path(suite, "ade20k") == "data/ADEChallengeData2016"
    assert suite_table.find_data(suite, config[1], ARGUMENTS, {"cityscapes": str(made)}) == (
        ["cityscapes"],
        [],
    )
    _names, problems = suite_table.find_data(suite, config[1], ARGUMENTS, {"camvid": str(made)})
    assert len(problems) == 1
    assert "trainyard_suites.paddleseg.data.cityscapes" in problems[0]


def test_lists_of_files_are_not_below_the_data_root(suite, tmp_path):
    """paddleseg/datasets/dataset.py opens train_path as it stands."""
    (tmp_path / "train.txt").write_text("a.jpg a.png\n")
    values = {
        "train_dataset": {
            "type": "Dataset",
            "dataset_root": "data/camvid",
            "train_path": "data/camvid/train.txt",
        }
    }
    values["val_dataset"] = {"dataset_root": "data/camvid", "val_path": "data/camvid/val.txt"}
    assert suite_table.find_data(suite, values, [], {"camvid": str(tmp_path)}) == (["camvid"], [])
    _names, problems = suite_table.find_data(
        suite, values, ["--do_eval"], {"camvid": str(tmp_path)}
    )
    assert ["val_dataset.val_path" in problem for problem in problems] == [True], (
        "what only an evaluation reads"
    )


def test_how_a_training_goes_on(suite):
    assert suite_table.resume_options(suite, "resume/iter_40") == (
        ["--resume_model", "resume/iter_40"],
        {},
    )


# -- the bundle's data set
# --------------------------------------------------------------------------------------------------


def everything(directory):
    return {
        path.relative_to(directory).as_posix(): path.read_bytes()
        for path in directory.rglob("*")
        if path.is_file()
    }


def test_the_data_set_is_laid_out_as_cityscapes_is(made):
    for split, number in (("train", 6), ("val", 3)):
        pictures = sorted(
            path.name for path in made.glob(f"leftImg8bit/{split}/*/*_leftImg8bit.png")
        )
        labels = sorted(
            path.name for path in made.glob(f"gtFine/{split}/*/*_gtFine_labelTrainIds.png")
        )
        assert len(pictures) == number
        assert [name.replace("_leftImg8bit", "") for name in pictures] == [
            name.replace("_gtFine_labelTrainIds", "") for name in labels
        ]
    assert made.stat().st_mode & 0o777 == 0o755


def test_the_colours_are_the_labels(made):
    seen = set()
    for path in made.glob("gtFine/*/*/*.png"):
        name = path.as_posix().replace("gtFine", "leftImg8bit").replace("_labelTrainIds", "")
        with Image.open(path) as label, Image.open(name) as picture:
            assert (label.mode, picture.mode, label.size, picture.size) == (
                "L",
                "RGB",
                (96, 64),
                (96, 64),
            )
            for number in set(label.tobytes()) - {make_data.UNLABELLED}:
                mask = label.point([255 if value == number else 0 for value in range(256)])
                found = ImageStat.Stat(
                    picture, mask
                ).mean  # every object is up to 20 off, and noise draws everything towards grey
                assert all(abs(a - b) < 45 for a, b in zip(found, make_data.colour(number))), (
                    path,
                    number,
                )
                seen.add(number)
    assert len(seen) > 10


def test_every_class_is_in_the_training_pictures(tmp_path):
    seen = set()
    for picture, _label in make_data.names("train", 96):
        seen |= {
            number
            for number, _corners in make_data.scene(
                make_data.random.Random(f"2016 {picture}"), 256, 128
            )
        }
    assert seen == {*range(19), make_data.UNLABELLED}


def test_same_options_same_bytes_another_seed_others(made, tmp_path):
    assert make_data.main([str(tmp_path / "again"), *SMALL]) == 0
    assert everything(tmp_path / "again") == everything(made)
    assert make_data.main([str(tmp_path / "other"), *SMALL, "--seed", "7"]) == 0
    other, first = everything(tmp_path / "other"), everything(made)
    assert other.keys() == first.keys()
    assert all(other[name] != first[name] for name in first)


def test_an_equal_earlier_result_is_left_alone(copy, capsys):
    before = {path: path.stat().st_mtime_ns for path in copy.rglob("*")}
    assert make_data.main([str(copy), *SMALL]) == 0
    assert "already there and equal" in capsys.readouterr().out
    assert {path: path.stat().st_mtime_ns for path in copy.rglob("*")} == before


def flip_last_byte(path):
    data = bytearray(path.read_bytes())
    data[-1] ^= 1
    path.write_bytes(data)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (
            lambda out: (out / "notes.txt").write_text("mine"),
            "notes.txt is not part of this data set",
        ),
        (
            lambda out: next(out.glob("gtFine/val/*/*_000001_*")).unlink(),
            "labelTrainIds.png is missing",
        ),
        (
            lambda out: flip_last_byte(next(out.glob("leftImg8bit/val/*/*_000002_*"))),
            "a picture was changed",
        ),
        (lambda out: (out / "made.json").write_text("[]"), "it has no made.json of this program's"),
        (lambda out: (out / "made.json").unlink(), "it has no made.json of this program's"),
    ],
)
def test_a_changed_result_is_refused_and_kept(copy, capsys, change, message):
    change(copy)
    before = everything(copy)
    assert make_data.main([str(copy), *SMALL]) == 1
    assert message in capsys.readouterr().err
    assert everything(copy) == before


def test_other_options_and_files_are_refused(copy, tmp_path, capsys):
    assert make_data.main([str(copy), *SMALL, "--seed", "1"]) == 1
    assert "with other options" in capsys.readouterr().err
    (tmp_path / "file").write_text("a file")
    assert make_data.main([str(tmp_path / "file"), *SMALL]) == 1
    assert "it is not a directory" in capsys.readouterr().err


def test_an_interrupted_run_leaves_nothing(tmp_path, monkeypatch):
    def full(*_arguments):
        raise OSError("No space left on device")

    monkeypatch.setattr(make_data, "digest", full)  # after the pictures, before the record
    with pytest.raises(OSError, match="No space left"):
        make_data.main([str(tmp_path / "cityscapes"), *SMALL])
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("options", "message"),
    [(["--size", "96"], "WIDTHxHEIGHT"), (["--size", "96x63"], "64 to"), (["--val", "0"], "--val")],
)
def test_wrong_options_are_refused(tmp_path, capsys, options, message):
    with pytest.raises(SystemExit) as ended:
        make_data.main([str(tmp_path / "cityscapes"), *options])
    assert ended.value.code == 2
    assert message in capsys.readouterr().err


# -- the environment
# --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("python", ["3.9", "3.10", "3.11"])
def test_the_lock_holds_what_paddle_26_and_the_library_can_use(suite, python):
    lists = [*suite["environment"]["requirements"], "examples/paddleseg/requirements.txt"]
    texts = [
        Path(python_env.requirement_path(name, ROOT / "roles/runtime/files", ROOT)).read_text()
        for name in lists
    ]
    asked = python_env.read_environment(
        {"package": "paddlepaddle", "version": "2.6.2", "requirements": lists}
    )
    packages = python_env.resolve(asked, texts, python, "x86_64")
    assert packages["paddleseg"] == "2.8.0"
    assert "opencv-python" not in packages, "it needs libGL"
    assert {"opencv-python-headless", "visualdl", "scikit-image"} <= set(packages)
    assert packages["numpy"].startswith("1.")
    assert int(packages["protobuf"].split(".")[0]) < 7, (
        "paddle.distributed.fleet of 2.6 reads FieldDescriptor.label"
    )
    assert int(packages["setuptools"].split(".")[0]) < 81
