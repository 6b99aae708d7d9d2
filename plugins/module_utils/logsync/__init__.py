# SPDX-License-Identifier: Apache-2.0
"""Rank logs on the controller: receive, fetch, verify, index and show them."""
