# SPDX-License-Identifier: Apache-2.0
"""User certificates of the mesh, read from the certificate itself."""

from __future__ import annotations

import base64
import binascii
import struct


def _string(blob, at):
    """Return (bytes, next offset) of the string at an offset.

    Raises struct.error and ValueError.
    """
    (size,) = struct.unpack_from(">I", blob, at)
    if at + 4 + size > len(blob):
        raise ValueError("truncated")
    return blob[at + 4 : at + 4 + size], at + 4 + size


def parse_certificate(text):
    """Return the fields of a user certificate of an ed25519 key.

    {serial, key_id, principals, valid_after, valid_until (unix seconds), public_key, ca}. They are
    read from the certificate itself (OpenSSH's PROTOCOL.certkeys): `ssh-keygen -L` prints times
    without their zone. public_key and ca are keys as in a .pub file, without comment. Raises
    ValueError.
    """
    try:
        kind, encoded = text.split()[:2]
        blob = base64.b64decode(encoded, validate=True)
        name, at = _string(blob, 0)
        if name != b"ssh-ed25519-cert-v01@openssh.com":
            raise ValueError(f"type {kind}")
        _nonce, at = _string(blob, at)
        public, at = _string(blob, at)
        (serial,) = struct.unpack_from(">Q", blob, at)
        at += 8 + 4  # serial number and type
        key_id, at = _string(blob, at)
        packed, at = _string(blob, at)
        after, until = struct.unpack_from(">QQ", blob, at)
        at += 16
        for _field in ("critical options", "extensions", "reserved"):
            _value, at = _string(blob, at)
        ca, at = _string(blob, at)
        principals, at = [], 0
        while at < len(packed):
            principal, at = _string(packed, at)
            principals.append(principal.decode("utf-8"))
    except (binascii.Error, struct.error, UnicodeDecodeError, ValueError) as problem:
        raise ValueError(f"not a user certificate of an ed25519 key: {problem}") from problem
    key = struct.pack(">I", 11) + b"ssh-ed25519" + struct.pack(">I", len(public)) + public
    ca_type = _string(ca, 0)[0].decode("ascii", "replace")
    return {
        "serial": serial,
        "key_id": key_id.decode("utf-8", "replace"),
        "principals": principals,
        "valid_after": after,
        "valid_until": until,
        "public_key": f"ssh-ed25519 {base64.b64encode(key).decode()}",
        "ca": f"{ca_type} {base64.b64encode(ca).decode()}",
    }


def needs_renewal(valid_until, now, before=86400):
    """Return True if a certificate ends within `before` seconds or is missing.

    valid_until: unix seconds, or None where there is no certificate.
    """
    return valid_until is None or valid_until - now < before
