# SPDX-License-Identifier: Apache-2.0
"""What the Python of a pretended node sees of its machine: its own account's home, host name and
addresses.

Its address 198.51.100.N is 127.100.0.N of this machine, so that nodes reach each other and nobody
else.
"""

import builtins
import io
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

    _SHOWN, _HERE = "198.51.100.", "127.100.0."
    _SOCKET = socket.socket

    def _inside(address):
        return (
            (address[0].replace(_SHOWN, _HERE),) + tuple(address[1:])
            if isinstance(address, tuple)
            else _mapped(address)
        )

    def _outside(address):
        return (
            (address[0].replace(_HERE, _SHOWN),) + tuple(address[1:])
            if isinstance(address, tuple)
            else address
        )

    class _Socket(_SOCKET):
        """A socket whose addresses are the pretended ones."""

        def bind(self, address):
            return super().bind(_inside(address))

        def connect(self, address):
            return super().connect(_inside(address))

        def connect_ex(self, address):
            return super().connect_ex(_inside(address))

        def sendto(self, data, *more):
            return super().sendto(data, *more[:-1], _inside(more[-1]))

        def getsockname(self):
            return _outside(super().getsockname())

        def getpeername(self):
            return _outside(super().getpeername())

        def accept(self):
            connection, address = super().accept()
            return connection, _outside(address)

    socket.socket = _Socket

    # What belongs to the machine lies below the node's home here.
    _OWN = (
        "/run/user/",
        "/etc/machine-id",
        "/etc/ssh",
        "/proc/sys/kernel/hostname",
        "/sys/class/net",
        "/var/lib/systemd/linger/",
        "/etc/systemd/system/user",
    )

    def _mapped(path):
        text = os.fsdecode(path) if isinstance(path, (str, bytes, os.PathLike)) else ""
        return os.environ["HOME"] + "/.machine" + text if text.startswith(_OWN) else path

    def _wrapped(call, count=1):
        def inner(*given, **more):
            return call(*[_mapped(path) for path in given[:count]], *given[count:], **more)

        return inner

    for _name in (
        "open",
        "stat",
        "lstat",
        "access",
        "listdir",
        "scandir",
        "mkdir",
        "unlink",
        "remove",
        "rmdir",
        "readlink",
        "chmod",
        "utime",
    ):
        setattr(os, _name, _wrapped(getattr(os, _name)))
    for _name in ("replace", "rename", "link"):
        setattr(os, _name, _wrapped(getattr(os, _name), 2))
    builtins.open = io.open = _wrapped(io.open)

    _LISTDIR, _HOME = os.listdir, ("HOME={}".format(os.environ["HOME"])).encode()

    def _is_own(pid):
        try:
            with open(f"/proc/{pid}/environ", "rb") as handle:
                return _HOME in handle.read().split(b"\0")
        except OSError:
            return False

    def _listdir(path="."):
        """List a directory; of the machine's processes only those of the pretended node."""
        names = _LISTDIR(path)
        return (
            [name for name in names if not name.isdigit() or _is_own(name)]
            if path == "/proc"
            else names
        )

    os.listdir = _listdir
