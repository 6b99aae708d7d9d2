# SPDX-License-Identifier: Apache-2.0
"""`python -m trainyard` is the command `trainyard`."""

from __future__ import annotations

from .cli import main

main()
