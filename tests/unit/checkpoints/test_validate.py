# SPDX-License-Identifier: Apache-2.0
"""Whether a checkpoint's file is whole: real files of Paddle and MindSpore and made ones, cut at
every byte; and that nothing in them is executed.
"""

from __future__ import annotations

import collections
import io
import os
import pickle
import struct
import time

import pytest
from ansible_collections.trainyard.cluster.plugins.module_utils.checkpoints import (
    pickle_scan,
    validate,
)
from ansible_collections.trainyard.cluster.plugins.module_utils.checkpoints.validate import (
    BrokenFile,
)
from core_support import ROOT
from hypothesis import given, settings
from hypothesis import strategies as st

REAL = ROOT / "tests" / "fixtures" / "checkpoints"
FILES = sorted(str(path.relative_to(REAL)) for path in REAL.rglob("*.*") if path.is_file())
PLAIN = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats(allow_nan=False)
    | st.text(max_size=300)
    | st.binary(max_size=300),
    lambda inner: (
        st.lists(inner, max_size=4)
        | st.tuples(inner, inner)
        | st.dictionaries(st.text(max_size=8), inner, max_size=4)
    ),
    max_leaves=12,
)


def read(data, ending, **more):
    return validate.read(io.BytesIO(data), len(data), ending, **more)


