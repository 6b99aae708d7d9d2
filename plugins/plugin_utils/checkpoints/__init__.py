# SPDX-License-Identifier: Apache-2.0
"""Checkpoints on the controller: their choice, and the copies from the nodes."""
