# SPDX-License-Identifier: Apache-2.0
"""The controller's part of the logins between the nodes."""
