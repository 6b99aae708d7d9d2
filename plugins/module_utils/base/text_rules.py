# SPDX-License-Identifier: Apache-2.0
"""Which characters a text may hold that reaches a command, a path, an environment or a terminal.
Pure, controller only.
"""

from __future__ import annotations

import unicodedata

# The kernel takes no single argument or variable of 128 KiB (MAX_ARG_STRLEN in linux/binfmts.h); a
# name and '=' come on top of a value.
LONGEST = 120_000
# They change the order in which other characters are shown (Unicode TR9), so that a reader sees
# something else than a program.
BIDI = frozenset("\u061c\u200e\u200f\u202a\u202b\u202c\u202d\u202e\u2066\u2067\u2068\u2069")
# They join letters or signs, or keep them apart, as Persian words and emoji need it; they turn no
# direction.
JOINERS = frozenset("\u200c\u200d")


def _bad(char, people):
    """Whether a character is refused; people: the text is for people alone and may have lines and
    tabs.
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
    """Say why a text is refused, or return None: control, bidirectional or invisible characters, or
    too long for a command line.
    """
    for index, char in enumerate("" if text.isascii() and text.isprintable() else text):
        if _bad(char, people):
            name = unicodedata.name(char, "a control character")
            return "holds U+%04X (%s) as character %d; take it out" % (ord(char), name, index + 1)
    if not people and len(text.encode("utf-8", "replace")) > LONGEST:
        return "is longer than the %d bytes that a command line takes of one word" % LONGEST
    return None


def walk(value, path=(), people=False):
    """Yield (path, what is wrong) of every text in plain data, keys too."""
    if isinstance(value, str):
        said = problem(value, people)
        if said:
            yield path, said
    elif isinstance(value, dict):
        for key, item in value.items():
            said = problem(str(key), people)
            if said:
                yield path, "a key " + said
            yield from walk(item, path + (key,), people)
    elif isinstance(value, (list, tuple)):
        for index, item in enumerate(value):
            yield from walk(item, path + (index,), people)
