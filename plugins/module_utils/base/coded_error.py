# SPDX-License-Identifier: Apache-2.0
"""Errors with a message code."""

from __future__ import annotations

import re

from .sanitize import printable

CODE = re.compile(r"[a-z]{1,40}\.[a-z][a-z0-9_]{0,60}\Z")


class CodedError(Exception):
    """An error with a stable code and a message for the user.

    code: `<area>.<reason>`, which docs/messages.md lists. The message may change.
    """

    def __init__(self, code: str, message: str) -> None:
        super().__init__(message)
        self.code = code


def describe_failure(error):
    """Return the fields of a failed answer: {msg}, and {code} where the error has one."""
    fields = {"msg": printable(str(error), newlines=True)}
    if isinstance(error, CodedError):
        fields["code"] = error.code
    return fields
