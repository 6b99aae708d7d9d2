# SPDX-License-Identifier: Apache-2.0
"""The archive with the programs of a run on a node, and its way there."""
