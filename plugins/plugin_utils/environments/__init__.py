# SPDX-License-Identifier: Apache-2.0
"""The environments of nodes, as the controller prepares and compares them."""
