# SPDX-License-Identifier: Apache-2.0
"""First contact: the host keys of a site's nodes, scanned, compared with what is pinned, and pinned
only when somebody vouched for them.

`run` is a function such as mesh.run_program: run(argv) -> (code, stdout, stderr).
"""

from __future__ import annotations

import base64
import binascii
import concurrent.futures
import hashlib

TYPES = (
    "ssh-ed25519",
    "ecdsa-sha2-nistp256",
    "ecdsa-sha2-nistp384",
    "ecdsa-sha2-nistp521",
    "ssh-rsa",
)


def fingerprint(key):
    """Return the SHA256 fingerprint of 'type base64', as ssh-keygen prints it. Raises ValueError."""
    try:
        blob = base64.b64decode(key.split()[1], validate=True)
    except (IndexError, binascii.Error) as problem:
        raise ValueError(f"not a public key: {key!r}") from problem
    return "SHA256:" + base64.b64encode(hashlib.sha256(blob).digest()).decode().rstrip("=")


def hosted(host, port):
    """Return the name under which ssh looks a host up in known_hosts."""
    return host if port == 22 else f"[{host}]:{port}"


def keys_of(text):
    """Return {type: 'type base64'} of the lines of a known_hosts file or a scan, and whether a
    certificate authority is among them.
    """
    keys, authority = {}, False
    for line in text.splitlines():
        fields = line.split()
        if fields and fields[0].startswith("@"):
            authority = authority or fields[0] == "@cert-authority"
        elif len(fields) >= 3 and fields[1] in TYPES:
            keys.setdefault(fields[1], set()).add(" ".join(fields[1:3]))
    return keys, authority


def pinned_keys(run, files, host, port):
    """Return what the known_hosts files hold for a host (as `keys_of`) and the first that does;
    hashed names and patterns are found too.
    """
    text, source = "", ""
    for path in files:
        found = run(["ssh-keygen", "-F", hosted(host, port), "-f", path])[1]
        text += found
        source = source or (path if found else "")
    return (*keys_of(text), source)


def scan_keys(run, host, port, timeout):
    """Return {type: {'type base64'}} of a host as it answers now; empty where it does not."""
    return keys_of(
        run(
            [
                "ssh-keyscan",
                "-T",
                str(timeout),
                "-p",
                str(port),
                "-t",
                "ed25519,ecdsa,rsa",
                "--",
                host,
            ]
        )[1]
    )[0]


def judge(node, pinned, authority, scanned, source=""):
    """Return {status, keys, problem} of one node. node: {name, host, port, fingerprints}; source:
    the file that pins it.

    status: pinned (nothing to do), vouched (keys: to be recorded, their fingerprints were given),
    unknown (keys: nobody vouched for them yet) or refused (problem: why, with the remedy).
    """
    where = "{} ({})".format(node["name"], hosted(node["host"], node["port"]))
    wanted = {
        item if item.startswith("SHA256:") else "SHA256:" + item for item in node["fingerprints"]
    }
    for kind in sorted(set(pinned) & set(scanned)):
        if not pinned[kind] & scanned[kind]:
            text = (
                "%s: HOST KEY CHANGED: pinned is %s, it answers with %s. An impostor, or it was"
                " installed again: compare on its own console with ssh-keygen -lf"
                " /etc/ssh/ssh_host_ed25519_key.pub; if the new one is right, remove the old one"
                " with ssh-keygen -R '%s' -f %s and repeat"
            )
            old, new = (
                ", ".join(sorted(fingerprint(key) for key in keys[kind]))
                for keys in (pinned, scanned)
            )
            return {
                "status": "refused",
                "keys": [],
                "problem": text % (where, old, new, hosted(node["host"], node["port"]), source),
            }
    found = sorted(key for keys in (pinned or scanned).values() for key in keys)
    vouched = [key for key in found if fingerprint(key) in wanted]
    if wanted and found and not vouched:
        text = (
            "%s: its host key is not one of those vouched for (%s); %s is %s. Compare on its own"
            " console, then correct the inventory"
        )
        seen = ", ".join(fingerprint(key) for key in found)
        return {
            "status": "refused",
            "keys": [],
            "problem": (
                text % (where, ", ".join(sorted(wanted)), "pinned" if pinned else "answered", seen)
            ),
        }
    if pinned or authority:
        return {"status": "pinned", "keys": [], "problem": None}
    if not found:
        text = (
            "%s: no host key is pinned and it does not answer a scan. Behind a jump host log in"
            " once by hand with ssh, which shows the fingerprint and pins it; else check address,"
            " port and firewall"
        )
        return {"status": "refused", "keys": [], "problem": text % where}
    return {"status": "vouched" if wanted else "unknown", "keys": vouched or found, "problem": None}


def meet(nodes, files, run, timeout=5, parallel=16):
    """Judge all nodes, `parallel` scans at a time. Return {name: verdict of judge}."""

    def one(node):
        pinned, authority, source = pinned_keys(run, files, node["host"], node["port"])
        return judge(
            node, pinned, authority, scan_keys(run, node["host"], node["port"], timeout), source
        )

    with concurrent.futures.ThreadPoolExecutor(max_workers=max(1, parallel)) as pool:
        return {node["name"]: verdict for node, verdict in zip(nodes, pool.map(one, nodes))}


def with_lines(text, nodes, verdicts):
    """Return the text of a known_hosts file with the vouched keys of all nodes added; lines that
    are there stay as they are.
    """
    have = text.splitlines()
    vouched = [node for node in nodes if verdicts[node["name"]]["status"] == "vouched"]
    new = [
        hosted(node["host"], node["port"]) + " " + key
        for node in vouched
        for key in verdicts[node["name"]]["keys"]
    ]
    new = [line for line in new if line not in have]
    return (
        text
        + ("\n" if new and text and not text.endswith("\n") else "")
        + "".join(line + "\n" for line in new)
    )


def read_text(path):
    """Return the text of a file, '' where it does not exist."""
    try:
        with open(path, encoding="utf-8", errors="surrogateescape") as handle:
            return handle.read()
    except FileNotFoundError:
        return ""


def write_text(path, text):
    """Write a new file."""
    with open(path, "x", encoding="utf-8", errors="surrogateescape") as handle:
        handle.write(text)
