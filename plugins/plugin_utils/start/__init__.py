# SPDX-License-Identifier: Apache-2.0
"""The plan of a run, as the controller compiles it."""
