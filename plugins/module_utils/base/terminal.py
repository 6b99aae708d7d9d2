# SPDX-License-Identifier: Apache-2.0
"""Clean everything that ansible-playbook prints or logs. Controller only.

What a node answers reaches the terminal in many ways: results, warnings, deprecations, error texts,
ssh's own words, labels, diffs. All of them end in `Display.display` and `Display._log`, so these
two are wrapped, whichever callback prints. Workers hand their text to the main process, which
cleans it.
"""

from __future__ import annotations

import functools
import re

from ansible import constants as C
from ansible.plugins.callback import CallbackBase
from ansible.utils import color
from ansible.utils.display import Display

from .sanitize import Secrets, escape, printable

_MARK = "_trainyard_cleans"
# What stands before errors and warnings. Their text may be a node's, and have several lines.
_LABELLED = re.compile(r"\[[A-Z][A-Z ]{0,40}\]: ")
# A whole result of `-vvv` is one text.
_LONGEST = 1 << 40
_hidden = Secrets((), ())


def hide(secrets):
    """Mask these secrets of a plan in everything that is printed from now on."""
    global _hidden
    _hidden = secrets


def clean(text, newlines=True):
    """Return text as it may be printed: secrets masked, control characters escaped."""
    return printable(text, *_hidden, limit=_LONGEST, newlines=newlines)


@functools.lru_cache(maxsize=1)
def _painted():
    """Return a pattern of what `stringc` puts around a text, in Ansible's colours; black would hide
    the text.
    """
    names = [
        getattr(C, name)
        for name in dir(C)
        if name.startswith("COLOR_") and isinstance(getattr(C, name), str)
    ]
    codes = {color.parsecolor(name) for name in [*C.COLOR_CODES, *names] if name != "black"}
    return re.compile(
        "(\x1b\\[(?:0|{})m)".format("|".join(re.escape(code) for code in sorted(codes)))
    )


def clean_painted(text):
    """Return text that our own code has painted and cleaned: Ansible's colours stay where it uses
    colours, nothing else does.
    """
    if "\x1b" not in text or not color.ANSIBLE_COLOR:
        return escape(text, True)
    parts = _painted().split(text)
    return "".join(part if index % 2 else escape(part, True) for index, part in enumerate(parts))


def clean_data(value):
    """Return nested data with every text cleaned."""
    if isinstance(value, str):
        return clean(value)
    if isinstance(value, dict) or hasattr(value, "items"):
        return {clean_data(key): clean_data(item) for key, item in value.items()}
    return [clean_data(item) for item in value] if isinstance(value, (list, tuple)) else value


def install():
    """Wrap what prints and what logs, once a process."""
    if getattr(Display.display, _MARK, False):
        return
    for owner, name, wrap in (
        (Display, "display", _display),
        (Display, "banner", _banner),
        (Display, "_log", _log),
    ):
        _wrap(owner, name, wrap)
    _wrap(CallbackBase, "_get_diff", _diff)
    _wrap(CallbackBase, "_get_item_label", _label)


def _wrap(owner, name, wrap):
    wrapped = functools.wraps(getattr(owner, name))(wrap(getattr(owner, name)))
    setattr(wrapped, _MARK, True)
    setattr(owner, name, wrapped)


def _display(before):
    # Ansible paints a text itself where it gives a colour; only what comes without one was painted
    # before (the recap, diffs, log lines).
    def display(self, msg, color=None, *rest, **named):
        if isinstance(msg, str) and not self._final_q:
            msg = msg.replace("\r\n", "\n")
            msg = _indented(clean(msg)) if color else clean_painted(msg)
        return before(self, msg, color, *rest, **named)

    return display


def _indented(text):
    """Return an error or a warning with its further lines indented: none can be taken for a line of
    Ansible's or of ours.
    """
    if not _LABELLED.match(text):
        return text
    return re.sub(r"\n(?=[^\n])", "\n    ", text)


def _label(before):
    def get_item_label(self, result):
        label = before(self, result)
        return clean(label, newlines=False) if isinstance(label, str) else label

    return get_item_label


def _banner(before):
    def banner(self, msg, *rest, **named):
        return before(
            self, msg if self._final_q else clean(str(msg).strip(), newlines=False), *rest, **named
        )

    return banner


def _log(before):
    def log(self, msg, *rest, **named):
        return before(self, clean(_painted().sub("", msg)), *rest, **named)

    return log


def _diff(before):
    def get_diff(self, difflist):
        return before(self, clean_data(difflist if isinstance(difflist, list) else [difflist]))

    return get_diff
