# SPDX-License-Identifier: Apache-2.0
"""Make text from a log safe to show: mask secrets, escape what a terminal would obey.

Raw logs are kept as they are (mode 0600). Everything that is shown, returned or put in a report goes through `printable` first.
"""

from __future__ import annotations

import re
import unicodedata

MASK = "********"

# A name followed by `=` or `:` and a value. The name's length is bounded so that a hostile line costs no more than a normal one.
_SECRET_WORD = r"(?:passw(?:or)?d|passphrase|secret|token(?!s|i[sz])|api[_-]?key|access[_-]?key|private[_-]?key|credential)"
SECRET_NAME = re.compile(_SECRET_WORD, re.IGNORECASE)
_VALUE = r"""(?:"[^"\n]*"?|'[^'\n]*'?|[^\s"',;&(){}\[\]]+)"""
_ASSIGNED = re.compile(rf"""(\b[\w.-]{{0,60}}?{_SECRET_WORD}[\w-]{{0,40}}["']?\s{{0,4}}[=:]\s{{0,4}})({_VALUE})""", re.IGNORECASE)
# An option and its value as two words of a command line.
_OPTION = re.compile(rf"""((?<!\S)--?[\w-]{{0,60}}?{_SECRET_WORD}[\w-]{{0,40}}\s{{1,4}})(?!-)({_VALUE})""", re.IGNORECASE)

_TOKENS = (
    r"-----BEGIN [A-Z ]{0,40}PRIVATE KEY-----[\s\S]*?(?:-----END [A-Z ]{0,40}PRIVATE KEY-----|\Z)",
    r"\b(?:AKIA|ASIA)[0-9A-Z]{16}\b",  # AWS access key id
    r"\bgh[pousr]_[A-Za-z0-9]{30,}",  # GitHub
    r"\bgithub_pat_[A-Za-z0-9_]{30,}",
    r"\bglpat-[A-Za-z0-9_-]{18,}",  # GitLab
    r"\bxox[abeprs]-[A-Za-z0-9-]{10,}",  # Slack
    r"\bhf_[A-Za-z0-9]{30,}",  # Hugging Face
    r"\bsk-[A-Za-z0-9_-]{20,}",  # OpenAI and look-alikes
    r"\bAIza[A-Za-z0-9_-]{35}",  # Google
    r"\bpypi-[A-Za-z0-9_-]{40,}",
    r"\bnpm_[A-Za-z0-9]{36}",
    r"\beyJ[A-Za-z0-9_-]{10,}\.eyJ[A-Za-z0-9_-]{10,}\.[A-Za-z0-9_-]*",  # JSON web token
)
_SHAPES = re.compile("|".join(_TOKENS))
_BEARER = re.compile(r"(\bBearer|(?i:\bauthorization[\"']?\s{0,4}[:=]\s{0,4}[\"']?\w{1,20}))\s+[A-Za-z0-9._~+/=-]{8,}")
_URL_LOGIN = re.compile(r"(\b[a-z][a-z0-9+.-]{1,20}://)[^\s/@'\"]{1,200}@", re.IGNORECASE)
_SHORT = {"\n": "\\n", "\r": "\\r", "\t": "\\t"}


def _hide_assigned(match):
    quote = match.group(2)[0] if match.group(2)[0] in "\"'" else ""
    return match.group(1) + quote + MASK + quote


def mask(text, names=(), values=()):
    """Replace by `********`: known `values`, what is assigned to one of `names` or to a name that sounds secret, token shapes."""
    for value in sorted({v for v in values if len(v) >= 4}, key=len, reverse=True):
        text = text.replace(value, MASK)
    text = _SHAPES.sub(MASK, text)
    text = _BEARER.sub(r"\1 " + MASK, text)
    text = _URL_LOGIN.sub(r"\1" + MASK + "@", text)
    text = _ASSIGNED.sub(_hide_assigned, text)
    text = _OPTION.sub(_hide_assigned, text)
    for name in names:
        pattern = rf"""(?<!\w)({re.escape(name)}["']?\s{{0,4}}[=:]\s{{0,4}})({_VALUE})"""
        text = re.sub(pattern, _hide_assigned, text)
    return text


def _escape(char):
    if char in _SHORT:
        return _SHORT[char]
    code = ord(char)
    return f"\\x{code:02x}" if code < 0x100 else f"\\u{code:04x}" if code < 0x10000 else f"\\U{code:08x}"


def printable(text, names=(), values=(), limit=2000, newlines=False):
    """Text that can be shown on a terminal as it is.

    Control and escape characters, bidirectional and other invisible format characters, line separators and lone surrogates become
    `\\x1b`, `\\u202e`, ...; printable characters of every script stay. With `newlines` true, line ends and tabs stay too. Masking
    comes before the cut to `limit` characters, so a cut cannot make half a token unrecognisable.
    """
    text = mask(text if isinstance(text, str) else str(text), names, values)
    if len(text) > limit:
        text = text[: limit - 3] + "..."
    keep = "\n\t" if newlines else ""
    return "".join(c if c.isprintable() or c in keep or unicodedata.category(c) == "Zs" else _escape(c) for c in text)


def printable_data(data, names=(), values=(), limit=2000):
    """`printable` on every string (keys too) inside dicts and lists; numbers, booleans and None stay."""
    if isinstance(data, str):
        return printable(data, names, values, limit)
    if isinstance(data, dict):
        return {printable_data(k, names, values, limit): printable_data(v, names, values, limit) for k, v in data.items()}
    if isinstance(data, (list, tuple)):
        return [printable_data(v, names, values, limit) for v in data]
    return data
