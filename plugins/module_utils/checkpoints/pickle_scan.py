# SPDX-License-Identifier: Apache-2.0
"""A pickle read without unpickling: opcode by opcode, as the standard library's pickletools
describes them, to its STOP. Nothing is called or imported.

Texts, numbers, lists and dictionaries are kept; whatever a real unpickler would make by a call is
an empty Thing, and long texts and the bytes of arrays are passed over. Every cut of a pickle lacks
its STOP, so that it is found out.
"""

from __future__ import annotations

import pickletools
import struct
import time

# Longer texts and byte strings are arrays and the like; nothing that is looked for is as long
# (bytes).
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
_WORDS = ("UNICODE", "STRING")


class Broken(Exception):
    """A file that is not whole, or is none of its kind; the message says why in words that follow
    its name.
    """


class TooLong(Exception):
    """A file is not read to its end, because that takes too long. Whether it is whole is unknown."""


class Thing(dict):
    """What an unpickler would have made by calling something. Entries put into it are kept, so that
    a dictionary's subclass can be read.
    """


def read(handle, size):
    """Return the plain value of a pickle that is all of a file; handle: at its beginning, seekable.
    size: bytes.

    Raises Broken, TooLong, OSError.
    """
    return _Pickle(handle, size).value()


class _Pickle:
    """One walk through a pickle."""

    def __init__(self, handle, size):
        self.handle, self.size, self.place = handle, size, 0
        self.stack, self.marks, self.memo = [], [], {}

    def cut(self):
        return Broken("is cut off at %d bytes" % self.size)

    def take(self, count):
        """Return the next count bytes."""
        data = self.handle.read(count) if self.place + count <= self.size else b""
        if len(data) != count:
            raise self.cut()
        self.place += count
        return data

    def line(self):
        data = self.handle.readline(KEPT)
        self.place += len(data)
        if not data.endswith(b"\n"):
            raise self.cut() if self.place >= self.size else Broken("is no pickle")
        return data[:-1]

    def argument(self, op):
        """Return an opcode's argument as bytes; None where it is too long to be kept."""
        if op.arg is None:
            return b""
        if op.arg.n == pickletools.UP_TO_NEWLINE:
            return b" ".join(
                self.line() for _each in range(2 if op.name in ("GLOBAL", "INST") else 1)
            )
        if op.arg.n >= 0:
            return self.take(op.arg.n)
        form = _LENGTHS[op.arg.n]
        (length,) = struct.unpack(form, self.take(struct.calcsize(form)))
        if length < 0:
            raise Broken("is no pickle")
        if length <= KEPT:
            return self.take(length)
        if self.place + length > self.size:
            raise self.cut()
        self.place += length
        self.handle.seek(self.place)
        return None

    def pop(self, count=1):
        """Take count entries from the stack, the oldest first."""
        if len(self.stack) - (self.marks[-1] if self.marks else 0) < count:
            raise Broken("is no pickle")
        taken = self.stack[len(self.stack) - count :]
        del self.stack[len(self.stack) - count :]
        return taken

    def pop_mark(self):
        if not self.marks:
            raise Broken("is no pickle")
        first = self.marks.pop()
        taken = self.stack[first:]
        del self.stack[first:]
        return taken

    def value(self):
        """Walk to the end; return the value that is left."""
        end = time.monotonic() + SECONDS
        for count in range(LONGEST):
            if not count & 4095 and time.monotonic() > end:
                break
            code = self.take(1)[0]
            if code not in _CODES or (
                self.place == 1 and code != 0x80
            ):  # (since protocol 2 a pickle begins with its version)
                raise Broken("is no pickle")
            op = _CODES[code]
            data = self.argument(op)
            if op.name == "STOP":
                if self.place != self.size:
                    raise Broken("goes on for %d bytes after its end" % (self.size - self.place))
                return self.pop()[0]
            self.step(op, data)
        raise TooLong

    def step(self, op, data):
        """Do to the stack what an unpickler would do, calling nothing."""
        name = op.name
        if name == "MARK":
            self.marks.append(len(self.stack))
        elif name == "FRAME":
            if self.place + struct.unpack("<Q", data)[0] > self.size:
                raise self.cut()
        elif name == "MEMOIZE" or name.endswith("PUT"):
            self.memo[len(self.memo) if name == "MEMOIZE" else _number(name, data)] = self.top()
        elif name.endswith("GET"):
            self.stack.append(self.memo.get(_number(name, data)))
        elif name == "POP" and self.marks and self.marks[-1] == len(self.stack):
            self.marks.pop()
        elif name in ("POP", "POP_MARK"):
            self.pop_mark() if name == "POP_MARK" else self.pop()
        elif name == "DUP":
            self.stack.append(self.top())
        elif name in ("SETITEM", "SETITEMS"):
            items = self.pop_mark() if name == "SETITEMS" else self.pop(2)
            _put(self.top(), items)
        elif name in ("APPEND", "APPENDS"):
            items = self.pop_mark() if name == "APPENDS" else self.pop()
            if isinstance(self.top(), list):
                self.top().extend(items)
        else:
            self.push(op, data)

    def top(self):
        item = self.pop()[0]
        self.stack.append(item)
        return item

    def push(self, op, data):
        """Replace what an opcode takes by what it leaves (pickletools knows how many of each)."""
        name, taken = op.name, []
        if pickletools.markobject in op.stack_before:
            taken = self.pop_mark()
            self.pop(op.stack_before.index(pickletools.markobject))
        else:
            taken = self.pop(len(op.stack_before))
        if not op.stack_after:
            return
        if name in ("EMPTY_LIST", "LIST") or "TUPLE" in name:
            made = list(taken)
        elif name in ("EMPTY_DICT", "DICT"):
            made = _put({}, taken)
        elif name in _CONSTANTS:
            made = _CONSTANTS[name]
        elif any(word in name for word in _WORDS):
            made = data.decode("utf-8", "replace") if data is not None else Thing()
        elif name in _NUMBERS:
            made = struct.unpack(_NUMBERS[name], data)[0]
        elif name in ("LONG1", "LONG4"):
            made = int.from_bytes(data, "little", signed=True) if data is not None else Thing()
        elif name in ("INT", "LONG", "FLOAT"):
            made = _number(name, data)
        elif name == "BUILD":
            made = taken[0]
        else:
            made = Thing()
        self.stack.append(made)


def _put(target, items):
    """Put the entries whose keys are texts or numbers into a dictionary; return it."""
    if len(items) % 2:
        raise Broken("is no pickle")
    if isinstance(target, dict):
        target.update(
            (key, value)
            for key, value in zip(items[::2], items[1::2])
            if isinstance(key, (str, int, float))
        )
    return target


def _number(name, data):
    """Return the number of an opcode that has one as text, or as little-endian bytes."""
    if name.startswith(("BIN", "LONG_BIN")):
        return int.from_bytes(data, "little")
    try:
        return float(data) if name == "FLOAT" else int(data.rstrip(b"L"))
    except ValueError:
        raise Broken("is no pickle") from None
