# SPDX-License-Identifier: Apache-2.0
"""Attempts on a node: directory, unit, ownership, status and evidence."""
