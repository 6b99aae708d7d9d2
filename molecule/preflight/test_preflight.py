# SPDX-License-Identifier: Apache-2.0
"""Every fault of a start, done to real nodes: check.yml names it with node, cause and remedy within
its budget, and leaves nothing behind.
"""

from __future__ import annotations

import json
import re
import subprocess
import time

import pytest
from harness import JOBS, NODES, on, playbook, root, wait_for

# Seconds that a fault may take to be named before the training starts.
BUDGET = 60
JOB = ("-e", f"config={JOBS}/short.yml")
QUICK = (*JOB, "-e", "rehearse=false")
AGAIN = (*JOB, "-e", "preflight_rehearsal_hours=0", "-e", "preflight_rehearsal_seconds=40")
# An open connection would outlive a closed sshd and keep the environment that it was opened with.
FRESH = (
    "-e",
    (
        "ansible_ssh_args='-o ControlMaster=no -o ControlPath=none -o ServerAliveInterval=3 -o"
        " ServerAliveCountMax=3'"
    ),
)
HOME = "/home/trainer"
# Other scenarios' environments may lie on the nodes, too: these are PaddleDetection's.
SITE_PACKAGES = "$(dirname $(ls -d .trainyard/env/*/lib/python3.11/site-packages/ppdet | head -1))"
CODE = "$(dirname $(dirname $(ls -d .trainyard/code/*/configs/ppyoloe)))"
FAKETIME = "/usr/lib/x86_64-linux-gnu/faketime/libfaketime.so.1"


class Outcome:
    """What check.yml said: its exit code, its table after the recap, the seconds it took."""

    def __init__(self, *words):
        begun = time.monotonic()
        done = playbook("check", *words)
        self.seconds, self.code, self.stdout = (
            time.monotonic() - begun,
            done.returncode,
            done.stdout,
        )
        self.table = done.stdout.rpartition("PLAY RECAP")[2].strip().splitlines()

    def row(self, level, nodes, code, text):
        """Return the table's row of that finding, with its remedy below it, or None."""
        for line, after in zip(self.table, [*self.table[1:], ""]):
            if re.match(rf"{level} +{re.escape(nodes)} +{re.escape(code)} +.*(?:{text})", line):
                return line, after.strip() if after.lstrip().startswith("->") else ""
        return None


def traces(node):
    """Return what a check could leave on a node: units, runs, listeners, processes of a rehearsal."""
    units = on(
        node, "systemctl --user list-units --all --plain --no-legend 'trainyard-*' 'yardcheck-*'"
    )
    return (
        units,
        on(node, "ls .trainyard/runs 2>/dev/null || true"),
        on(node, "ss -Htln | awk '{print $4}' | sort"),
        on(node, "pgrep -f 'trainyard_reh[e]arsal' || true"),
    )


# The trees of earlier runs are put aside and come back. The runs that conform.yml takes for its
# evidence need theirs.
PUT_ASIDE = "! test -d .trainyard/code || mv .trainyard/code code_aside"
BRING_BACK = """test -d code_aside || exit 0
mkdir -p .trainyard/code
cd code_aside
for tree in *; do
  test ! -e ../.trainyard/code/$tree || continue
  test ! -d $tree || chmod u+w $tree
  mv $tree ../.trainyard/code/
  test ! -d ../.trainyard/code/$tree || chmod u-w ../.trainyard/code/$tree
done
cd ..
chmod -R u+w code_aside
rm -r code_aside"""


@pytest.fixture(scope="module", autouse=True)
def ready():
    """Code, data and mesh are there, and nothing is in the way."""
    for node in NODES:  # A code tree of an earlier run would be mistaken for the job's.
        on(node, BRING_BACK)  # if the tests ended early the last time
        on(node, PUT_ASIDE)
    try:
        yield from checked()
    finally:
        for node in NODES:
            on(node, BRING_BACK)


