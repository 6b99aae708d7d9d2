# SPDX-License-Identifier: Apache-2.0
"""The verdict: which rank failed first, and why."""
