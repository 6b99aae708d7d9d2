# SPDX-License-Identifier: Apache-2.0
"""The mesh: how the nodes of a site log in to each other without passwords, without N^2 keys and without trust on first use (decision 6).

A node is a dict, made on the node itself by `describe_node`:
``{name, user, address, port, host, addresses, host_keys, identity, home, site, inventory, problems}``.
What reads the node does nothing else. How the nodes prove it is in mesh_logins.
"""

from __future__ import annotations

import base64
import binascii
import glob
import hashlib
import ipaddress
import json
import os
import pwd
import re
import shutil
import struct
import subprocess

DIRECTORY = ".trainyard/mesh"
KEY = "id_ed25519"
CERTIFICATE = "id_ed25519-cert.pub"
RECORD = "mesh.json"
# The files whose bytes a proof is bound to.
PROVEN_FILES = ("config", "known_hosts", KEY, CERTIFICATE)
HOST_KEYS = ("/etc/ssh/ssh_host_*_key.pub",)
# What a machine answers when it is asked who it is: its machine id and its host name.
WHO = ("/etc/machine-id", "/proc/sys/kernel/hostname")
HOST_KEY_TYPES = ("ssh-ed25519", "ecdsa-sha2-nistp256", "ecdsa-sha2-nistp384", "ecdsa-sha2-nistp521", "ssh-rsa")

# Names end up in ssh's configuration, in known_hosts and in file names: nothing that one of them would read as more than a name.
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._:-]{0,252}\Z")
_USER = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.@+\\-]{0,252}\$?\Z")
_PATH = re.compile(r"[A-Za-z0-9._/+=@-]{1,500}\Z")
_SPAN = re.compile(r"\+(?:\d+[smhdw])+\Z")
_UNITS = {"s": 1, "m": 60, "h": 3600, "d": 86400, "w": 604800}

CONFIG_TAIL = """\
Host *
  User {user}
  IdentityFile {directory}/id_ed25519
  CertificateFile {directory}/id_ed25519-cert.pub
  IdentitiesOnly yes
  IdentityAgent none
  UserKnownHostsFile {directory}/known_hosts
  # Nothing but the mesh's own file counts; this one does not exist, and only root could make it.
  GlobalKnownHostsFile /etc/ssh/no_known_hosts
  StrictHostKeyChecking yes
  UpdateHostKeys no
  CheckHostIP no
  PreferredAuthentications publickey
  BatchMode yes
  ConnectTimeout 5
  ServerAliveInterval 5
  ServerAliveCountMax 3
  RequestTTY no
  ForwardAgent no
  ForwardX11 no
  ClearAllForwardings yes
  ControlMaster no
  ControlPath none
  LogLevel ERROR
"""

TRUST = "ansible-playbook playbooks/trust.yml"


def sha256(text):
    """Return the hex sha256 of a text or of bytes."""
    return hashlib.sha256(text if isinstance(text, bytes) else text.encode("utf-8")).hexdigest()


def run_program(argv, timeout=20):
    """Run a program without terminal and input. Return (exit code, stdout, stderr); the code is None after timeout seconds."""
    environ = dict(os.environ, LC_ALL="C", LANGUAGE="C")
    try:
        done = subprocess.run(argv, stdin=subprocess.DEVNULL, capture_output=True, timeout=timeout, env=environ, check=False)
    except subprocess.TimeoutExpired:
        return None, "", ""
    except OSError as problem:
        return 127, "", f"{argv[0]}: {problem.strerror}"
    return done.returncode, done.stdout.decode("utf-8", "replace"), done.stderr.decode("utf-8", "replace")


def span_seconds(text):
    """Return the seconds of a span in OpenSSH's notation such as +7d or +1h30m. Raises ValueError."""
    if not _SPAN.match(str(text)):
        raise ValueError(f"want a span such as +7d or +12h, got {text!r}")
    return sum(int(number) * _UNITS[unit] for number, unit in re.findall(r"(\d+)([smhdw])", str(text)))


# --- certificates -----------------------------------------------------------------------------------------------------------------------


def _string(blob, at):
    (size,) = struct.unpack_from(">I", blob, at)
    if at + 4 + size > len(blob):
        raise ValueError("truncated")
    return blob[at + 4 : at + 4 + size], at + 4 + size


