# SPDX-License-Identifier: Apache-2.0
"""Plain scalars of YAML 1.1, as PyYAML reads them, without PyYAML.

A node has no PyYAML. A plan that a node compiles must have the bytes that the controller would give
it. tests/unit/suites/test_plain_scalar.py compares every rule with PyYAML.
"""

from __future__ import annotations

import re

# Characters that YAML does not allow (yaml.reader.Reader.NON_PRINTABLE).
_NOT_ALLOWED = re.compile("[^\t\n\r\x20-\x7e\x85\xa0-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")
# Blanks that end a plain scalar, or are folded into one space.
_BREAKS = re.compile("[\t\r\n\x85\u2028\u2029]")
# Characters that mean something at the beginning, and inside a list or mapping.
_INDICATORS = "?:,[]{}#&*!|>'\"%@`"
_FLOW = re.compile(r"[,?\[\]{}]|:(?: |$)| #")
_MARKER = re.compile(r"(?:---|\.\.\.)(?: |$)")
# Texts that are read as another type (yaml.resolver).
_OTHER_TYPE = re.compile(
    r"""(?:
    yes|Yes|YES|no|No|NO|true|True|TRUE|false|False|FALSE|on|On|ON|off|Off|OFF
    |~|null|Null|NULL
    |<<|=
    |[-+]?(?:[0-9][0-9_]*)\.[0-9_]*(?:[eE][-+][0-9]+)?
    |\.[0-9][0-9_]*(?:[eE][-+][0-9]+)?
    |[-+]?[0-9][0-9_]*(?::[0-5]?[0-9])+\.[0-9_]*
    |[-+]?\.(?:inf|Inf|INF)|\.(?:nan|NaN|NAN)
    |[-+]?0b[0-1_]+|[-+]?0[0-7_]+|[-+]?(?:0|[1-9][0-9_]*)|[-+]?0x[0-9a-fA-F_]+
    |[-+]?[1-9][0-9_]*(?::[0-5]?[0-9])+
    |[0-9][0-9][0-9][0-9]-[0-9][0-9]-[0-9][0-9]
    |[0-9][0-9][0-9][0-9]-[0-9][0-9]?-[0-9][0-9]?
     (?:[Tt]|[\ \t]+)[0-9][0-9]?:[0-9][0-9]:[0-9][0-9](?:\.[0-9]*)?
     (?:[\ \t]*(?:Z|[-+][0-9][0-9]?(?::[0-9][0-9])?))?
    )\Z""",
    re.VERBOSE,
)


def is_plain_text(text):
    """Return whether YAML reads a text as this text, alone and as an item of a list.

    It reads 'yes' and '1.0' as something else, 'a, b' as two items of a list.
    """
    if text != text.strip(" ") or not text:
        return False
    if _NOT_ALLOWED.search(text) or _BREAKS.search(text) or _FLOW.search(text):
        return False
    if text[0] in _INDICATORS or text[0] == "\ufeff" or text == "-" or text.startswith("- "):
        return False
    return not _MARKER.match(text) and not _OTHER_TYPE.match(text)
