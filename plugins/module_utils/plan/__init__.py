# SPDX-License-Identifier: Apache-2.0
"""The plan: nodes, ranks, command, environment and files of a run."""
