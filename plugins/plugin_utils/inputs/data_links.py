# SPDX-License-Identifier: Apache-2.0
"""Links inside a data set on the controller.

A link that stays inside travels as a link. One that leads outside means nothing on a node. If a
data set has one and the site allows it, the contents of all its links travel as files.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Collection

from ansible_collections.trainyard.cluster.plugins.module_utils.base import manifest

from .sources import Entries, SourceError

# Files of a data set whose links are followed. Links can make one directory appear many times.
MOST_FILES = 50_000_000


def leading_out(root: str, entries: Entries) -> list[str]:
    """Return the names of the links that cannot travel as links."""
    return [
        name
        for name, entry in sorted(entries.items())
        if entry[0] == "l" and manifest.link_problem(root, name)
    ]


def refusal_remedy(suite: str, name: str) -> str:
    """Return the choices of a user whose data set has a link that is not followed."""
    key = f"trainyard_suites.{suite}.data.{name}"
    return (
        f"say {key}.follow_links: true, so that the contents travel as files, put the files into"
        f" the data set, or say {key}.placement: present if the data lies on the nodes"
    )


def names_followed(root: str, remedy: str) -> list[str]:
    """Return the sorted names of all files below root, links followed.

    Raises SourceError with the names of all links to nothing, loops and special files. remedy: the
    end of its message.
    """
    walk = _Walk(root)
    walk.run()
    if walk.problems:
        shown = walk.problems[: manifest.MOST_NAMED]
        more = ""
        if len(walk.problems) > len(shown):
            more = f"; and {len(walk.problems) - len(shown)} more"
        raise SourceError("inputs.bad_link", f"{'; '.join(shown)}{more}; {remedy}")
    return sorted(walk.names)


class _Walk:
    """All files of a directory, links followed."""

    def __init__(self, root: str) -> None:
        self.root = root
        self.names: list[str] = []
        self.problems: list[str] = []

    def run(self) -> None:
        """Fill names and problems."""
        info = os.stat(self.root)
        inodes: tuple[tuple[int, int], ...] = ((info.st_dev, info.st_ino),)
        stack = [("", inodes)]
        while stack:
            folder, ancestors = stack.pop()
            for name in self._names_in(folder):
                state = self._state(name)
                if state is None:
                    continue
                inode = (state.st_dev, state.st_ino)
                if stat.S_ISREG(state.st_mode):
                    self._take(name)
                elif not stat.S_ISDIR(state.st_mode):
                    self._refuse(name, "is no file, no directory and no link to one")
                elif inode in ancestors:
                    self._refuse(name, f"leads to {self._real(name)}, in which it lies (a loop)")
                else:
                    stack.append((name, (*ancestors, inode)))

    def _names_in(self, folder: str) -> Collection[str]:
        """Return the relative paths of a directory's entries."""
        try:
            names = os.listdir(os.path.join(self.root, folder))
        except OSError as error:
            self._refuse(folder, f"cannot be read ({error.strerror})")
            return ()
        return [os.path.join(folder, name) for name in names if name not in manifest.ALWAYS_IGNORED]

    def _state(self, name: str) -> os.stat_result | None:
        """Return what a name leads to, or note the problem."""
        try:
            return os.stat(os.path.join(self.root, name))
        except OSError as error:
            target = os.path.join(self.root, name)
            if os.path.islink(target):
                self._refuse(name, f"is a link to {os.readlink(target)}: {error.strerror}")
            else:
                self._refuse(name, f"cannot be read ({error.strerror})")
            return None

    def _take(self, name: str) -> None:
        self.names.append(name)
        if len(self.names) > MOST_FILES:
            raise SourceError(
                "inputs.too_many_files",
                f"{self.root} has more than {MOST_FILES} files with its links followed; does one"
                " directory appear many times?",
            )

    def _real(self, name: str) -> str:
        return os.path.realpath(os.path.join(self.root, name))

    def _refuse(self, name: str, text: str) -> None:
        self.problems.append(f"{name or '.'} in {self.root}: {text}")
