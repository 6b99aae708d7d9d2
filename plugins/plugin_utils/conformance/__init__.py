# SPDX-License-Identifier: Apache-2.0
"""Comparison of the product with its source documents."""
