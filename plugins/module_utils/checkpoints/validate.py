# SPDX-License-Identifier: Apache-2.0
"""The state of a checkpoint's file: whether it is whole, and its plain values.

Nothing is ever unpickled, imported or executed. .pdparams, .pdopt, .pdema, .pdstates and .states
are pickles (paddle.save writes one, protocol 2 or 4), whose STOP has to be the last byte:
pickle_scan.py. A MindSpore checkpoint (.ckpt) is a row of protobuf records without an end mark
(mindspore/train/serialization.py, _exec_save), so that its last record has to be known by name as
well.
"""

from __future__ import annotations

import struct
import time

from . import pickle_scan
from .pickle_scan import BrokenFile

PICKLES = (".pdparams", ".pdopt", ".pdema", ".pdstates", ".states")
RECORDS = (".ckpt",)
_NO_CHECKPOINT = "is no MindSpore checkpoint"
# Records are the parameters of a network and its optimiser.
MOST_RECORDS = 200_000
# Bytes of a row of numbers that is read. A learning rate for every step is such a row.
LONGEST_ROW = 4 << 20
# MindSpore's names of number types (serialization.py, tensor_to_np_type), as struct's letters.
NUMBERS = {
    "Int8": "b",
    "Int16": "h",
    "Int32": "i",
    "Int64": "q",
    "UInt8": "B",
    "Float16": "e",
    "Float32": "f",
    "Float64": "d",
}


def read(handle, size, ending, last_record=None, rows=()):
    """Return the plain values of a checkpoint's file, or None.

    None means that its state is unknown. It is unknown where the kind of file has no end mark, or
    where reading it takes too long. handle: binary, at its beginning, seekable. size: bytes.
    ending: of the file's name, with its dot. last_record: the name of a .ckpt's last record. rows:
    names of its records whose numbers are read. An empty file is never whole. Raises BrokenFile,
    OSError.
    """
    if not size:
        raise BrokenFile("checkpoint.empty_file", "is empty")
    try:
        if ending in PICKLES:
            return pickle_scan.read(handle, size)
        if ending in RECORDS:
            return records(handle, size, last_record, rows)
    except pickle_scan.TooLong:
        if ending in PICKLES:
            handle.seek(size - 1)
            if handle.read(1) != b".":
                raise BrokenFile("checkpoint.cut_off", f"is cut off at {size} bytes") from None
    return None


def lookup(value, keys):
    """Return the number at a path of keys of the values of `read`, or None.

    A truth value is not a number.
    """
    for key in keys:
        if not isinstance(value, dict):
            return None
        value = value.get(key)
    if isinstance(value, (int, float)) and not isinstance(value, bool):
        return value
    return None


# --- MindSpore's records


def records(handle, size, last=None, rows=()):
    """Return {name: value} of a MindSpore checkpoint's records.

    A value is a number or a list of numbers for a name in rows, else None. Message Checkpoint
    {repeated Value value = 1}; Value {tag = 1; TensorProto tensor = 2}; TensorProto {dims = 1;
    tensor_type = 2; tensor_content = 3}. After the records may stand `crc_num` and ten bytes
    (save_checkpoint(crc_check=True)). Raises BrokenFile, TooLong, OSError.
    """
    values, name, position = {}, None, 0
    deadline = time.monotonic() + pickle_scan.SECONDS
    while position < size:
        if len(values) > MOST_RECORDS or time.monotonic() > deadline:
            raise pickle_scan.TooLong
        handle.seek(position)
        if size - position == 17 and handle.read(7) == b"crc_num":
            break
        field, start, end = _field(handle, position, size)
        if field != 1:
            raise BrokenFile("checkpoint.bad_file", _NO_CHECKPOINT)
        name, numbers = _record(handle, start, end, rows)
        values[name] = numbers
        position = end
    if last is not None and name != last:
        raise BrokenFile(
            "checkpoint.cut_off", f"is cut off: its last record is {name} and not {last}"
        )
    return values


def _record(handle, start, end, rows):
    """Return (name, numbers) of a record. No numbers for one that is not in rows."""
    parts = _field_ranges(handle, start, end)
    name = None
    if 1 in parts:
        name = _text(handle, *parts[1])
    if not name:
        raise BrokenFile("checkpoint.bad_file", _NO_CHECKPOINT)
    if 2 not in parts:
        return name, None
    tensor = _field_ranges(handle, *parts[2])
    letter = None
    if 2 in tensor:
        letter = NUMBERS.get(_text(handle, *tensor[2]))
    if name not in rows or not letter or 3 not in tensor:
        return name, None
    return name, _numbers(handle, letter, *tensor[3])


def _numbers(handle, letter, start, end):
    """Return the number or the list of numbers in these bytes, None for too many."""
    if end - start > LONGEST_ROW:
        return None
    width = struct.calcsize("<" + letter)
    count = (end - start) // width
    handle.seek(start)
    numbers = struct.unpack(f"<{count}{letter}", handle.read(count * width))
    if len(numbers) == 1:
        return numbers[0]
    return list(numbers)


def _field_ranges(handle, start, end):
    """Return {field: (start, end)} of a message. Of a repeated field, it is the last one."""
    return {field: (first, after) for field, first, after in _fields(handle, start, end)}


def _fields(handle, start, end):
    """Yield (field, start, end) of a message's fields."""
    while start < end:
        field, first, after = _field(handle, start, end)
        yield field, first, after
        start = after


def _field(handle, start, end):
    """Return (field, start, end) of the field that begins at start.

    end: of the message around it.
    """
    handle.seek(start)
    key, start = _varint(handle, start, end)
    if key & 7 == 0:
        _value, after = _varint(handle, start, end)
    elif key & 7 == 2:
        length, start = _varint(handle, start, end)
        after = start + length
    else:
        after = start + {1: 8, 5: 4}.get(key & 7, end)
    if after > end:
        raise _goes_on_after(end)
    return key >> 3, start, after


def _goes_on_after(end):
    return BrokenFile(
        "checkpoint.cut_off", f"is cut off or changed: a part of it goes on after byte {end}"
    )


def _varint(handle, start, end):
    """Return (the number at start, where it ends)."""
    value = 0
    for shift in range(0, 70, 7):
        if start >= end:
            raise _goes_on_after(end)
        byte = handle.read(1)
        if not byte:
            raise _goes_on_after(end)
        start += 1
        value |= (byte[0] & 127) << shift
        if byte[0] < 128:
            return value, start
    raise BrokenFile("checkpoint.bad_file", _NO_CHECKPOINT)


def _text(handle, start, end):
    handle.seek(start)
    return handle.read(min(end - start, pickle_scan.KEPT)).decode("utf-8", "replace")
