# SPDX-License-Identifier: Apache-2.0
"""Cleaning of everything that ansible-playbook prints or logs.

A node's answer reaches the terminal in many ways: results, warnings, deprecations, error texts,
ssh's own words, labels, diffs. All of them end in `Display.display` and `Display._log`, so these
two are wrapped, whichever callback prints. Workers hand their text to the main process, which
cleans it.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Callable, Iterable
from typing import Any

from ansible import constants as C
from ansible.plugins.callback import CallbackBase
from ansible.utils import color
from ansible.utils.display import Display
from ansible_collections.trainyard.cluster.plugins.module_utils.base.sanitize import (
    Secrets,
    escape,
    printable,
)

_MARK = "_trainyard_cleans"
# What stands before errors and warnings. Their text may be a node's, and have several lines.
_LABELLED = re.compile(r"\[[A-Z][A-Z ]{0,40}\]: ")
# A whole result of `-vvv` is one text.
_LONGEST = 1 << 40
_hidden = Secrets((), ())
_on_broken_pipe: Callable[[], None] | None = None
_always: tuple[str, ...] = ()


def set_secrets(secrets: Secrets) -> None:
    """Mask these secrets of a plan in everything that is printed from now on."""
    global _hidden
    _hidden = secrets


def set_broken_pipe_handler(handler: Callable[[], None]) -> None:
    """Call a handler where a line cannot be printed, since nobody reads the output any more."""
    global _on_broken_pipe
    _on_broken_pipe = handler


def hide(values: Iterable[str]) -> None:
    """Mask these texts of the site, too, in everything that is printed from now on."""
    global _always
    _always = tuple({*_always, *values})


def clean(text: Any, newlines: bool = True) -> str:
    """Return text as it may be printed: secrets masked, control characters escaped."""
    hidden = (_hidden.names, (*_hidden.values, *_always))
    return printable(text, *hidden, limit=_LONGEST, newlines=newlines)


@functools.lru_cache(maxsize=1)
def _colour_codes() -> re.Pattern[str]:
    """Return the pattern of the codes that `stringc` puts around a text.

    They are those of Ansible's colours. Black is not among them: it would hide the text.
    """
    names = [
        getattr(C, name)
        for name in dir(C)
        if name.startswith("COLOR_") and isinstance(getattr(C, name), str)
    ]
    codes = {color.parsecolor(name) for name in [*C.COLOR_CODES, *names] if name != "black"}
    alternatives = "|".join(re.escape(code) for code in sorted(codes))
    return re.compile(f"(\x1b\\[(?:0|{alternatives})m)")


def clean_painted(text: str) -> str:
    """Return text that our own code has painted and cleaned.

    Ansible's colours stay where it uses colours, and no other control characters.
    """
    if "\x1b" not in text or not color.ANSIBLE_COLOR:
        return escape(text, True)
    parts = _colour_codes().split(text)
    # The pattern has one group, so every second part is a colour.
    parts[::2] = [escape(part, True) for part in parts[::2]]
    return "".join(parts)


def clean_data(value: Any) -> Any:
    """Return nested data with every text cleaned."""
    if isinstance(value, str):
        return clean(value)
    if isinstance(value, dict) or hasattr(value, "items"):
        return {clean_data(key): clean_data(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [clean_data(item) for item in value]
    return value


def install() -> None:
    """Wrap the functions that print and log, once per process."""
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


def _wrap(owner: type, name: str, wrap: Callable[[Callable[..., Any]], Callable[..., Any]]) -> None:
    wrapped = functools.wraps(getattr(owner, name))(wrap(getattr(owner, name)))
    setattr(wrapped, _MARK, True)
    setattr(owner, name, wrapped)


def _display(before: Callable[..., Any]) -> Callable[..., Any]:
    # Ansible paints a text itself where it gives a colour. Only a text without one was painted
    # before (the recap, diffs, log lines).
    def display(self: Any, msg: Any, color: str | None = None, *rest: Any, **named: Any) -> Any:
        if isinstance(msg, str) and not self._final_q:
            msg = msg.replace("\r\n", "\n")
            if color:
                msg = _indent_label(clean(msg))
            else:
                msg = clean_painted(msg)
        try:
            return before(self, msg, color, *rest, **named)
        except BrokenPipeError:
            if _on_broken_pipe is None:
                raise
            _on_broken_pipe()

    return display


def _indent_label(text: str) -> str:
    """Return an error or a warning with its further lines indented.

    Then none of them can be taken for a line of Ansible's or of ours.
    """
    if not _LABELLED.match(text):
        return text
    return re.sub(r"\n(?=[^\n])", "\n    ", text)


def _label(before: Callable[..., Any]) -> Callable[..., Any]:
    def get_item_label(self: Any, result: Any) -> Any:
        label = before(self, result)
        if isinstance(label, str):
            label = clean(label, newlines=False)
        return label

    return get_item_label


def _banner(before: Callable[..., Any]) -> Callable[..., Any]:
    def banner(self: Any, msg: Any, *rest: Any, **named: Any) -> Any:
        if not self._final_q:
            msg = clean(str(msg).strip(), newlines=False)
        return before(self, msg, *rest, **named)

    return banner


def _log(before: Callable[..., Any]) -> Callable[..., Any]:
    def log(self: Any, msg: Any, *rest: Any, **named: Any) -> Any:
        return before(self, clean(_colour_codes().sub("", msg)), *rest, **named)

    return log


def _diff(before: Callable[..., Any]) -> Callable[..., Any]:
    def get_diff(self: Any, difflist: Any) -> Any:
        if not isinstance(difflist, list):
            difflist = [difflist]
        return before(self, clean_data(difflist))

    return get_diff
