# SPDX-License-Identifier: Apache-2.0
"""The command `trainyard`: the playbooks of this product, found and run from any directory."""

from __future__ import annotations
