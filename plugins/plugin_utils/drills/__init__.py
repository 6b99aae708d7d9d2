# SPDX-License-Identifier: Apache-2.0
"""Fault drills: faults, their execution and the invariants that must hold."""