def parse_certificate(text):
    """Return {key_id, principals, valid_after, valid_until (unix seconds), public_key, ca} of a user certificate of an ed25519 key.

    The fields are read from the certificate itself (OpenSSH's PROTOCOL.certkeys): `ssh-keygen -L` prints times without their zone.
    public_key and ca are keys as in a .pub file, without comment. Raises ValueError.
    """
    try:
        kind, encoded = text.split()[:2]
        blob = base64.b64decode(encoded, validate=True)
        name, at = _string(blob, 0)
        if name != b"ssh-ed25519-cert-v01@openssh.com":
            raise ValueError(f"type {kind}")
        _nonce, at = _string(blob, at)
        public, at = _string(blob, at)
        at += 8 + 4  # serial number and type
        key_id, at = _string(blob, at)
        packed, at = _string(blob, at)
        after, until = struct.unpack_from(">QQ", blob, at)
        at += 16
        for _field in ("critical options", "extensions", "reserved"):
            _value, at = _string(blob, at)
        ca, at = _string(blob, at)
        principals, place = [], 0
        while place < len(packed):
            principal, place = _string(packed, place)
            principals.append(principal.decode("utf-8"))
    except (binascii.Error, struct.error, UnicodeDecodeError, ValueError) as problem:
        raise ValueError(f"not a user certificate of an ed25519 key: {problem}") from problem
    return {
        "key_id": key_id.decode("utf-8", "replace"),
        "principals": principals,
        "valid_after": after,
        "valid_until": until,
        "public_key": "ssh-ed25519 "
        + base64.b64encode(struct.pack(">I", 11) + b"ssh-ed25519" + struct.pack(">I", len(public)) + public).decode(),
        "ca": "{} {}".format(_string(ca, 0)[0].decode("ascii", "replace"), base64.b64encode(ca).decode()),
    }


def needs_renewal(valid_until, now, before=86400):
    """Return whether a certificate (unix seconds, or None where there is none) ends within `before` seconds."""
    return valid_until is None or valid_until - now < before


# --- what a node is ---------------------------------------------------------------------------------------------------------------------


def public_key(text):
    """Return 'type base64' of a public key's line without its comment, or None where it is none that a mesh uses."""
    fields = text.split()
    return " ".join(fields[:2]) if len(fields) >= 2 and fields[0] in HOST_KEY_TYPES else None


def identity(machine_id, hostname):
    """Return what tells one machine from another: its machine id and its host name, as one digest; '' without a machine id."""
    return sha256(f"{machine_id.strip()}\n{hostname.strip()}\n") if machine_id.strip() else ""


def own_identity():
    """Return the identity of this machine."""
    return identity(*((_read(path) or b"").decode("utf-8", "replace") for path in WHO))


def choose_address(wanted, reached, host, own):
    """Return the address at which the peers reach a node.

    wanted: trainyard_address, an IP address or a network of which the node holds one address (or ''); reached: the address at which the
    controller's connection arrived, as the node sees it (or ''): true behind a jump host or a forwarded port too; host: ansible_host.
    own: the node's addresses. Raises ValueError.
    """
    if not wanted:
        return reached.split("%")[0] or host
    network = ipaddress.ip_network(wanted, strict=False)
    if network.num_addresses == 1:
        return str(network.network_address)
    held = [item for item in own if ipaddress.ip_address(item) in network]
    if len(held) != 1:
        found = ", ".join(held or own) or "none"
        raise ValueError(f"trainyard_address {wanted} must hold exactly one address of this node, which has: {found}")
    return held[0]


def own_addresses(listing):
    """Return the addresses in the output of `ip -json address show`, without loopback and link-local ones."""
    found = [item["local"] for link in json.loads(listing or "[]") for item in link.get("addr_info", []) if item.get("local")]
    return [item for item in found if not (ipaddress.ip_address(item).is_loopback or ipaddress.ip_address(item).is_link_local)]


def is_address(text):
    """Return whether text is an IP address."""
    try:
        ipaddress.ip_address(text)
    except ValueError:
        return False
    return True