def checked():
    """Copy the job's inputs, check it, and yield. No check leaves a trace."""
    assert playbook("sync", *JOB).returncode == 0
    before = {node: traces(node) for node in NODES}
    done = Outcome(*JOB)
    assert done.code == 0 and done.table[-1] == "READY: nothing keeps this job from starting", (
        done.stdout
    )
    print(f"a check without a fault, with its rehearsal: {done.seconds:.1f} seconds")
    assert {node: traces(node) for node in NODES} == before
    yield


def hosts(node, address):
    """Give a node another address for its own name; /etc/hosts is a mount and can only be written
    over.
    """
    return "cp /etc/hosts /root/hosts && sed 's/^{}/{}/' /root/hosts > /etc/hosts".format(
        NODES[node].replace(".", "[.]"),
        address,
    )


def drop(rule):
    """Return the two lines that put a rule of the firewall in and take it out again."""
    return f"iptables -I INPUT {rule} -j DROP", f"iptables -D INPUT {rule} -j DROP"


# A training that has just ended leaves the port in TIME-WAIT, which the listener must not mind.
LISTENER = """python3 -c 'import socket, time; s = socket.socket(); s.setsockopt(1, 2, 1); s.bind(("", 17000)); s.listen(1); time.sleep(300)'"""
LOWER = "/etc/systemd/system/user@1000.service.d/90-low.conf"
UNGREET = "rm /tmp/rc; if test -e /tmp/bashrc; then mv /tmp/bashrc .bashrc; else rm .bashrc; fi"


def greet(words):
    """Return the line that lets each login print some words, also one without a terminal."""
    keep = "cp -p .bashrc /tmp/bashrc 2> /dev/null"
    return f"{keep}; {{ echo \"echo '{words}'\"; cat .bashrc 2> /dev/null; }} > /tmp/rc; cp /tmp/rc .bashrc"


