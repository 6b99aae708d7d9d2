# SPDX-License-Identifier: Apache-2.0
"""The way of a peer's supervisor to that of this node: from sshd to a socket.

The gate runs it. It passes bytes on, unread.
"""

from __future__ import annotations

import hashlib
import json
import os
import select
import socket
import sys

PIECE = 1 << 16


def socket_path(run, node):
    """Return the path of a supervisor's socket, in the directory that only its user enters.

    It is short for every run, because a socket's path has 107 bytes at most.
    """
    name = hashlib.sha256(f"{run} {node}".encode()).hexdigest()[:16]
    return f"/run/user/{os.getuid()}/yardsupervisor-{name}.sock"


def relay(path, peer):
    """Connect standard input and output with a supervisor until one side ends.

    The first line tells the supervisor who calls. Return the exit code.
    """
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as link:
        try:
            link.connect(path)
        except OSError as error:
            print(f"trainyard: no supervisor of this run is here: {error}", file=sys.stderr)
            return 1
        link.sendall(json.dumps({"peer": peer}).encode() + b"\n")
        while True:
            for source in select.select([0, link], [], [])[0]:
                piece = _read(source)
                if not piece:
                    return 0
                if source is link:
                    sys.stdout.buffer.write(piece)
                    sys.stdout.buffer.flush()
                else:
                    link.sendall(piece)


def _read(source):
    """Return the bytes that a side has, b'' at its end."""
    try:
        if source == 0:
            return os.read(0, PIECE)
        return source.recv(PIECE)
    except OSError:
        return b""
