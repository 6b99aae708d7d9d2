# SPDX-License-Identifier: Apache-2.0
"""Benchmark of a job on different numbers of nodes (playbooks/benchmark.yml)."""