def shared_home(mountinfo, home, inode, network_filesystems):
    """Return an id that is equal on all nodes that see the same home directory on a network file system, '' for a local one.

    mountinfo: text of /proc/self/mountinfo. Server names are left out: nodes may mount one export from several addresses of its server.
    """
    best = None
    for line in mountinfo.splitlines():
        left, _dash, right = line.partition(" - ")
        fields, tail = left.split(), right.split()
        if len(fields) < 5 or len(tail) < 2:
            continue
        point = fields[4].replace("\\040", " ")
        if (home + "/").startswith(point.rstrip("/") + "/") and (best is None or len(point) >= len(best[0])):
            best = (point, fields[3], tail[0], tail[1])
    if best is None or best[2] not in network_filesystems:
        return ""
    point, root, kind, source = best
    return sha256("|".join((kind, source.rpartition(":")[2], root, os.path.relpath(home, point), str(inode))))[:16]


def describe_node(name, host, port, wanted, ssh_port, directory, host_keys, network_filesystems, run, environ):
    """Return this machine as a node of the mesh. run(argv) -> (code, stdout, stderr); environ: the environment of the controller's login.

    host, port, wanted: ansible_host, ansible_port and trainyard_address as the inventory has them; ssh_port: the peers' port, 0 to find it.
    """
    problems = []
    account = pwd.getpwuid(os.geteuid())
    home = os.path.realpath(account.pw_dir)
    # SSH_CONNECTION: client's address and port, then this machine's: what the controller's own login really reached.
    reached = (environ.get("SSH_CONNECTION") or "").split()
    reached = (reached[2], int(reached[3])) if len(reached) == 4 else ("", port or 22)
    own = own_addresses(run(["ip", "-json", "address", "show"])[1])
    try:
        address = choose_address(wanted, reached[0], host or name, own)
    except ValueError as problem:
        address = wanted
        problems.append(str(problem))
    if environ.get("SUDO_USER") and os.geteuid() == 0:
        text = "became root from %s, but the mesh belongs to the training user; take ansible_become out of the inventory"
        problems.append(text % environ["SUDO_USER"])
    for program in ("ssh", "ssh-keygen"):
        if not shutil.which(program):
            problems.append(f"has no {program}; run ansible-playbook playbooks/provision.yml -K, or install openssh-client there")
    keys = read_host_keys(host_keys)
    if not keys:
        problems.append("no host public key found in {}; say where sshd has them with ssh_trust_host_keys".format(", ".join(host_keys)))
    who = own_identity()
    if not who:
        problems.append("has no machine id, so it could not be told from another; run systemd-machine-id-setup there")
    mounts = (_read("/proc/self/mountinfo") or b"").decode("utf-8", "replace")
    return {
        "name": name,
        "user": account.pw_name,
        "address": address,
        "port": ssh_port or reached[1],
        "host": host or name,
        "addresses": sorted({item for item in (reached[0].split("%")[0],) if item}),
        "host_keys": keys,
        "identity": who,
        "home": shared_home(mounts, home, os.stat(home).st_ino, network_filesystems),
        "site": (read_record(home, directory) or {}).get("site") or "",
        "inventory": [name, host, port, wanted],
        "problems": problems,
    }


# --- what the controller compiles from the nodes ------------------------------------------------------------------------------------------


def inventory_digest(rows):
    """Return a digest of what an inventory says of a site's nodes, so that a changed address is seen without asking any node.

    rows: (name, ansible_host, ansible_port, trainyard_address) in the order of the ranks, '' or None where a variable is not set.
    """
    told = [[str(name), str(host or name), int(port or 22), str(address or "")] for name, host, port, address in rows]
    return sha256(json.dumps(told))


def home_owners(nodes):
    """Return {name: name of the node that writes its home}: the first node of those that share one."""
    first = {}
    return {node["name"]: first.setdefault(node["home"] or "node " + node["name"], node["name"]) for node in nodes}


def _twins(nodes, key, text):
    seen, found = {}, []
    for node in nodes:
        for value in key(node):
            if value in seen:
                found.append("{}: {}".format(node["name"], text % seen[value]))
                break
            seen.setdefault(value, node["name"])
    return found


