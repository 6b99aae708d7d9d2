# SPDX-License-Identifier: Apache-2.0
"""Code that may run on a node: Python 3.8 or newer, standard library only."""
