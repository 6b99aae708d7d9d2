# SPDX-License-Identifier: Apache-2.0
"""Runs, as the controller knows and describes them."""
