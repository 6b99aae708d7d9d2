# SPDX-License-Identifier: Apache-2.0
"""The live view of a run."""