# name: (node, as root?, what is done, how it is undone, words for check.yml, (level, nodes, check,
# text))
FAULTS = {
    "127.0.1.1 in /etc/hosts": (
        "node2", True, hosts("node2", "127.0.1.1"), "cat /root/hosts > /etc/hosts", QUICK, ("WARN", "node2", "name.resolves_wrong", r"127\.0\.1\.1")),
    "equal host names": (
        "node2", True, "hostname > /root/name; hostname node1", "hostname $(cat /root/name)", QUICK, ("WARN", "node1, node2", "name.duplicate", "node1")),
    "start port of rank 0 taken": (
        "node1", False, f"setsid {LISTENER} > /dev/null 2>&1 & echo $! > /tmp/listener", "kill $(cat /tmp/listener)", QUICK,
        ("STOP", "node1", "port.taken", "17000: taken by pid [0-9]+ of trainer: python3"),
    ),
    "DROP on the planned port": (
        "node1", True, *drop("-p tcp --dport 17000"), QUICK,
        ("STOP", "node1, node2", "network.port_filtered", "node2 cannot reach node1 .*17000: no answer, while ping works")),
    "DROP on the ephemeral range": (
        "node2", True, *drop("-p tcp --syn --dport 32768:60999"), QUICK,
        ("STOP", "node2, node1", "network.port_filtered", "node1 cannot reach node2 .*ephemeral.*no answer, while ping works and SSH")),
    "another Paddle on one node": (
        "node2", False, f"cd {SITE_PACKAGES} && mv paddlepaddle-2.6.2.dist-info paddlepaddle-2.6.1.dist-info",
        f"cd {SITE_PACKAGES} && mv paddlepaddle-2.6.1.dist-info paddlepaddle-2.6.2.dist-info", QUICK,
        ("STOP", "node1, node2|node2", "environment.packages_differ", r"paddlepaddle.*2\.6\.1 on node2"),
    ),
    "one changed byte in the code": (
        "node2", False, f"cd {CODE}/tools && cp -p train.py /tmp/train.py && chmod u+w . train.py && sed -i '1s/.$/X/' train.py",
        f"cd {CODE}/tools && cp -p /tmp/train.py train.py && chmod u-w train.py .", QUICK, ("STOP", "node2", "ready.tree_differs", "tools/train.py")),
    "an extra file in the code": (
        "node2", False, f"cd {CODE}/tools && chmod u+w . && touch extra.py", f"cd {CODE}/tools && rm extra.py && chmod u-w .", QUICK,
        ("STOP", "node2", "ready.tree_differs", "tools/extra.py: extra file")),
    "a shared memory too small": (
        "node2", True, "mount -o remount,size=64m /dev/shm", "mount -o remount,size=1g /dev/shm", QUICK, ("STOP", "node2", "shm.full", "")),
    "a disk nearly full": (
        "node2", True, f"mount -t tmpfs -o size=100m,uid=1000,gid=1000,mode=0700 none {HOME}/.trainyard/runs", f"umount {HOME}/.trainyard/runs", QUICK,
        ("STOP", "node2", "disk.full", "runs")),
    "a clock one hour off": (
        "node2", True, f"cp /etc/environment /root/environment; printf 'LD_PRELOAD={FAKETIME}\\nFAKETIME=-1h\\nDONT_FAKE_MONOTONIC=1\\n' >> /etc/environment",
        "cat /root/environment > /etc/environment", (*QUICK, *FRESH), ("STOP", "node2", "clock.off", "60 min behind")),
    "memlock too small in units": (
        "node2", True,
        f"mkdir -p $(dirname {LOWER}) && printf '[Service]\\nLimitMEMLOCK=65536\\n' > {LOWER} && systemctl daemon-reload && systemctl restart user@1000",
        f"rm {LOWER} && systemctl daemon-reload && systemctl restart user@1000", (*QUICK, *FRESH, "-e", "preflight_memlock=1048576"),
        ("STOP", "node2", "limits.locked_memory", "65536|64 KiB")),
    "SSH refused by one node": (
        "node2", True, "systemctl stop ssh", "systemctl start ssh", (*QUICK, *FRESH), ("STOP", "node2", "reach.refused", "Connection refused")),
    "a wrong interface by the site": (
        "node2", False, "true", "true", (*QUICK, "-e", '{"trainyard_env": {"GLOO_SOCKET_IFNAME": "eth9"}}'),
        ("STOP", "node2", "interface.unknown", "eth9 names no interface")),
    "a process that an old run has left": (
        "node2", False, "TRAINYARD_ATTEMPT=20261101-000000-ghost-beef/1 setsid sleep 300 > /dev/null 2>&1 & echo $! > /tmp/ghost",
        "kill $(cat /tmp/ghost)", QUICK, ("STOP", "node2", "orphans.processes_left", "20261101-000000-ghost-beef left.*pid")),
    "a login shell that prints": (
        "node1", False, greet("welcome to node1"), UNGREET, QUICK, ("STOP", "node1", "reach.login_prints", "welcome to node1")),
    "a login shell that prints a brace": (
        "node2", False, greet("{ welcome }"), UNGREET, QUICK, ("STOP", "node2", "reach.login_prints", "{ welcome }")),
}  # fmt: skip


@pytest.fixture
def clock():
    """What the fault of the clock needs on its node; the package brings nothing else."""
    root(
        "node2",
        f"test -e {FAKETIME} || {{ apt-get -q update && apt-get -qy install --no-install-recommends"
        " libfaketime; } > /dev/null",
    )


# Done at once, each must have its row in one report: none hides another. The others are done one by
# one.
TOGETHER = {
    "of a node": (
        "start port of rank 0 taken", "another Paddle on one node", "one changed byte in the code", "an extra file in the code", "a shared memory too small",
        "a disk nearly full", "a process that an old run has left", "127.0.1.1 in /etc/hosts",
        "a login shell that prints"),
    # The clock last: its environment must be gone when undoing the other restarts the user's
    # systemd.
    "of its sessions": ("memlock too small in units", "a clock one hour off"),
    "of the network": ("DROP on the planned port", "DROP on the ephemeral range"),
}  # fmt: skip
TOGETHER.update(
    {name: (name,) for name in FAULTS if not any(name in names for names in TOGETHER.values())}
)


