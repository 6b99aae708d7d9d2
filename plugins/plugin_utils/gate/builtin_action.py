# SPDX-License-Identifier: Apache-2.0
"""Loader of Ansible's own action plugins, each under a name of its own.

Ansible loads an action plugin of this product under the very name of the one that it stands for
(`ansible.plugins.action.normal`), so that one cannot be imported by its name.
"""

from __future__ import annotations

import importlib.util
import os
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from ansible.plugins.action import ActionBase


def load(name: str) -> type[ActionBase]:
    """Return the class ActionModule of Ansible's own action plugin of this name.

    Raises ImportError where Ansible has none.
    """
    import ansible.plugins.action

    path = os.path.join(os.path.dirname(ansible.plugins.action.__file__), name + ".py")
    spec = importlib.util.spec_from_file_location("trainyard_builtin_" + name, path)
    if spec is None or spec.loader is None:
        raise ImportError(f"Ansible's action plugin {name} cannot be read")
    module = importlib.util.module_from_spec(spec)
    try:
        spec.loader.exec_module(module)
    except FileNotFoundError as error:
        raise ImportError(f"Ansible has no action plugin {name}") from error
    action: type[ActionBase] = module.ActionModule
    return action
