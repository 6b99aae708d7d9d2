# SPDX-License-Identifier: Apache-2.0
"""A pickle read without unpickling: opcode by opcode to its STOP.

The opcodes are as the standard library's pickletools describes them. Nothing is called or imported.
Texts, numbers, lists and dictionaries are kept. An object that a real unpickler would make by a
call becomes an empty Thing, and long texts and the bytes of arrays are passed over. A pickle that
was cut off lacks its STOP, so it is always found.
"""

from __future__ import annotations

import pickletools
import struct
import time

from ..base.coded_error import CodedError

# Bytes. Longer texts and byte strings are arrays and the like. A value that is looked for is never
# as long.
KEPT = 4096
# Opcodes and seconds. A checkpoint of 10,000 arrays has 200,000 opcodes, which take a second; a
# file made to waste time or memory ends here.
LONGEST, SECONDS = 2_000_000, 10
_CODES = {ord(op.code): op for op in pickletools.opcodes}
_LENGTHS = {
    pickletools.TAKEN_FROM_ARGUMENT1: "<B",
    pickletools.TAKEN_FROM_ARGUMENT4: "<i",
    pickletools.TAKEN_FROM_ARGUMENT4U: "<I",
    pickletools.TAKEN_FROM_ARGUMENT8U: "<Q",
}
_NUMBERS = {"BININT": "<i", "BININT1": "<B", "BININT2": "<H", "BINFLOAT": ">d"}
_CONSTANTS = {"NONE": None, "NEWTRUE": True, "NEWFALSE": False}
_TEXTS = ("UNICODE", "STRING")
# Opcodes that put items into the object below them on the stack, and whether the items are all
# above the last mark.
_ENTRIES = {"SETITEM": False, "SETITEMS": True}
_ITEMS = {"APPEND": False, "APPENDS": True}
_NO_PICKLE = "is no pickle"


class BrokenFile(CodedError):
    """A file that is not whole or is of another kind. The message follows its name."""


class TooLong(Exception):
    """A file that takes too long to be read, so that its state remains unknown."""


class Thing(dict):
    """A stand-in for an object that an unpickler would make by a call.

    Entries put into it are kept, so that a dictionary's subclass can be read.
    """


def read(handle, size):
    """Return the plain value of a pickle that is all of a file.

    handle: at its beginning, seekable. size: bytes. Raises BrokenFile, TooLong, OSError.
    """
    return _Pickle(handle, size).value()


