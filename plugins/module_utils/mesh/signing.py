# SPDX-License-Identifier: Apache-2.0
"""Sign the nodes' public keys on the controller with ssh-keygen: short certificates with serial
numbers, one batch for a site.
"""

from __future__ import annotations

import base64
import binascii
import os
import struct

from . import authority
from .certificates import needs_renewal, parse_certificate
from .primitives import CLOCK_SLACK_SECONDS, principal, sha256


def read_node_key(text):
    """Return a node's ed25519 public key as 'type base64' without its comment; raises ValueError.
    It comes from the node.
    """
    fields = str(text).split()
    try:
        blob = (
            base64.b64decode(fields[1], validate=True)
            if len(fields) >= 2 and fields[0] == "ssh-ed25519"
            else b""
        )
    except (binascii.Error, ValueError):
        blob = b""
    if len(blob) != 51 or not blob.startswith(
        struct.pack(">I", 11) + b"ssh-ed25519" + struct.pack(">I", 32)
    ):
        raise ValueError("its public key is not an ed25519 key")
    return " ".join(fields[:2])


def sign_argv(key, path, identity, principals, serial, seconds, agent=False, pkcs11=""):
    """Return ssh-keygen's command that signs the public key in path. key: the authority's private
    key; its public one with agent and pkcs11.
    """
    source = ["-D", pkcs11] if pkcs11 else ["-U"] if agent else []
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


def is_good(text, wanted, now, seconds, before):
    """Return whether a certificate can go on being used. wanted: {key_id, principals, public_key,
    ca}; seconds: how long a new one is valid.

    One that lasts much longer than a new one would is replaced too: somebody has shortened the
    validity.
    """
    try:
        found = parse_certificate(text)
    except ValueError:
        return False
    same = all(found[key] == value for key, value in wanted.items())
    in_time = (
        found["valid_after"] <= now and found["valid_until"] <= now + seconds + CLOCK_SLACK_SECONDS
    )
    return same and in_time and not needs_renewal(found["valid_until"], now, before)


def _read(path):
    try:
        with open(path, encoding="utf-8") as handle:
            return handle.read()
    except (OSError, UnicodeDecodeError):
        return ""


def sign_nodes(
    folder, ca, nodes, site, seconds, before, now, run, user="", agent_key="", pkcs11="", write=True
):
    """Return ({name: certificate}, names that were signed). Called under the lock.

    ca: the authority's public key. nodes: {name: public key as the node gave it}. user: the user's
    name where it is the second principal, else ''. agent_key: path of the authority's public key
    where the private one is not in folder. Raises AuthorityError.
    """
    journal = authority.read_journal(folder)
    if "/" in user:
        raise authority.AuthorityError(
            "a user's name with a slash could pass for a node's principal"
        )
    found, signed, owners = {}, [], {}
    for name, given in nodes.items():
        if not authority.NAME.match(name):
            raise authority.AuthorityError(f"{name!r} is not a node's name")
        if name in journal["taken_back"]:
            raise authority.AuthorityError(f"{name} was taken back and gets no certificate")
        try:
            key = read_node_key(given)
        except ValueError as problem:
            raise authority.AuthorityError(f"{name}: {problem}") from problem
        if owners.setdefault(key, name) != name:
            raise authority.AuthorityError(
                f"{name}: has the key of {owners[key]}; remove ~/.trainyard/mesh there and run"
                " trust.yml again"
            )
        principals = [principal(site, name)] + [user] * bool(user)
        wanted = {"key_id": f"{site}-{name}", "principals": principals, "public_key": key, "ca": ca}
        stem = "{}-{}".format(name, sha256("\n".join([key, ca, *principals]))[:16])
        path = os.path.join(folder, authority.SIGNED, stem)
        text = _read(path + "-cert.pub")
        if write and not is_good(text, wanted, now, seconds, before):
            serial = authority.next_serial(journal, now)
            authority.write_journal(folder, journal)  # first, so that no number is given twice
            authority.write_file(path + ".pub", key + "\n")
            argv = sign_argv(
                agent_key or os.path.join(folder, authority.KEY), path + ".pub", wanted["key_id"], principals, serial, seconds,
                agent=bool(agent_key) and not pkcs11, pkcs11=pkcs11,
            )  # fmt: skip
            code, _out, err = run(argv)
            text = _read(path + "-cert.pub")
            if code != 0 or not is_good(text, wanted, now, seconds, 0):
                raise authority.AuthorityError(sign_problem(err, agent_key, pkcs11))
            os.chmod(path + "-cert.pub", 0o600)
            signed.append(name)
            authority.forget_signed(folder, name, (stem + ".pub", stem + "-cert.pub"))
        found[name] = text
    return found, signed


def sign_problem(said, agent_key, pkcs11):
    """Return why nothing was signed, in words with the remedy. said: what ssh-keygen printed."""
    last = ([line for line in said.splitlines() if line.strip()] or ["it said nothing"])[-1].strip()
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
    return f"ssh-keygen did not sign ({last}); {remedy}"
