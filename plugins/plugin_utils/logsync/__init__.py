# SPDX-License-Identifier: Apache-2.0
"""The logs of runs on the controller."""
