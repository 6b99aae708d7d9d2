# SPDX-License-Identifier: GPL-3.0-or-later
"""Sign the nodes' public keys. Documented in library/mesh_sign.py."""

from __future__ import annotations

import contextlib
import time

from ansible_collections.trainyard.cluster.plugins.module_utils.base import commands
from ansible_collections.trainyard.cluster.plugins.modules.mesh_sign import DOCUMENTATION
from ansible_collections.trainyard.cluster.plugins.plugin_utils.controller_action import (
    Arguments,
    ControllerAction,
    Result,
    arguments_of,
)
from ansible_collections.trainyard.cluster.plugins.plugin_utils.mesh import (
    authority,
    signing,
    ssh_config,
)


class ActionModule(ControllerAction):
    """Call ssh-keygen with the authority's key, which is on the controller."""

    ARGUMENTS = arguments_of(DOCUMENTATION)
    # A library without a slash is looked for where libraries lie.
    PATHS_AS_GIVEN = ("pkcs11",)
    FAILURES = (authority.AuthorityError, OSError, ValueError)

    def execute(self, arguments: Arguments) -> Result:
        """Sign the keys. In check mode, return the certificates that are good still."""
        write, folder = not self.check_mode, arguments["directory"]
        keys = {name: key for name, key in arguments["keys"].items() if key}
        validity = ssh_config.span_seconds(arguments["validity"])
        renew_before = ssh_config.span_seconds(arguments["renew_before"])
        with contextlib.ExitStack() as locks:
            if write:
                locks.enter_context(authority.lock(folder))
            certificates, signed = signing.sign_nodes(
                folder,
                arguments["ca_public_key"],
                keys,
                arguments["site"],
                validity,
                renew_before,
                time.time(),
                commands.run_program,
                write=write,
                **{name: arguments[name] or "" for name in ("user", "agent_key", "pkcs11")},
            )
        return {"changed": bool(signed), "certificates": certificates, "signed": signed}

    def describe(self, error: Exception) -> str:
        """Return the message as it is."""
        return str(error)
