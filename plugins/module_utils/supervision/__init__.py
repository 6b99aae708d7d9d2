# SPDX-License-Identifier: Apache-2.0
"""The nodes' agreement on a run: which attempt trains, where, and from which checkpoint."""
