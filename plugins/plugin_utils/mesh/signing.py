# SPDX-License-Identifier: Apache-2.0
"""Signing of the nodes' public keys with ssh-keygen.

Certificates are short and have serial numbers. All of a site are signed in one batch.
"""

from __future__ import annotations

import base64
import binascii
import contextlib
import os
import struct
from collections.abc import Mapping, Sequence
from typing import Any

from ansible_collections.trainyard.cluster.plugins.module_utils.base.commands import RunCommand
from ansible_collections.trainyard.cluster.plugins.module_utils.base.files import replace_file
from ansible_collections.trainyard.cluster.plugins.module_utils.mesh.certificates import (
    needs_renewal,
)
from ansible_collections.trainyard.cluster.plugins.module_utils.mesh.primitives import (
    CLOCK_SLACK_SECONDS,
    principal,
    sha256,
)

from . import authority
from .certificates import parse_certificate


def read_node_key(text: str) -> str:
    """Return a node's ed25519 public key as 'type base64' without its comment.

    The text comes from the node. Raises ValueError.
    """
    fields = str(text).split()
    blob = b""
    if len(fields) >= 2 and fields[0] == "ssh-ed25519":
        with contextlib.suppress(binascii.Error, ValueError):
            blob = base64.b64decode(fields[1], validate=True)
    head = struct.pack(">I", 11) + b"ssh-ed25519" + struct.pack(">I", 32)
    if len(blob) != 51 or not blob.startswith(head):
        raise ValueError("its public key is not an ed25519 key")
    return " ".join(fields[:2])


def sign_argv(
    key: str,
    path: str,
    identity: str,
    principals: Sequence[str],
    serial: int,
    seconds: float,
    agent: bool = False,
    pkcs11: str = "",
) -> list[str]:
    """Return ssh-keygen's command that signs the public key in path.

    key: path of the authority's private key, of its public one with agent and pkcs11. seconds: how
    long the certificate is valid. pkcs11: path of the token's library.
    """
    source = []
    if pkcs11:
        source = ["-D", pkcs11]
    elif agent:
        source = ["-U"]
    span = f"-{CLOCK_SLACK_SECONDS}s:+{int(seconds)}s"
    return [
        "ssh-keygen",
        "-q",
        *source,
        "-s",
        key,
        "-I",
        identity,
        "-n",
        ",".join(principals),
        "-z",
        str(serial),
        "-V",
        span,
        "-O",
        "clear",
        path,
    ]


def is_usable(
    text: str, expected: Mapping[str, Any], now: float, seconds: float, before: float
) -> bool:
    """Return True if a certificate can go on being used.

    expected: {key_id, principals, public_key, ca}. now: unix seconds. seconds: how long a new one
    is valid. before: seconds that must be left. One that lasts much longer than a new one would is
    replaced too: the validity was shortened.
    """
    try:
        certificate = parse_certificate(text)
    except ValueError:
        return False
    latest_end = now + seconds + CLOCK_SLACK_SECONDS
    return (
        all(getattr(certificate, key) == value for key, value in expected.items())
        and certificate.valid_after <= now
        and certificate.valid_until <= latest_end
        and not needs_renewal(certificate.valid_until, now, before)
    )


def _read(path: str) -> str:
    """Return a file's text, '' where it cannot be read."""
    try:
        with open(path, encoding="utf-8") as handle:
            return handle.read()
    except (OSError, UnicodeDecodeError):
        return ""


def sign_nodes(
    folder: str,
    ca: str,
    nodes: Mapping[str, str],
    site: str,
    seconds: int,
    before: float,
    now: float,
    run_command: RunCommand,
    user: str = "",
    agent_key: str = "",
    pkcs11: str = "",
    write: bool = True,
) -> tuple[dict[str, str], list[str]]:
    """Return ({name: certificate}, names that were signed). Called under the lock.

    ca: the authority's public key. nodes: {name: public key as the node gave it}. seconds: how long
    a certificate is valid. before: one is renewed when less than these seconds are left. now: unix
    seconds. user: the user's name where it is the second principal, else ''. agent_key: path of the
    authority's public key where the private one is not in folder. write: False to sign nothing.
    Raises AuthorityError.
    """
    journal = authority.read_journal(folder)
    if "/" in user:
        raise authority.AuthorityError(
            "a user's name with a slash could pass for a node's principal"
        )
    certificates: dict[str, str] = {}
    owners: dict[str, str] = {}
    signed = []
    for name, text in nodes.items():
        key = _validate_node(name, text, journal["taken_back"])
        if owners.setdefault(key, name) != name:
            raise authority.AuthorityError(
                f"{name}: has the key of {owners[key]}; remove ~/.trainyard/mesh there and run"
                " trust.yml again"
            )
        principals = [principal(site, name)]
        if user:
            principals.append(user)
        key_id = f"{site}-{name}"
        expected = {"key_id": key_id, "principals": principals, "public_key": key, "ca": ca}
        digest = sha256("\n".join([key, ca, *principals]))
        stem = f"{name}-{digest[:16]}"
        path = os.path.join(folder, authority.SIGNED, stem)
        certificates[name] = _read(path + "-cert.pub")
        if not write or is_usable(certificates[name], expected, now, seconds, before):
            continue
        serial = authority.next_serial(journal, now)
        authority.write_journal(folder, journal)  # first, so that no number is given twice
        replace_file(path + ".pub", key + "\n")
        argv = sign_argv(
            agent_key or os.path.join(folder, authority.KEY),
            path + ".pub",
            key_id,
            principals,
            serial,
            seconds,
            agent=bool(agent_key) and not pkcs11,
            pkcs11=pkcs11,
        )
        code, _out, err = run_command(argv)
        certificates[name] = _read(path + "-cert.pub")
        if code != 0 or not is_usable(certificates[name], expected, now, seconds, 0):
            raise authority.AuthorityError(sign_problem(err, agent_key, pkcs11))
        os.chmod(path + "-cert.pub", 0o600)
        signed.append(name)
        authority.remove_signed(folder, name, (stem + ".pub", stem + "-cert.pub"))
    return certificates, signed


def _validate_node(name: str, text: str, taken_back: Mapping[str, Any]) -> str:
    """Return the public key of a node that may get a certificate.

    text: the key as the node gave it. taken_back: names of nodes. Raises AuthorityError.
    """
    if not authority.NAME.match(name):
        raise authority.AuthorityError(f"{name!r} is not a node's name")
    if name in taken_back:
        raise authority.AuthorityError(f"{name} was taken back and gets no certificate")
    try:
        return read_node_key(text)
    except ValueError as problem:
        raise authority.AuthorityError(f"{name}: {problem}") from problem


def sign_problem(output: str, agent_key: str, pkcs11: str) -> str:
    """Return the reason why nothing was signed, with the remedy.

    output: what ssh-keygen printed.
    """
    lines = [line for line in output.splitlines() if line.strip()] or ["it said nothing"]
    if pkcs11:
        remedy = (
            f"is the token there ({pkcs11}), and its PIN known? `ssh-add -s {pkcs11}` asks for it"
            " once; then leave ssh_trust_ca_pkcs11 empty"
        )
    elif agent_key:
        remedy = (
            "the agent of this shell must hold the key: ssh-add -l, ssh-add; SSH_AUTH_SOCK must"
            " be set"
        )
    else:
        remedy = (
            "a key with a passphrase is signed with by an agent: ssh-add it and set"
            " ssh_trust_ca_public_key to its .pub file"
        )
    return f"ssh-keygen did not sign ({lines[-1].strip()}); {remedy}"