@pytest.mark.parametrize("names", TOGETHER.values(), ids=TOGETHER)
def test_a_fault_is_named_in_time_and_nothing_is_left(names, clock):
    faults = [FAULTS[name] for name in names]
    before = {other: traces(other) for other in NODES}
    done_to = []
    try:
        for node, by_root, does, undoes, _words, _expected in faults:
            done_to.append((root if by_root else on, node, undoes))
            done_to[-1][0](node, does)
        done = Outcome(*faults[0][4])
    finally:
        for run, node, undoes in reversed(done_to):
            run(node, undoes)
    for node in NODES:
        wait_for(
            lambda node=node: (
                on(node, "systemctl --user is-active basic.target", check=False) == "active"
            ),
            20,
        )
    print("{}: {:.1f} seconds".format(", ".join(names), done.seconds))
    for _node, _by_root, _does, _undoes, _words, (level, nodes, check, text) in faults:
        row = next(
            filter(None, (done.row(level, one, check, text) for one in nodes.split("|"))), None
        )
        assert row, done.stdout
        assert row[1], f"no remedy is named: {row[0]}"
    assert (done.code != 0) == ("STOP" in {expected[0] for *_rest, expected in faults})
    assert done.seconds < BUDGET
    wait_for(lambda: {other: traces(other) for other in NODES} == before, 10)


def test_a_port_that_is_taken_comes_with_one_that_is_free_everywhere():
    for node, port in (("node1", 17000), ("node2", 17001)):
        on(
            node,
            "setsid {} > /dev/null 2>&1 & echo $! > /tmp/listener".format(
                LISTENER.replace("17000", str(port))
            ),
        )
    try:
        done = Outcome(*QUICK)
        assert "start_port=17002" in done.row("STOP", "node1", "port.taken", "17000")[1]
        assert Outcome(*QUICK, "-e", "start_port=17002").code == 0
    finally:
        for node in NODES:
            on(node, "kill $(cat /tmp/listener)")


def test_a_node_that_is_down_does_not_hide_what_is_wrong_with_the_other():
    root("node1", "mount -o remount,size=64m /dev/shm")
    subprocess.run(
        ["docker", "stop", "-t", "5", "trainyard-molecule-node2"],
        check=True,
        stdout=subprocess.DEVNULL,
    )
    try:
        done = Outcome(*QUICK, *FRESH)
    finally:
        subprocess.run(
            ["docker", "start", "trainyard-molecule-node2"], check=True, stdout=subprocess.DEVNULL
        )
        root("node1", "mount -o remount,size=1g /dev/shm")
        wait_for(
            lambda: on("node2", "systemctl --user is-active basic.target", check=False) == "active",
            60,
        )
    print(f"one node down: {done.seconds:.1f} seconds")
    assert (
        done.code != 0
        and any(
            done.row("STOP", "node2", code, "did not answer")
            for code in ("reach.no_route", "reach.timed_out")
        )
        and done.row("STOP", "node1", "shm.full", "")
    )
    assert done.seconds < BUDGET


def test_one_machine_under_two_names_is_seen(tmp_path):
    twin = "198.51.100.109"
    root("node1", f"ip address add {twin}/24 dev eth0")
    inventory = tmp_path / "twin.yml"
    host = {
        "ansible_host": twin,
        "ansible_ssh_extra_args": "-o HostKeyAlias={}".format(NODES["node1"]),
    }
    inventory.write_text(json.dumps({"trainers": {"hosts": {"node2": host}}}))
    try:
        done = Outcome("-i", str(inventory), *QUICK)
    finally:
        root("node1", f"ip address del {twin}/24 dev eth0")
    print(f"one machine twice: {done.seconds:.1f} seconds")
    assert done.code != 0 and done.row("STOP", "node1, node2", "machine.same", "one machine"), (
        done.stdout
    )


