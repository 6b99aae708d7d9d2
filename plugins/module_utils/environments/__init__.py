# SPDX-License-Identifier: Apache-2.0
"""Python environments, wheels and containers."""
