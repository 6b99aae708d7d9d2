# SPDX-License-Identifier: Apache-2.0
"""Validation of what nodes answer."""
