# SPDX-License-Identifier: Apache-2.0
"""Row of the benchmarks about Python environments: PaddleDetection's, to all nodes, from nothing.

Ours is `playbooks/provision.yml` on nodes that lack the environment alone. The peers are pip and uv
on each node, begun by pdsh at once, with an index on the nodes' own bridge that has the same
wheels, and every sha256 in the list. All of them import Paddle at the end.
"""

from __future__ import annotations

import contextlib
import ensurepip
import functools
import http.server
import json
import threading
from pathlib import Path

import rig as rigs
import transfers
import uv

SUITE = "paddledetection"
WHEELS = Path.home() / ".cache/trainyard/wheels"
PLACE = "bench-environment"
PINS = "pins.txt"


def wheelhouse(rig):
    """Return the controller's wheelhouse of the environment that the nodes have."""
    place = rig.ssh(0, "ls -d .trainyard/env/*/lib/python3*/site-packages/pycocotools")
    return WHEELS / place.split("/")[2]


def write_pins(wheels, folder):
    """Write the list of what is installed, each with the sha256 of its wheel."""
    manifest = json.loads((wheels / "manifest.json").read_text())
    lines = [
        f"{wheel['name']}=={wheel['version']} --hash=sha256:{wheel['sha256']}\n"
        for name, wheel in manifest["wheels"].items()
        if "/" not in name
    ]
    folder.mkdir(exist_ok=True)
    (folder / PINS).write_text("".join(sorted(lines)))


class Handler(http.server.SimpleHTTPRequestHandler):
    """Files of a folder, without a line for each request."""

    def log_message(self, *_words):
        pass


@contextlib.contextmanager
def index(wheels, address):
    """Serve the wheels on the bridge for a while; yield the address."""
    handler = functools.partial(Handler, directory=wheels)
    server = http.server.ThreadingHTTPServer((address, 0), handler)
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield f"http://{address}:{server.server_port}/"
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


class Ours:
    """The product: the wheels go from node to node, and each node installs them."""

    name = "Trainyard"

    def __init__(self, rig):
        self.rig = rig

    def clean(self):
        self.rig.pdsh(
            self.rig.count,
            "chmod -R u+w .trainyard/wheels 2>/dev/null; rm -rf .trainyard/env .trainyard/wheels",
        )

    def install(self):
        self.rig.play("playbooks/provision.yml", "-e", f"suite={SUITE}")


class Peer:
    """An installer that each node runs with an index on the bridge."""

    def __init__(self, rig, address):
        self.rig, self.address = rig, address
        self.folder = f"{PLACE}/env-{self.name}"
        self.python = f"{self.folder}/bin/python"

    def clean(self):
        self.rig.pdsh(self.rig.count, f"rm -rf {self.folder} .cache/pip .cache/uv")

    def install(self):
        make = f"{PLACE}/uv venv --quiet --no-project --python /usr/bin/python3"
        line = f"{make} {self.folder} && {self.words()} --requirement {PLACE}/{PINS}"
        proof = "-c 'import paddle'"
        self.rig.pdsh(self.rig.count, f"{line} && {self.python} {proof}")

    def links(self):
        host = self.address.split("//")[1].split(":")[0]
        return f"--no-index --find-links {self.address} --trusted-host {host} --require-hashes"


class Pip(Peer):
    name = "pip"

    def words(self):
        program = f"python3 {PLACE}/pip.whl/pip --python {self.python}"
        return f"{program} install --quiet --no-deps --no-cache-dir {self.links()}"


class Uv(Peer):
    name = "uv"

    def words(self):
        program = f"UV_LINK_MODE=hardlink {PLACE}/uv pip install --quiet --python {self.python}"
        links = self.links().replace("--trusted-host", "--allow-insecure-host")
        return f"{program} --no-deps --compile-bytecode {links}"


def bring_installers(rig, wheels):
    """Bring pip, uv and the list to every node. That is not measured."""
    folder = rig.folder / "installers"
    write_pins(wheels, folder)
    bundled = next((Path(ensurepip.__file__).parent / "_bundled").glob("pip-*.whl"))
    shell = " ".join(["ssh", *rig.ssh_options()])
    names = {bundled: "pip.whl", uv.find_uv_bin(): "uv", folder / PINS: PINS}
    rig.pdsh(rig.count, f"mkdir -p {PLACE}")
    for path, name in names.items():
        for address in rig.addresses:
            target = f"trainer@{address}:{PLACE}/{name}"
            rigs.run(["rsync", "-a", "-e", shell, str(path), target])


def env(rig, rounds):
    """PaddleDetection's environment on all nodes, over links of transfers.RATE."""
    rig.play("playbooks/provision.yml", "-e", f"suite={SUITE}")
    wheels = wheelhouse(rig)
    bring_installers(rig, wheels)
    rows = {}
    gateway = rig.addresses[0].rpartition(".")[0] + ".1"
    with index(wheels, gateway) as address, transfers.limited(rig) as rate:
        for _round in range(rounds):
            for way in (Ours(rig), Uv(rig, address), Pip(rig, address)):
                way.clean()
                figures = rows.setdefault(way.name, {"seconds": [], "processor": [], "sent": []})
                before = rig.sent()
                wall, used, _result = rigs.timed(way.install)
                figures["seconds"].append(wall)
                figures["processor"].append(used)
                figures["sent"].append(rig.sent() - before)
                print(f"  {way.name}: {wall:.1f} s", flush=True)
                if way.name != Ours.name:
                    way.clean()
    return {"rate": rate, "nodes": {rig.count: rows}}


ROWS = {"env": env}
