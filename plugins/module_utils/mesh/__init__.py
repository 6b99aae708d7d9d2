# SPDX-License-Identifier: Apache-2.0
"""Logins between the nodes of a site: keys, certificates, known hosts and the gate."""
