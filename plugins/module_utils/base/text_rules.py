# SPDX-License-Identifier: Apache-2.0
"""Check of the characters in a text that reaches a command, a path or a terminal.

Pure.
"""

from __future__ import annotations

import unicodedata

# The kernel takes no single argument or variable of 128 KiB (MAX_ARG_STRLEN in linux/binfmts.h). A
# name and '=' come on top of a value.
LONGEST = 120_000
# They change the order in which other characters are shown (Unicode TR9), so that a reader sees
# something else than a program.
BIDI = frozenset("\u061c\u200e\u200f\u202a\u202b\u202c\u202d\u202e\u2066\u2067\u2068\u2069")
# They join letters or signs, or keep them apart, as Persian words and emoji need it. They do not
# change the direction.
JOINERS = frozenset("\u200c\u200d")


def _bad(char, people):
    """Return whether a character is refused.

    people: the text is for people alone and may have lines and tabs.
    """
    kind = unicodedata.category(char)
    if kind in ("Cs", "Zl", "Zp") or char in BIDI:
        return True
    if char in JOINERS:
        return False
    if people:
        return kind == "Cc" and char not in "\n\t"
    return kind in ("Cc", "Cf")


def problem(text, people=False):
    """Return the reason why a text is refused, or None.

    It may hold control, bidirectional or invisible characters, or be too long for a command line.
    people: as `_bad` has it.
    """
    if not (text.isascii() and text.isprintable()):
        for index, char in enumerate(text):
            if _bad(char, people):
                name = unicodedata.name(char, "a control character")
                return f"holds U+{ord(char):04X} ({name}) as character {index + 1}; take it out"
    if not people and len(text.encode("utf-8", "replace")) > LONGEST:
        return f"is longer than the {LONGEST} bytes that a command line takes of one word"
    return None


def walk(value, path=(), people=False):
    """Yield (path, problem) of every text in plain data, keys too."""
    if isinstance(value, str):
        reason = problem(value, people)
        if reason:
            yield path, reason
    elif isinstance(value, dict):
        for key, item in value.items():
            reason = problem(str(key), people)
            if reason:
                yield path, "a key " + reason
            yield from walk(item, path + (key,), people)
    elif isinstance(value, (list, tuple)):
        for index, item in enumerate(value):
            yield from walk(item, path + (index,), people)
