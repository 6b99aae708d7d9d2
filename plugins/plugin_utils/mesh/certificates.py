# SPDX-License-Identifier: Apache-2.0
"""User certificates of the mesh, as the controller reads them."""

from __future__ import annotations

import dataclasses

from cryptography.exceptions import InvalidSignature, UnsupportedAlgorithm
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey
from cryptography.hazmat.primitives.serialization import (
    Encoding,
    PublicFormat,
    SSHCertificate,
    SSHCertificateType,
    load_ssh_public_identity,
)


@dataclasses.dataclass(frozen=True)
class Certificate:
    """Fields of a user certificate.

    public_key and ca are keys as in a .pub file, without comment. Times are unix seconds.
    """

    serial: int
    key_id: str
    principals: list[str]
    valid_after: int
    valid_until: int
    public_key: str
    ca: str


def parse_certificate(text: str) -> Certificate:
    """Return the fields of a user certificate of an ed25519 key that its authority has signed.

    Raises ValueError.
    """
    try:
        certificate = load_ssh_public_identity(" ".join(text.split()[:2]).encode("utf-8"))
        if not isinstance(certificate, SSHCertificate):
            raise ValueError("a key without a certificate")
        key, authority = certificate.public_key(), certificate.signature_key()
        if certificate.type is not SSHCertificateType.USER or not isinstance(key, Ed25519PublicKey):
            raise ValueError(f"type {text.split()[0]}")
        certificate.verify_cert_signature()
        principals = [name.decode("utf-8") for name in certificate.valid_principals]
    except (InvalidSignature, UnsupportedAlgorithm, ValueError) as problem:
        reason = str(problem) or "its signature is not its authority's"
        raise ValueError(f"not a user certificate of an ed25519 key: {reason}") from problem
    return Certificate(
        serial=certificate.serial,
        key_id=certificate.key_id.decode("utf-8", "replace"),
        principals=principals,
        valid_after=certificate.valid_after,
        valid_until=certificate.valid_before,
        public_key=key.public_bytes(Encoding.OpenSSH, PublicFormat.OpenSSH).decode("ascii"),
        ca=authority.public_bytes(Encoding.OpenSSH, PublicFormat.OpenSSH).decode("ascii"),
    )
