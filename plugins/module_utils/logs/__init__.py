# SPDX-License-Identifier: Apache-2.0
"""Rank logs: lines, timestamps, errors and the catalogue of failures."""
