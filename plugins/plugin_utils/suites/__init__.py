# SPDX-License-Identifier: Apache-2.0
"""Suites and launchers as tables."""
