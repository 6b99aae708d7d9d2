# SPDX-License-Identifier: Apache-2.0
"""Checkpoints on a node: find, validate and collect them."""