def kept(value):
    """What the reader keeps of a plain value: tuples are lists, bytes are nothing that is looked
    at.
    """
    if isinstance(value, dict):
        return {key: kept(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [kept(item) for item in value]
    return {} if isinstance(value, bytes) else value


@pytest.mark.parametrize("name", FILES)
def test_every_cut_of_a_real_file_is_found_out(name):
    data, ending = (REAL / name).read_bytes(), os.path.splitext(name)[1]
    assert read(data, ending, last_record="loss_scale") is not None
    for size in range(len(data)):
        with pytest.raises(BrokenFile):
            read(data[:size], ending, last_record="loss_scale")


def test_what_stands_in_real_files():
    options = read((REAL / "paddle/1.pdopt").read_bytes(), ".pdopt")
    assert validate.lookup(options, ["last_epoch"]) == 2
    assert validate.lookup(options, ["LR_Scheduler", "last_epoch"]) == 6
    assert validate.lookup(options, ["LR_Scheduler", "last_lr"]) == pytest.approx(0.00406, abs=1e-5)
    assert read((REAL / "paddle/latest.states").read_bytes(), ".states")["global_step"] == 640
    rows = ("epoch_num", "learning_rate", "loss_scale", "global_step")
    found = read(
        (REAL / "mindspore/train_resume.ckpt").read_bytes(),
        ".ckpt",
        last_record="loss_scale",
        rows=rows,
    )
    assert found == {
        "head.weight": None,
        "global_step": 3,
        "learning_rate": pytest.approx([0.5, 0.4, 0.3, 0.2, 0.1]),
        "epoch_num": 1,
        "loss_scale": 1.0,
    }


@settings(deadline=None, max_examples=150)
@given(PLAIN, st.integers(2, 5))
def test_a_pickle_is_read_to_its_end_and_every_cut_is_none(value, protocol):
    data = pickle.dumps(value, protocol=protocol)
    assert read(data, ".states") == kept(value) or (
        protocol == 2 and b"_codecs" in data
    )  # (there, bytes are made by a call)
    for size in range(len(data)):
        with pytest.raises(BrokenFile):
            read(data[:size], ".states")
    with pytest.raises(BrokenFile, match="goes on for 3 bytes after its end"):
        read(data + b"more"[:3], ".states")


@settings(deadline=None, max_examples=300)
@given(st.binary(max_size=200))
def test_any_bytes_are_read_or_refused_in_words(data):
    for ending in validate.PICKLES[:1] + validate.RECORDS:
        for head in (b"", b"\x80\x04", b"\x80\x02}q\x00("):
            try:
                read(head + data, ending)
            except BrokenFile as error:
                assert str(error).startswith(("is ", "goes on ", "has more "))


def test_dictionaries_of_another_class_and_shared_values_are_read():
    inner = {"last_lr": 0.5}
    value = collections.OrderedDict([("LR_Scheduler", inner), ("again", inner), ("last_epoch", 7)])
    for protocol in (2, 4):
        found = read(pickle.dumps(value, protocol=protocol), ".pdopt")
        assert (
            found["again"] == {"last_lr": 0.5}
            and validate.lookup(found, ["LR_Scheduler", "last_lr"]) == 0.5
        )


def test_nothing_is_called(tmp_path):
    class Trap:
        def __reduce__(self):
            return os.mkdir, (str(tmp_path / "called"),)

    for protocol in (2, 4):
        assert read(pickle.dumps({"epoch": Trap(), "step": 1}, protocol=protocol), ".states") == {
            "epoch": {},
            "step": 1,
        }
    assert not (tmp_path / "called").exists()


def test_long_contents_are_passed_over_and_still_have_to_be_there():
    data = pickle.dumps({"weight": b"x" * 100_000, "text": "y" * 5000, "epoch": 3}, protocol=4)
    assert read(data, ".pdparams") == {"weight": {}, "text": {}, "epoch": 3}
    with pytest.raises(BrokenFile, match="is cut off at 50000 bytes"):
        read(data[:50_000], ".pdparams")
    claimed = b"\x80\x04\x8e" + struct.pack("<Q", 2**64 - 9) + b"."
    with pytest.raises(BrokenFile, match="is cut off"):
        read(claimed, ".pdparams")


def test_a_file_that_takes_too_long_is_unknown(monkeypatch):
    whole = b"\x80\x04" + b"N" * 20_000 + b"."
    assert read(whole, ".pdparams") is None  # what is left is its last value
    monkeypatch.setattr(pickle_scan, "LONGEST", 1000)
    with pytest.raises(pickle_scan.TooLong):
        pickle_scan.read(io.BytesIO(whole), len(whole))
    assert read(whole, ".pdparams") is None
    with pytest.raises(BrokenFile, match="is cut off"):
        read(whole[:-1], ".pdparams")


@pytest.mark.parametrize("ending", [".pdparams", ".ckpt"])
def test_reading_ends_in_bounded_time(monkeypatch, ending):
    """Each of these took more than a minute."""
    if ending == ".ckpt":
        data = b"".join(b"\x0a\x0a\x0a\x08%08d" % n for n in range(190_000))
    else:
        data = b"\x80\x04" + b"N0" * 900_000 + b"."
    monkeypatch.setattr(pickle_scan, "SECONDS", 0.2)
    begun = time.monotonic()
    assert read(data, ending) is None
    assert time.monotonic() - begun < 2


def test_the_number_of_parts_is_bounded_whatever_the_time(monkeypatch):
    monkeypatch.setattr(pickle_scan, "SECONDS", 1000)
    monkeypatch.setattr(pickle_scan, "LONGEST", 1000)
    monkeypatch.setattr(validate, "MOST_RECORDS", 100)
    assert read(b"\x80\x04" + b"N" * 2000 + b".", ".pdparams") is None
    records = b"".join(b"\x0a\x0a\x0a\x08%08d" % n for n in range(1000))
    assert read(records, ".ckpt") is None and len(read(records[: 12 * 50], ".ckpt")) == 50


@pytest.mark.parametrize(
    "data, words",
    [
        (b"", "is empty"),
        (b"PK\x03\x04" * 9, "is no pickle"),
        (b"\0" * 64, "is no pickle"),
        (b"\x80\x04s.", "is no pickle"),
    ],
)
def test_what_is_no_pickle(data, words):
    with pytest.raises(BrokenFile, match=words):
        read(data, ".pdparams")


def test_a_mindspore_file_cut_between_two_records_lacks_its_last_one():
    data = (REAL / "mindspore/train_resume.ckpt").read_bytes()
    end = data.index(b"loss_scale") - 4
    assert len(validate.records(io.BytesIO(data[:end]), end)) == 4  # whole as far as protobuf knows
    with pytest.raises(
        BrokenFile, match="is cut off: its last record is epoch_num and not loss_scale"
    ):
        read(data[:end], ".ckpt", last_record="loss_scale")


def test_a_part_that_is_longer_than_what_holds_it_is_found_out():
    data = (REAL / "mindspore/train_resume.ckpt").read_bytes()
    assert (data[1], data[15], data[16]) == (
        46,
        18,
        31,
    )  # a record of 46 bytes, in it a tensor of 31
    with pytest.raises(BrokenFile, match="a part of it goes on after byte"):
        read(data[:16] + bytes([40]) + data[17:], ".ckpt", last_record="loss_scale")


def test_a_mindspore_file_may_end_with_its_checksum():
    data = (REAL / "mindspore/train_resume.ckpt").read_bytes() + b"crc_num" + bytes(10)
    assert read(data, ".ckpt", last_record="loss_scale", rows=["epoch_num"])["epoch_num"] == 1
    with pytest.raises(BrokenFile):
        read(data[:-1], ".ckpt", last_record="loss_scale")


def test_other_kinds_have_no_end_that_is_known():
    assert read(b"architecture: crnn", ".yml") is None
    with pytest.raises(BrokenFile, match="is empty"):
        read(b"", ".yml")
