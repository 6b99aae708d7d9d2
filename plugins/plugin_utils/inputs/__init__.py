# SPDX-License-Identifier: Apache-2.0
"""Code, data and weights: sources, paths and their placement on the nodes."""