def test_unequal_numbers_of_devices_are_refused_before_a_node_is_asked(tmp_path):
    inventory = tmp_path / "more.yml"
    inventory.write_text(json.dumps({"trainers": {"hosts": {"node2": {"trainyard_devices": 2}}}}))
    done = Outcome("-i", str(inventory), *QUICK)
    assert (
        done.code != 0
        and "need equal numbers of devices: node1 1, node2 2" in done.stdout
        and "[node1]" not in done.stdout
    )


def test_data_of_the_same_size_and_time_is_seen_in_full_mode():
    """As after silent damage on the disk: neither size nor any time tells of it, and what was
    remembered of the file says that it is unchanged.
    """
    script = (
        "import glob, json, os; tree ="
        " glob.glob('.trainyard/data/*[0-9a-f]/annotations')[0].rpartition('/')[0]; scan ="
        " json.load(open(tree + '.scan.json'));name = sorted(scan)[0]; path = os.path.join(tree,"
        " name); was = os.stat(path); os.chmod(path, 0o600);raw = bytearray(open(path,"
        " 'rb').read()); raw[-1] ^= 1; open(path, 'r+b').write(raw); os.chmod(path, was.st_mode &"
        " 0o777);os.utime(path, ns=(was.st_atime_ns, was.st_mtime_ns)); scan[name][3] ="
        " os.stat(path).st_ctime_ns;json.dump(scan, open(tree + '.scan.json', 'w')); print(name)"
    )
    listed = "find .trainyard/data -path '*/annotations/*' -type f -exec sha256sum {} + | sort"
    whole = on("node2", listed)
    name = on("node2", f'python3 -c "{script}"')
    assert on("node2", listed) != whole
    try:
        assert Outcome(*QUICK).code == 0  # what is remembered is believed
        done = Outcome(*QUICK, "-e", "verify=full")
        print(f"every byte read: {done.seconds:.1f} seconds")
        assert done.code != 0 and name in done.row("STOP", "node2", "ready.tree_differs", "")[0], (
            done.stdout
        )
    finally:
        assert playbook("sync", *JOB, "-e", "verify=full").returncode == 0
    assert on("node2", listed) == whole


def test_another_order_of_the_nodes_on_one_of_them_is_seen_by_the_rehearsal():
    launch = f"cd {SITE_PACKAGES}/paddle/distributed/launch"
    turned = r"""import sys\nsys.argv = ["--ips=" + ",".join(reversed(w[6:].split(","))) if w.startswith("--ips=") else w for w in sys.argv]\n"""
    on(
        "node2",
        f"{launch} && cp -p main.py /tmp/main.py && touch -r main.py /tmp/time && printf '{turned}'"
        " > /tmp/turned && cat /tmp/turned /tmp/main.py > main.py",
    )
    on(
        "node2", "touch .trainyard/env/*/.trainyard.json"
    )  # what has changed since the installation would be named before any rehearsal
    before = {node: traces(node) for node in NODES}
    try:
        done = Outcome(*AGAIN)
    finally:
        on("node2", f"{launch} && cp -p /tmp/main.py main.py")
        on("node2", "touch .trainyard/env/*/.trainyard.json")
    print(f"another order on one node: {done.seconds:.1f} seconds")
    assert done.code != 0 and done.row("STOP", "node2", "rehearsal.rank_unlike_plan", "rank 0"), (
        done.stdout
    )
    assert {node: traces(node) for node in NODES} == before


def test_a_check_of_a_check_is_refused_with_the_reason():
    done = playbook("check", *JOB, "--check")
    assert (
        done.returncode != 0
        and "command line --check: leaves check.yml nothing to prove" in done.stdout
    )
