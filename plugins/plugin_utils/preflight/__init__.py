# SPDX-License-Identifier: Apache-2.0
"""Checks before a start, judged on the controller."""
