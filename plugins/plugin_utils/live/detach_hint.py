# SPDX-License-Identifier: Apache-2.0
"""Commands that lead back to a run which goes on after its terminal was left."""

from __future__ import annotations

import os
import shlex
from collections.abc import Iterable

from ansible_collections.trainyard.cluster.plugins.module_utils.base import sanitize


def describe_detached_run(run: str, inventories: Iterable[str], defaults: Iterable[str]) -> str:
    """Return the text for the terminal, safe to print.

    run: its id. inventories: of the command line. defaults: the configured inventories, which the
    printed commands need not name.
    """
    default_paths = {os.path.abspath(path) for path in defaults}
    options = "".join(
        f"-i {shlex.quote(source)} " for source in inventories if source not in default_paths
    )
    command, name = f"ansible-playbook {options}playbooks", shlex.quote(run)
    return sanitize.escape(
        f"\nThe run {name} goes on without this terminal."
        f"\n  follow it again:  {command}/follow.yml -e run={name}"
        f"\n  how it stands:    {command}/status.yml -e run={name}"
        f"\n  stop it:          {command}/stop.yml -e run={name}\n",
        newlines=True,
    )
