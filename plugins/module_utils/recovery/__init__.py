# SPDX-License-Identifier: Apache-2.0
"""Restarts, replacement of nodes and resume points."""
