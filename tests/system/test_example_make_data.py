# SPDX-License-Identifier: Apache-2.0
"""The bundled workspace: its data set is deterministic, laid out as COCO is, and never overwrites
anybody's files.
"""

from __future__ import annotations

import importlib.util
import json
import re
import shutil
from pathlib import Path

import pytest
import yaml
from PIL import Image

WORKSPACE = Path(__file__).resolve().parents[2] / "examples" / "paddledetection"
SMALL = ["--train", "6", "--val", "3", "--size", "96x64"]


def load_make_data():
    spec = importlib.util.spec_from_file_location("example_make_data", WORKSPACE / "make_data.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


make_data = load_make_data()


def everything(directory):
    return {
        path.relative_to(directory).as_posix(): path.read_bytes()
        for path in directory.rglob("*")
        if path.is_file()
    }


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    """One small data set; tests that change it work on a copy."""
    out = tmp_path_factory.mktemp("made") / "coco"
    assert make_data.main([str(out), *SMALL]) == 0
    return out


@pytest.fixture
def copy(made, tmp_path):
    shutil.copytree(made, tmp_path / "coco")
    return tmp_path / "coco"


def annotation(out, split):
    return json.loads(
        (out / "annotations" / f"instances_{split}2017.json").read_text(encoding="utf-8")
    )


def test_same_options_same_bytes(made, tmp_path):
    assert make_data.main([str(tmp_path / "again"), *SMALL]) == 0
    assert everything(tmp_path / "again") == everything(made)


def test_another_seed_gives_other_shapes_and_pixels(made, tmp_path):
    assert make_data.main([str(tmp_path / "other"), *SMALL, "--seed", "7"]) == 0
    other, first = everything(tmp_path / "other"), everything(made)
    assert other.keys() == first.keys()
    assert all(other[name] != first[name] for name in first)


def test_splits_do_not_repeat_each_other(made):
    assert (
        annotation(made, "train")["annotations"][0]["bbox"]
        != annotation(made, "val")["annotations"][0]["bbox"]
    )


def test_layout_is_cocos(made):
    assert sorted(path.name for path in made.iterdir()) == ["annotations", "train2017", "val2017"]
    assert sorted(path.name for path in (made / "val2017").iterdir()) == [
        f"{number:012d}.jpg" for number in (1, 2, 3)
    ]
    assert made.stat().st_mode & 0o777 == 0o755


@pytest.mark.parametrize(("split", "number"), [("train", 6), ("val", 3)])
def test_annotations_are_consistent(made, split, number):
    document = annotation(made, split)
    categories = {category["id"] for category in document["categories"]}
    images = {image["id"]: image for image in document["images"]}
    assert categories == {1, 2, 3, 4}
    assert list(images) == list(range(1, number + 1))
    assert [item["id"] for item in document["annotations"]] == list(
        range(1, len(document["annotations"]) + 1)
    )
    # Every image holds a shape.
    assert {item["image_id"] for item in document["annotations"]} == set(images)
    for item in document["annotations"]:
        x, y, width, height = item["bbox"]
        assert item["category_id"] in categories
        assert item["iscrowd"] == 0
        assert 0 <= x < x + width < 96
        assert 0 <= y < y + height < 64
        assert 0 < item["area"] <= width * height
        (outline,) = item["segmentation"]
        assert (min(outline[::2]), min(outline[1::2]), max(outline[::2]), max(outline[1::2])) == (
            x,
            y,
            x + width,
            y + height,
        )


def test_every_shape_is_drawn_where_its_box_says(made):
    document = annotation(made, "train")
    files = {image["id"]: image["file_name"] for image in document["images"]}
    for item in document["annotations"]:
        with Image.open(made / "train2017" / files[item["image_id"]]) as picture:
            assert picture.size == (96, 64)
            x, y, width, height = item["bbox"]
            seen = picture.getpixel((x + width // 2, y + height // 2))
        colours = [colour for colour, _corners in make_data.SHAPES.values()]
        nearest = min(
            range(len(colours)),
            key=lambda number: sum((a - b) ** 2 for a, b in zip(seen, colours[number])),
        )
        assert nearest + 1 == item["category_id"], f"{item}: {seen}"


def test_many_shapes_stay_inside_small_and_large_images():
    for width, height in ((64, 64), (64, 200), (1000, 65)):
        for item in make_data.annotations("train", 200, 1, width, height)["annotations"]:
            x, y, box_width, box_height = item["bbox"]
            assert 0 <= x < x + box_width < width
            assert 0 <= y < y + box_height < height


def test_an_equal_earlier_result_is_left_alone(copy, capsys):
    before = {path: path.stat().st_mtime_ns for path in copy.rglob("*")}
    assert make_data.main([str(copy), *SMALL]) == 0
    assert "equal, nothing done" in capsys.readouterr().out
    assert {path: path.stat().st_mtime_ns for path in copy.rglob("*")} == before


def test_an_equal_result_of_another_jpeg_encoder_is_equal(tmp_path, monkeypatch, capsys):
    original = Image.Image.save
    monkeypatch.setattr(
        Image.Image,
        "save",
        lambda self, target, kind, **_options: original(self, target, kind, quality=70),
    )
    assert make_data.main([str(tmp_path / "coco"), *SMALL]) == 0
    monkeypatch.undo()
    assert make_data.main([str(tmp_path / "coco"), *SMALL]) == 0
    assert "nothing done" in capsys.readouterr().out


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
            lambda out: (out / "train2017" / "000000000002.jpg").unlink(),
            "train2017/000000000002.jpg is missing",
        ),
        (
            lambda out: flip_last_byte(out / "val2017" / "000000000003.jpg"),
            "an image in val2017 was changed",
        ),
        (
            lambda out: (out / "annotations" / "instances_val2017.json").write_text("[]"),
            "instances_val2017.json is not this program's",
        ),
        (
            lambda out: (out / "annotations" / "instances_val2017.json").write_text("{"),
            "instances_val2017.json is not this program's",
        ),
    ],
)
def test_a_changed_result_is_refused_and_kept(copy, capsys, change, message):
    change(copy)
    before = everything(copy)
    assert make_data.main([str(copy), *SMALL]) == 1
    assert message in capsys.readouterr().err
    assert everything(copy) == before