def problems_of(nodes, site, consent=False):
    """Return every reason, in words with the node and the remedy, why these nodes cannot become one mesh."""
    found = ["{}: {}".format(node["name"], text) for node in nodes for text in node["problems"]]
    if not _NAME.match(site):
        found.append(f"trainyard_site: must be letters, digits, dots, dashes; got {site!r}")
    for node in nodes:
        if not _NAME.match(node["name"]):
            found.append("{!r}: an inventory name must be letters, digits, dots, dashes; rename the host".format(node["name"]))
        if not _USER.match(node["user"]):
            found.append("{}: the user name {!r} cannot stand in a certificate".format(node["name"], node["user"]))
        if is_address(node["address"]) and len(nodes) > 1:
            address = ipaddress.ip_address(node["address"])
            if address.is_loopback or address.is_unspecified:
                text = "%s: %s reaches the node itself only; set trainyard_address to the address at which its peers reach it"
                found.append(text % (node["name"], address))
        if node["site"] and node["site"] != site:
            text = "%s: belongs to the mesh of the site '%s'; take that back first, with that site's inventory: playbooks/untrust.yml"
            found.append(text % (node["name"], node["site"]))
    users = sorted({node["user"] for node in nodes})
    if len(users) > 1:
        told = ", ".join("{} {}".format(node["name"], node["user"]) for node in nodes)
        found.append(f"the nodes' users differ ({told}); a site has one training user: set ansible_user for the whole group")
    same = "is the same machine as %s, or a copy that kept its machine id and host name; list it once, or give it its own"
    found += _twins(nodes, lambda node: [node["identity"]] if node["identity"] else [], same)
    keys = "holds the host key of %s, so one could pass for the other; make new ones: rm /etc/ssh/ssh_host_*, ssh-keygen -A, restart sshd"
    found += _twins(nodes, lambda node: node["host_keys"], keys)
    found += _twins(
        nodes, lambda node: [(node["address"], node["port"])], "has the address and port of %s; set trainyard_address or ssh_trust_port"
    )
    if not consent:
        text = "shares its home directory with %s, so both would hold one private key; to allow that set ssh_trust_shared_home: true"
        found += _twins(nodes, lambda node: [node["home"]] if node["home"] else [], text)
    return found


def _hosted(name, port):
    return name if port == 22 else f"[{name}]:{port}"


def known_hosts(nodes):
    """Return the text of the mesh's known_hosts: every node's host keys under its name and under every address it may be called by."""
    lines = []
    for node in nodes:
        names = [node["name"]]  # ssh looks a HostKeyAlias up without the port
        for name in (node["name"], node["address"], node["host"], *node["addresses"]):
            if _hosted(name, node["port"]) not in names:
                names.append(_hosted(name, node["port"]))
        lines += ["{} {}".format(",".join(names), key) for key in sorted(node["host_keys"])]
    return "".join(line + "\n" for line in lines)


def client_config(nodes, site, directory=DIRECTORY):
    """Return the text of the mesh's ssh configuration. A node is called by its inventory name, or by its address (as mpirun does)."""
    place = directory if directory.startswith("/") else "~/" + directory
    addresses = [node["address"] for node in nodes]
    text = f"# The mesh of the site '{site}'. Written by {TRUST}\n"
    for node in nodes:
        alone = addresses.count(node["address"]) == 1 and node["address"] not in [other["name"] for other in nodes]
        text += "Host {}\n".format(" ".join((node["name"], node["address"])) if alone else node["name"])
        text += "  HostName {address}\n  Port {port}\n  HostKeyAlias {name}\n".format(**node)
    return text + CONFIG_TAIL.format(user=nodes[0]["user"], directory=place)


def marker(site):
    """Return the comment by which a site knows its own line in authorized_keys."""
    return "trainyard-ca " + site


def line_pattern(site):
    """Return a regular expression of a site's own line in authorized_keys; roles/ssh_trust/vars has the same for untrust.yml."""
    return rf"^cert-authority,\S.* trainyard-ca {re.escape(site)}$"


