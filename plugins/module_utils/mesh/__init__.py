# SPDX-License-Identifier: Apache-2.0
"""Logins between a site's nodes: keys, certificates, known hosts and the gate."""
