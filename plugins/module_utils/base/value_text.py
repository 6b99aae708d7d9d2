# SPDX-License-Identifier: Apache-2.0
"""Values and names as a message shows them. Pure."""

from __future__ import annotations

import difflib

# From so many characters on, the beginning of a name stands for the name.
PREFIX = 3


def cut(text, length):
    """Return a text of at most so many characters, with three dots for the rest."""
    if len(text) > length:
        return text[: length - 3] + "..."
    return text


def abbreviate(value):
    """Return a value as Python writes it, cut to what fits a line."""
    return cut(repr(value), 120)


def suggest(word, words):
    """Return "; did you mean 'X'?" for the nearest of words, or ''.

    The only one that begins with the word is nearer than one of nearly the same length.
    """
    if len(str(word)) > 100:
        return ""
    names = list(dict.fromkeys(str(item) for item in words))
    matches = []
    if len(str(word)) >= PREFIX:
        matches = [name for name in names if name.startswith(str(word))]
    if len(matches) != 1:
        matches = difflib.get_close_matches(str(word), names, n=1, cutoff=0.6)
    return "".join(f"; did you mean '{match}'?" for match in matches)
