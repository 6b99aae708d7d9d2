# SPDX-License-Identifier: Apache-2.0
"""The words by which a variable is switched on or off."""

from __future__ import annotations

from typing import Any

YES, NO = ("true", "yes", "on", "1"), ("false", "no", "off", "0")


def parse_switch(value: Any) -> bool | None:
    """Return the meaning of a switch (True, False), or None for another value."""
    text = str(value).strip().lower()
    if text in YES:
        return True
    if text in NO:
        return False
    return None
