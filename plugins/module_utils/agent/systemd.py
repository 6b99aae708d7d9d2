# SPDX-License-Identifier: Apache-2.0
"""Calls to systemd: to the user's manager, and from a unit's process to it."""

from __future__ import annotations

import os
import socket


def manager_environment(**more):
    """Return the environment in which systemctl --user finds the manager, also from sshd."""
    return dict(os.environ, XDG_RUNTIME_DIR=f"/run/user/{os.getuid()}", **more)


def notify(message):
    """Send a message (bytes) to systemd, where it started this process (sd_notify(3))."""
    address = os.environ.get("NOTIFY_SOCKET", "")
    if not address:
        return
    if address[0] == "@":
        address = "\0" + address[1:]
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC) as connection:
        connection.sendto(message, address)