def test_other_options_are_refused(copy, capsys):
    assert make_data.main([str(copy), *SMALL, "--seed", "1"]) == 1
    assert "instances_train2017.json was made with" in capsys.readouterr().err


def test_a_foreign_directory_is_refused(tmp_path, capsys):
    (tmp_path / "home").mkdir()
    (tmp_path / "home" / "thesis.tex").write_text("years of work")
    assert make_data.main([str(tmp_path / "home"), *SMALL]) == 1
    assert "name another directory" in capsys.readouterr().err
    assert everything(tmp_path) == {"home/thesis.tex": b"years of work"}


def test_a_file_is_refused(tmp_path, capsys):
    (tmp_path / "coco").write_text("a file")
    assert make_data.main([str(tmp_path / "coco"), *SMALL]) == 1
    assert "it is not a directory" in capsys.readouterr().err
    assert everything(tmp_path) == {"coco": b"a file"}


def test_an_empty_directory_is_used(tmp_path):
    (tmp_path / "coco").mkdir()
    assert make_data.main([str(tmp_path / "coco"), *SMALL]) == 0
    assert (tmp_path / "coco" / "annotations").is_dir()


def test_an_interrupted_run_leaves_nothing(tmp_path, monkeypatch):
    def full(*_arguments):
        raise OSError("No space left on device")

    monkeypatch.setattr(make_data, "digest", full)  # after the images, before the annotations
    with pytest.raises(OSError, match="No space left"):
        make_data.main([str(tmp_path / "coco"), *SMALL])
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--size", "160"], "wanted WIDTHxHEIGHT"),
        (["--size", "axb"], "wanted WIDTHxHEIGHT"),
        (["--size", "63x128"], "64 to 1024 pixels"),
        (["--size", "128x1025"], "64 to 1024 pixels"),
        (["--train", "0"], "wanted a number from 1"),
        (["--val", "-1"], "--val"),
        (["--seed", "x"], "--seed"),
    ],
)
def test_wrong_options(tmp_path, capsys, options, message):
    with pytest.raises(SystemExit) as ended:
        make_data.main([str(tmp_path / "coco"), *options])
    assert ended.value.code == 2
    assert message in capsys.readouterr().err
    assert not (tmp_path / "coco").exists()


def test_the_configuration_knows_the_categories():
    config = yaml.safe_load(
        (WORKSPACE / "configs" / "datasets" / "coco_detection.yml").read_text(encoding="utf-8")
    )
    assert config["num_classes"] == len(make_data.CATEGORIES)


def test_every_fault_has_its_configuration():
    faults = set(
        re.findall(
            r"^def fail_(\w+)\(",
            (WORKSPACE / "faults.py").read_text(encoding="utf-8"),
            re.MULTILINE,
        )
    )
    configs = {
        path.stem: yaml.safe_load(path.read_text(encoding="utf-8"))
        for path in (WORKSPACE / "configs" / "faults").glob("*.yml")
    }
    assert {name: config["fault"]["how"] for name, config in configs.items()} == {
        name: name for name in faults
    }
