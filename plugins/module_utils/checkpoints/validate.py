# SPDX-License-Identifier: Apache-2.0
"""Whether the file of a checkpoint is whole, and what plain values stand in it. Nothing is ever
unpickled, imported or executed.

.pdparams, .pdopt, .pdema, .pdstates and .states are pickles (paddle.save writes one, protocol 2 or
4), whose STOP has to be the last byte: pickled.py. A MindSpore checkpoint (.ckpt) is a row of
protobuf records without an end mark (mindspore/train/serialization.py, _exec_save), so that its
last record has to be known by name as well.
"""

from __future__ import annotations

import struct
import time

from . import pickle_scan
from .pickle_scan import Broken

PICKLES = (".pdparams", ".pdopt", ".pdema", ".pdstates", ".states")
RECORDS = (".ckpt",)
# Parameters of a network and its optimiser.
MOST_RECORDS = 200_000
# Rows of numbers are read up to so many bytes: a learning rate for every step is one.
LONGEST_ROW = 4 << 20
# How MindSpore names the numbers that are read (serialization.py, tensor_to_np_type), as struct's
# letters.
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
    """Return the plain values of a checkpoint's file. None is unknown: its kind has no end mark, or
    reading it takes too long.

    Raises Broken, OSError.

    handle: binary, at its beginning, seekable. size: bytes. ending: of the file's name, with its
    dot. last_record: the name of a .ckpt's last record. rows: names of its records whose numbers
    are read. An empty file is never whole.
    """
    if not size:
        raise Broken("is empty")
    try:
        if ending in PICKLES:
            return pickle_scan.read(handle, size)
        if ending in RECORDS:
            return records(handle, size, last_record, rows)
    except pickle_scan.TooLong:
        if ending in PICKLES:
            handle.seek(size - 1)
            if handle.read(1) != b".":
                raise Broken("is cut off at %d bytes" % size) from None
    return None


def lookup(value, keys):
    """Return the number at a path of keys of what `read` gave, or None; a truth value is no number."""
    for key in keys:
        value = value.get(key) if isinstance(value, dict) else None
    return value if isinstance(value, (int, float)) and not isinstance(value, bool) else None


# --- MindSpore's records


def records(handle, size, last=None, rows=()):
    """Return {name: number or list of numbers for those in rows, else None} of a MindSpore
    checkpoint's records.

    Message Checkpoint {repeated Value value = 1}; Value {tag = 1; TensorProto tensor = 2};
    TensorProto {dims = 1; tensor_type = 2; tensor_content = 3}. After the records may stand
    `crc_num` and ten bytes (save_checkpoint(crc_check=True)).
    """
    found, name, place, deadline = {}, None, 0, time.monotonic() + pickle_scan.SECONDS
    while place < size:
        if len(found) > MOST_RECORDS or time.monotonic() > deadline:
            raise pickle_scan.TooLong
        handle.seek(place)
        if size - place == 17 and handle.read(7) == b"crc_num":
            break
        field, start, end = _field(handle, place, size)
        if field != 1:
            raise Broken("is no MindSpore checkpoint")
        name, value = _record(handle, start, end, rows)
        found[name] = value
        place = end
    if last is not None and name != last:
        raise Broken(f"is cut off: its last record is {name} and not {last}")
    return found


def _record(handle, start, end, rows):
    """Return (name, numbers) of a record; None for the numbers of one that is not in rows."""
    name, tensor = None, None
    for field, first, after in _fields(handle, start, end):
        if field == 1:
            name = _text(handle, first, after)
        elif field == 2:
            tensor = (first, after)
    if not name:
        raise Broken("is no MindSpore checkpoint")
    kind, content = None, None
    for field, first, after in _fields(handle, *tensor) if tensor else ():
        if field == 2:
            kind = _text(handle, first, after)
        elif field == 3:
            content = (first, after)
    letter = NUMBERS.get(kind)
    if name not in rows or not letter or not content or content[1] - content[0] > LONGEST_ROW:
        return name, None
    count = (content[1] - content[0]) // struct.calcsize("<" + letter)
    handle.seek(content[0])
    numbers = struct.unpack(
        "<%d%s" % (count, letter), handle.read(count * struct.calcsize("<" + letter))
    )
    return name, numbers[0] if len(numbers) == 1 else list(numbers)


def _fields(handle, start, end):
    """Yield (field, start, end) of a message's fields."""
    while start < end:
        field, first, after = _field(handle, start, end)
        yield field, first, after
        start = after


def _field(handle, start, end):
    """Return (field, start, end) of the field that begins at start; end is where what holds it
    ends.
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
        raise Broken("is cut off or changed: a part of it goes on after byte %d" % end)
    return key >> 3, start, after


def _varint(handle, start, end):
    value = 0
    for shift in range(0, 70, 7):
        byte = handle.read(1) if start < end else b""
        if not byte:
            raise Broken("is cut off or changed: a part of it goes on after byte %d" % end)
        start += 1
        value |= (byte[0] & 127) << shift
        if byte[0] < 128:
            return value, start
    raise Broken("is no MindSpore checkpoint")


def _text(handle, start, end):
    handle.seek(start)
    return handle.read(min(end - start, pickle_scan.KEPT)).decode("utf-8", "replace")
