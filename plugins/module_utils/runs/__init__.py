# SPDX-License-Identifier: Apache-2.0
"""Records of attempts, history, stop and removal of runs."""
