# SPDX-License-Identifier: Apache-2.0
"""A plugin of pytest: the tests run with one guard of the supervisors' protocol left out.

    TRAINYARD_MUTANT=NAME pytest -p supervision_mutation tests/unit/supervision

NAME: of a Mutant in supervision_mutants.py, of a module.
"""

from __future__ import annotations

import importlib.abc
import importlib.machinery
import os
import sys

import supervision_support
from supervision_mutants import MUTANTS
from supervision_support import PACKAGE


class Loader(importlib.machinery.SourceFileLoader):
    """Loads one module from its source with the change. No compiled file is read or written."""

    def __init__(self, name, path, mutant):
        super().__init__(name, path)
        self.mutant = mutant

    def get_code(self, fullname):
        return compile(self.mutant.apply(self.get_source(fullname)), self.path, "exec")


class Finder(importlib.abc.MetaPathFinder):
    """Finds the module of the mutant."""

    def __init__(self, mutant):
        self.mutant = mutant

    def find_spec(self, fullname, path, target=None):
        if fullname != f"{PACKAGE}.{self.mutant.module}":
            return None
        spec = importlib.machinery.PathFinder.find_spec(fullname, path)
        spec.loader = Loader(fullname, spec.origin, self.mutant)
        return spec


def pytest_sessionstart():
    """Put the finder before Ansible's, which conftest.py has installed by now.

    The simulator reads the sources itself.
    """
    (found,) = [mutant for mutant in MUTANTS if mutant.name == os.environ["TRAINYARD_MUTANT"]]
    assert f"{PACKAGE}.{found.module}" not in sys.modules
    sys.meta_path.insert(0, Finder(found))
    plain = supervision_support.load
    supervision_support.load = lambda mutant=None: plain(mutant or found)
