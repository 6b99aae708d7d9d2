# SPDX-License-Identifier: Apache-2.0
"""A site of pretended nodes for tests: a stand-in for ssh executes the remote command here, and
changes what a lying node's modules answer.
"""

from __future__ import annotations

import json
import os
import stat
import subprocess
import sys
from pathlib import Path

from core_support import ROOT

ANSIBLE = os.path.join(os.path.dirname(sys.executable), "ansible-playbook")
SSH = """#!%(python)s -IS
import json, os, re, subprocess, sys
argv, site, at = sys.argv[1:], %(site)r, 0
while at < len(argv) and argv[at].startswith("-"):
    at += 2 if argv[at] in ("-o", "-p", "-l", "-i", "-F", "-S", "-O", "-J") else 1
name, command = argv[at].rpartition("@")[2], " ".join(argv[at + 1 :])
with open(site + "/argv", "a") as handle:
    handle.write(json.dumps([name, *argv]) + "\\n")
lies = {}
if os.path.exists(site + "/lies.json"):
    lies = json.load(open(site + "/lies.json")).get(name, {})
sys.stderr.write(lies.get("banner", ""))
if lies.get("unreachable"):
    sys.exit(255)
if not command:
    sys.exit(0)
home = site + "/nodes/" + name
os.makedirs(home, exist_ok=True)
source = b"" if "sleep 0" not in command else sys.stdin.buffer.read()
found = re.search(rb"module_fqn='([\\w.]+)'", source)
module = found.group(1).decode().rpartition(".")[2] if found else ""
environment = {"HOME": home, "USER": "trainer", "PATH": site + "/bin_of_node:/usr/bin:/bin", "LANG": "C.UTF-8"}
done = subprocess.run(["/bin/sh", "-c", command], input=source, stdout=subprocess.PIPE, cwd=home, env=environment)
out = done.stdout
for lie in lies.get("answers", {}).get(module, []):
    answer, place = json.loads(out), None
    place = answer
    for word in lie[0][:-1]:
        place = place.setdefault(word, {}) if isinstance(place, dict) else place[word]
    place[lie[0][-1]] = lie[1]
    out = json.dumps(answer).encode()
sys.stdout.buffer.write(out)
sys.exit(done.returncode)
"""


class Site:
    """Nodes of a folder, the lies that they tell, and ansible-playbook against them."""

    def __init__(self, folder, nodes=("node1", "node2")):
        self.folder, self.nodes, self.runs = Path(folder), nodes, Path(folder, "runs")
        for name in ("bin", "bin_of_node", "runs"):
            (self.folder / name).mkdir()
        self.program("bin/ssh", SSH % {"python": sys.executable, "site": str(folder)})
        self.program("bin_of_node/systemctl", "#!/bin/sh\necho inactive\n")
        hosts = {name: {"ansible_host": name} for name in nodes}
        variables = {
            "ansible_connection": "ssh", "ansible_user": "trainer",
            "ansible_ssh_executable": str(self.folder / "bin/ssh"),
            "ansible_python_interpreter": sys.executable, "trainyard_runs_dir": str(self.runs),
            "trainyard_site": "test",
        }  # fmt: skip
        self.write("hosts.json", {"trainers": {"hosts": hosts, "vars": variables}})

    def program(self, name, text):
        """Write an executable file."""
        path = self.folder / name
        path.write_text(text, encoding="utf-8")
        path.chmod(path.stat().st_mode | stat.S_IXUSR)

    def write(self, name, data):
        """Write a file: text as it is, all else as JSON."""
        path = self.folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(data if isinstance(data, str) else json.dumps(data), encoding="utf-8")
        return str(path)

    def lie(self, **nodes):
        """Set what the nodes lie: {node: {answers: {module: [[path, value]]}, banner,
        unreachable}}.
        """
        self.write("lies.json", nodes)

    def play(self, play, *words, cwd=ROOT, **environment):
        """Run a play (its tasks as data) or a playbook by its path; return (exit code, bytes of
        stdout, bytes of stderr).
        """
        path = self.write("play.yml", play) if isinstance(play, list) else str(ROOT / play)
        kept = {key: value for key, value in os.environ.items() if not key.startswith("ANSIBLE_")}
        given = dict(
            kept, HOME=str(self.folder), ANSIBLE_LOCAL_TEMP=str(self.folder / "tmp"), **environment
        )
        argv = [ANSIBLE, "-i", str(self.folder / "hosts.json"), *words, path]
        done = subprocess.run(
            argv,
            cwd=str(cwd),
            env=given,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            timeout=240,
            check=False,
        )
        return done.returncode, done.stdout, done.stderr

    def logins(self):
        """Return the argv of every login."""
        return [
            json.loads(line)[1:]
            for line in (self.folder / "argv").read_text(encoding="utf-8").splitlines()
        ]