def authorized_line(nodes, site, ca, extra=()):
    """Return the one line in authorized_keys that lets the nodes in: certificates of this CA, for this user, from these addresses only."""
    sources = {node["address"] for node in nodes} | {node["host"] for node in nodes}
    for node in nodes:
        sources.update(node["addresses"])
    sources = sorted(str(ipaddress.ip_address(item)) for item in sources if is_address(item))
    sources += [str(ipaddress.ip_network(item, strict=False)) for item in extra]
    options = 'cert-authority,restrict,principals="{}",from="{}"'.format(nodes[0]["user"], ",".join(sources))
    return f"{options} {public_key(ca)} {marker(site)}"


def is_ready(told, states, now, before):
    """Return whether the compiled mesh lies on every node as it was proven, with certificates that last for `before` seconds more."""
    same = [all(state[key] == told[key] for key in ("digest", "inventory", "nodes")) for state in states]
    fresh = [state["proven"] and not needs_renewal(state["valid_until"], now, before) for state in states]
    return bool(told["digest"]) and all(same) and all(fresh)


def compile_mesh(nodes, site, ca, directory=DIRECTORY, extra=(), consent=False, validity="+7d", renew_before="+1d"):
    """Return (mesh, problems). ca: the public key of the site's certificate authority, '' before it was made (then line and digest are '').

    The mesh is {nodes, owners, identities, known_hosts, config, line, digest, inventory}.
    """
    problems = problems_of(nodes, site, consent)
    try:
        if span_seconds(renew_before) >= span_seconds(validity):
            problems.append(f"ssh_trust_renew_before ({renew_before}) must be shorter than ssh_trust_validity ({validity})")
    except ValueError as problem:
        problems.append(f"ssh_trust_validity, ssh_trust_renew_before: {problem}")
    for item in extra:
        try:
            ipaddress.ip_network(item, strict=False)
        except ValueError:
            problems.append(f"ssh_trust_from: must be IP addresses or networks such as 10.0.0.0/24; got {item!r}")
    if not _PATH.match(directory) or ".." in directory.split("/"):
        problems.append(f"directory: letters, digits and . _ / + = @ - only; got {directory!r}")
    if problems or not nodes:
        return None, problems or ["the group 'trainers' is empty"]
    texts = [known_hosts(nodes), client_config(nodes, site, directory), authorized_line(nodes, site, ca, extra) if ca else ""]
    return {
        "nodes": [node["name"] for node in nodes],
        "owners": home_owners(nodes),
        "identities": {node["name"]: node["identity"] for node in nodes},
        "known_hosts": texts[0],
        "config": texts[1],
        "line": texts[2],
        # Names, addresses, ports, users, host keys and the authority are all in these texts; so is the product's own way of writing them.
        "digest": sha256(json.dumps(texts)) if ca else "",
        "inventory": inventory_digest([node["inventory"] for node in nodes]),
    }, []


# --- what a node holds --------------------------------------------------------------------------------------------------------------------


def _read(path):
    try:
        with open(path, "rb") as handle:
            return handle.read()
    except OSError:
        return None


def read_host_keys(patterns=HOST_KEYS):
    """Return the sorted host public keys of this machine."""
    texts = [_read(path) or b"" for pattern in patterns for path in glob.glob(pattern)]
    return sorted({key for key in (public_key(text.decode("utf-8", "replace")) for text in texts) if key})


def read_record(home, directory=DIRECTORY):
    """Return the node's record of its mesh (mesh.json), or None."""
    try:
        record = json.loads(_read(os.path.join(home, directory, RECORD)) or b"null")
    except ValueError:
        return None
    return record if isinstance(record, dict) and record.get("version") == 1 else None


def certificate_end(place):
    """Return when the certificate in the mesh's directory ends (unix seconds), or None."""
    try:
        return parse_certificate((_read(os.path.join(place, CERTIFICATE)) or b"").decode("utf-8", "replace"))["valid_until"]
    except ValueError:
        return None


def key_exposed(place):
    """Return whether others than the owner may read the node's private key; ssh ignores such a key, and it must not be used again."""
    path = os.path.join(place, KEY)
    return os.path.exists(path) and bool(os.stat(path).st_mode & 0o077)


def key_to_replace(place, name):
    """Return whether a node's key must be made anew: others may have read it, or it was made on another node (a copied disk)."""
    comment = (_read(os.path.join(place, KEY + ".pub")) or b"").decode("utf-8", "replace").split()[2:]
    return key_exposed(place) or bool(comment and not comment[0].endswith("-" + name))


