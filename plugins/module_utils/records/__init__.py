# SPDX-License-Identifier: Apache-2.0
"""The record of a run (run.json) and the rules for removing runs."""