class _Pickle:
    """One walk through a pickle."""

    def __init__(self, handle, size):
        self.handle, self.size, self.position = handle, size, 0
        self.stack, self.marks, self.memo = [], [], {}

    # --- bytes

    def cut(self):
        """Return the error of a file that ends too early."""
        return BrokenFile("checkpoint.cut_off", f"is cut off at {self.size} bytes")

    def take(self, count):
        """Return the next count bytes."""
        if self.position + count > self.size:
            raise self.cut()
        data = self.handle.read(count)
        if len(data) != count:
            raise self.cut()
        self.position += count
        return data

    def line(self):
        """Return the next line without its end."""
        data = self.handle.readline(KEPT)
        self.position += len(data)
        if data.endswith(b"\n"):
            return data[:-1]
        if self.position >= self.size:
            raise self.cut()
        raise BrokenFile("checkpoint.bad_file", _NO_PICKLE)

    def argument(self, op):
        """Return an opcode's argument as bytes, None where it is too long to be kept."""
        if op.arg is None:
            return b""
        if op.arg.n == pickletools.UP_TO_NEWLINE:
            line = self.line()
            if op.name in ("GLOBAL", "INST"):
                line += b" " + self.line()
            return line
        if op.arg.n >= 0:
            return self.take(op.arg.n)
        form = _LENGTHS[op.arg.n]
        (length,) = struct.unpack(form, self.take(struct.calcsize(form)))
        if length < 0:
            raise BrokenFile("checkpoint.bad_file", _NO_PICKLE)
        if length <= KEPT:
            return self.take(length)
        if self.position + length > self.size:
            raise self.cut()
        self.position += length
        self.handle.seek(self.position)
        return None

    # --- stack

    def pop(self, count=1):
        """Take count entries from the stack, the oldest first."""
        available = len(self.stack)
        if self.marks:
            available -= self.marks[-1]
        if available < count:
            raise BrokenFile("checkpoint.bad_file", _NO_PICKLE)
        items = self.stack[len(self.stack) - count :]
        del self.stack[len(self.stack) - count :]
        return items

    def pop_mark(self):
        """Take all entries above the last mark, and the mark."""
        if not self.marks:
            raise BrokenFile("checkpoint.bad_file", _NO_PICKLE)
        first = self.marks.pop()
        items = self.stack[first:]
        del self.stack[first:]
        return items

    def top(self):
        """Return the newest entry and leave it on the stack."""
        item = self.pop()[0]
        self.stack.append(item)
        return item

    # --- opcodes

    def value(self):
        """Walk to the end and return the value that is left."""
        end = time.monotonic() + SECONDS
        for count in range(LONGEST):
            if not count & 4095 and time.monotonic() > end:
                break
            op = self.opcode()
            data = self.argument(op)
            if op.name == "STOP":
                if self.position != self.size:
                    raise BrokenFile(
                        "checkpoint.bad_file",
                        f"goes on for {self.size - self.position} bytes after its end",
                    )
                return self.pop()[0]
            self.step(op, data)
        raise TooLong

    def opcode(self):
        """Return the next opcode. Since protocol 2 a pickle begins with its version."""
        code = self.take(1)[0]
        if code not in _CODES or (self.position == 1 and code != 0x80):
            raise BrokenFile("checkpoint.bad_file", _NO_PICKLE)
        return _CODES[code]

    def step(self, op, data):
        """Do to the stack what an unpickler would do, calling nothing."""
        name = op.name
        if name == "MARK":
            self.marks.append(len(self.stack))
        elif name == "FRAME":
            if self.position + struct.unpack("<Q", data)[0] > self.size:
                raise self.cut()
        elif name == "MEMOIZE":
            self.memo[len(self.memo)] = self.top()
        elif name.endswith("PUT"):
            self.memo[_number(name, data)] = self.top()
        elif name.endswith("GET"):
            self.stack.append(self.memo.get(_number(name, data)))
        elif name == "DUP":
            self.stack.append(self.top())
        elif name in ("POP", "POP_MARK"):
            self.discard(name)
        elif name in _ENTRIES or name in _ITEMS:
            self.fill(name)
        else:
            self.push(op, data)

    def discard(self, name):
        """Drop the newest entry, or the last mark and all above it."""
        if name == "POP_MARK":
            self.pop_mark()
        elif self.marks and self.marks[-1] == len(self.stack):
            self.marks.pop()
        else:
            self.pop()

    def fill(self, name):
        """Put items into the dictionary or list below them on the stack."""
        if name in _ENTRIES:
            items = self.items(_ENTRIES[name], 2)
            _put(self.top(), items)
            return
        items = self.items(_ITEMS[name], 1)
        if isinstance(self.top(), list):
            self.top().extend(items)

    def items(self, is_marked, count):
        """Take the entries above the last mark, or count entries."""
        if is_marked:
            return self.pop_mark()
        return self.pop(count)

    def push(self, op, data):
        """Replace an opcode's inputs by its result (pickletools knows how many of each)."""
        if pickletools.markobject in op.stack_before:
            inputs = self.pop_mark()
            self.pop(op.stack_before.index(pickletools.markobject))
        else:
            inputs = self.pop(len(op.stack_before))
        if op.stack_after:
            self.stack.append(_result(op.name, inputs, data))


def _result(name, inputs, data):
    """Return what an opcode leaves on the stack."""
    if name in ("EMPTY_LIST", "LIST") or "TUPLE" in name:
        return list(inputs)
    if name in ("EMPTY_DICT", "DICT"):
        return _put({}, inputs)
    if name in _CONSTANTS:
        return _CONSTANTS[name]
    if name in _NUMBERS:
        return struct.unpack(_NUMBERS[name], data)[0]
    if name in ("INT", "LONG", "FLOAT"):
        return _number(name, data)
    if name == "BUILD":
        return inputs[0]
    if data is not None and any(text in name for text in _TEXTS):
        return data.decode("utf-8", "replace")
    if data is not None and name in ("LONG1", "LONG4"):
        return int.from_bytes(data, "little", signed=True)
    return Thing()


def _put(target, items):
    """Put the entries whose keys are texts or numbers into a dictionary and return it."""
    if len(items) % 2:
        raise BrokenFile("checkpoint.bad_file", _NO_PICKLE)
    if isinstance(target, dict):
        for key, value in zip(items[::2], items[1::2]):
            if isinstance(key, (str, int, float)):
                target[key] = value
    return target


def _number(name, data):
    """Return the number of an opcode that has one as text, or as little-endian bytes."""
    if name.startswith(("BIN", "LONG_BIN")):
        return int.from_bytes(data, "little")
    try:
        if name == "FLOAT":
            return float(data)
        return int(data.rstrip(b"L"))
    except ValueError:
        raise BrokenFile("checkpoint.bad_file", _NO_PICKLE) from None
