# SPDX-License-Identifier: Apache-2.0
"""Job, site and command line: read, validate and combine them."""
