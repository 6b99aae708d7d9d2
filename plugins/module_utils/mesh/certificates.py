# SPDX-License-Identifier: Apache-2.0
"""End of a user certificate of the mesh, with the standard library."""

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


def read_end(text):
    """Return when a user certificate of an ed25519 key ends, in unix seconds.

    It is read from the certificate itself (OpenSSH's PROTOCOL.certkeys): `ssh-keygen -L` prints
    times without their zone. Raises ValueError.
    """
    try:
        kind, encoded = text.split()[:2]
        blob = base64.b64decode(encoded, validate=True)
        name, at = _string(blob, 0)
        if name != b"ssh-ed25519-cert-v01@openssh.com":
            raise ValueError(f"type {kind}")
        for _field in ("nonce", "public key"):
            _value, at = _string(blob, at)
        at += 8 + 4  # serial number and type
        for _field in ("key id", "principals"):
            _value, at = _string(blob, at)
        _begin, end = struct.unpack_from(">QQ", blob, at)
        at += 16
        for _field in ("critical options", "extensions", "reserved", "authority", "signature"):
            _value, at = _string(blob, at)  # the certificate is whole
    except (binascii.Error, struct.error, ValueError) as problem:
        raise ValueError(f"not a user certificate of an ed25519 key: {problem}") from problem
    return end


def needs_renewal(valid_until, now, before=86400):
    """Return True if a certificate ends within `before` seconds or is missing.

    valid_until: unix seconds, or None where there is no certificate.
    """
    return valid_until is None or valid_until - now < before