def read_state(home, site, directory=DIRECTORY):
    """Return {files, line, valid_until} of what lies in a home: digests of the mesh's files (None: missing) and of the site's line."""
    place = os.path.join(home, directory)
    files = {name: None if _read(os.path.join(place, name)) is None else sha256(_read(os.path.join(place, name))) for name in PROVEN_FILES}
    keys = (_read(os.path.join(home, ".ssh", "authorized_keys")) or b"").decode("utf-8", "replace").splitlines()
    lines = [line for line in keys if re.match(line_pattern(site), line)]
    return {"files": files, "line": sha256("\n".join(lines)) if lines else None, "valid_until": certificate_end(place)}


def mesh_state(home_dir, now, directory=DIRECTORY):
    """Return what a node knows of its mesh, without root and without changing anything.

    {present, site, digest, inventory, nodes, valid_until, proven, stale}: present is False where no proof was ever recorded; stale names
    what differs from what was proven (a file, 'authorized_keys', 'host key', 'key exposed', 'certificate expired', 'written on another
    machine'); proven (unix time) is None where anything is stale.
    """
    record = read_record(home_dir, directory)
    if record is None:
        return {
            "present": False,
            "site": None,
            "digest": None,
            "inventory": None,
            "nodes": [],
            "valid_until": None,
            "proven": None,
            "stale": [],
        }
    state = read_state(home_dir, str(record.get("site")), directory)
    proven_files = record.get("files") if isinstance(record.get("files"), dict) else {}
    stale = [name for name in PROVEN_FILES if state["files"][name] is None or state["files"][name] != proven_files.get(name)]
    if key_exposed(os.path.join(home_dir, directory)):
        stale.append("key exposed")
    if record.get("identity") and record["identity"] != own_identity():
        stale.append("written on another machine")
    if state["line"] is None or state["line"] != record.get("line"):
        stale.append("authorized_keys")
    listed = (_read(os.path.join(home_dir, directory, "known_hosts")) or b"").decode("utf-8", "replace")
    if any(" " + key + "\n" not in listed for key in read_host_keys(record.get("host_keys") or HOST_KEYS)):
        stale.append("host key")
    if state["valid_until"] is not None and state["valid_until"] <= now:
        stale.append("certificate expired")
    return {
        "present": True,
        "site": record.get("site"),
        "digest": record.get("digest"),
        "inventory": record.get("inventory"),
        "nodes": record.get("nodes") if isinstance(record.get("nodes"), list) else [],
        "valid_until": state["valid_until"],
        "proven": None if stale else record.get("proven"),
        "stale": stale,
    }


def new_record(home, told, now, directory=DIRECTORY, host_keys=HOST_KEYS, writer=""):
    """Return the record of a mesh that has just been proven. told: {site, nodes, digest, inventory} as compiled.

    host_keys: where sshd's are; writer: this node's identity, '' where its home is shared by several.
    """
    state = read_state(home, told["site"], directory)
    return {
        "version": 1,
        "site": told["site"],
        "nodes": list(told["nodes"]),
        "digest": told["digest"],
        "inventory": told["inventory"],
        "valid_until": state["valid_until"],
        "proven": int(now),
        "files": state["files"],
        "line": state["line"],
        "host_keys": list(host_keys),
        "identity": writer,
    }


def withdraw(home, directory=DIRECTORY):
    """Take the recorded proof of a node back, which is known not to hold any more. Return whether there was one."""
    record = read_record(home, directory)
    if not record or not record.get("proven"):
        return False
    write_record(os.path.join(home, directory), dict(record, proven=None))
    return True


def differs(old, new):
    """Return whether two records say different things, apart from when they were proven."""
    return old is None or dict(old, proven=None) != dict(new, proven=None)


def write_record(place, record):
    """Write mesh.json whole or not at all."""
    temporary = os.path.join(place, f".{RECORD}.{os.getpid()}")
    with os.fdopen(os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w", encoding="utf-8") as handle:
        handle.write(json.dumps(record, indent=2) + "\n")
    os.replace(temporary, os.path.join(place, RECORD))
