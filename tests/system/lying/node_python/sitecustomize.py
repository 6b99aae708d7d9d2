# SPDX-License-Identifier: Apache-2.0
"""What the Python of a pretended node sees of its machine: its own account's home and its own host name."""

import os
import pwd
import socket

if "LYING_NODE" in os.environ:
    _REAL = pwd.getpwuid

    def _own(*_given):
        found = list(_REAL(os.getuid()))
        found[0], found[5] = "trainer", os.environ["HOME"]
        return pwd.struct_passwd(found)

    pwd.getpwuid = pwd.getpwnam = _own
    socket.gethostname = lambda: os.environ["LYING_NODE"]
