# SPDX-License-Identifier: Apache-2.0
"""The machines: identity, names, clocks, space, and limits inside a unit. The tests read this
machine, or files as kernels write them.
"""

from __future__ import annotations

import json
import os
import stat
import subprocess
import sys
from pathlib import Path

import pytest
import yaml
from ansible_collections.trainyard.cluster.plugins.module_utils.attempts import (
    attempt_dir,
)
from ansible_collections.trainyard.cluster.plugins.module_utils.base import unit_limits
from ansible_collections.trainyard.cluster.plugins.module_utils.network import (
    check_lock,
)
from ansible_collections.trainyard.cluster.plugins.module_utils.preflight import (
    capacity,
    machine,
    openssh,
    rsync,
)
from ansible_collections.trainyard.cluster.plugins.plugin_utils.gate import answer_gate
from core_support import program, put

ROOT = Path(__file__).resolve().parents[3]
GIB = 2**30


def shown(**changes):
    """Return what `look` says of an ordinary node (an embedded one, but for the numbers)."""
    place = {
        "path": "/home/trainer",
        "free": 50 * GIB,
        "size": 90 * GIB,
        "inodes_free": 10**6,
        "inodes": 10**7,
        "read_only": False,
        "writable": True,
    }
    inside = {
        "memlock": [-1, -1],
        "nofile": [1024, 20000],
        "tasks": 9000,
        "memory": None,
        "cores": None,
        "confined": "",
        "umask": 63,
    }
    found = {
        "identity": {"kernel": "boot-a pid:[1] net:[1]", "macs": ["02:42:c6:33:64:79"], "machine_id": "a"},
        "kernel": "6.1.0", "system": "Debian 12", "places": [place], "shm": dict(place, path="/dev/shm", free=GIB, size=GIB), "memory": 30 * GIB,
        "unit": inside, "rdma": [], "selinux": False, "locks": [], "sshd": {"version": "OpenSSH_9.8p1", "fixed": True},
        "rsync": {"version": "3.4.1", "fixed": True},
    }  # fmt: skip
    for key, value in changes.items():
        found[key] = (
            dict(found[key], **value) if isinstance(value, dict) and "error" not in value else value
        )
    return found


def fact(number, **changes):
    """Return a node's facts; number tells it from others. `machines` changes what `look` says."""
    address = "10.0.0.%d" % number
    own = {
        "identity": {
            "kernel": "boot-%d pid:[1] net:[1]" % number,
            "macs": ["02:00:00:00:00:%02d" % number],
            "machine_id": str(number),
        }
    }
    found = {
        "hostname": "n%d" % number, "user": "trainer", "cores": 64, "missing": [], "resolves_to": [address],
        "machines": shown(**dict(own, **changes.pop("machines", {}))),
        "addresses": [{"interface": "lo", "address": "127.0.0.1"}, {"interface": "eth0", "address": address}],
        "time": 1000.2, "ended": 1000.8, "sent": 1000.0, "received": 1001.0,
    }  # fmt: skip
    return dict(found, **changes)


def allowed():
    """Return what a site that says nothing asks of its nodes: the role's defaults."""
    found = yaml.safe_load((ROOT / "roles/preflight/defaults/main.yml").read_text())
    return {key[10:]: value for key, value in found.items()}


def judged(*facts, accelerator="cpu", devices=1, **more):
    """Return [(check, level, nodes, text)] of nodes n1, n2, ... with these facts."""
    named = {"n%d" % (index + 1): each for index, each in enumerate(facts)}
    nodes = [
        {
            "name": name,
            "host": name,
            "address": None,
            "accelerator": accelerator,
            "devices": [str(n) for n in range(devices)],
        }
        for name in named
    ]
    found = machine.judge(nodes, named, dict(allowed(), **more))
    return [
        (item["check"], item["level"], item["nodes"], item["text"] + " -> " + item["remedy"])
        for item in found
    ]


def only(found):
    """Return the one finding."""
    assert len(found) == 1, found
    return found[0]


@pytest.mark.parametrize(
    "sshd, passes",
    [
        (openssh.look(), True),
        ({"version": "9.8", "fixed": None}, True),
        ({"version": "9.8", "fixed": "x"}, False),
    ],
)
def test_what_a_node_says_of_its_server_passes_the_gate_as_it_is_described(sshd, passes):
    with pytest.raises(answer_gate.InvalidAnswer) as error:  # the rest of the answer is left out
        answer_gate.validate(
            "node_info", {"changed": False, "facts": {"machines": {"sshd": sshd}}}, {}
        )
    named = [field for field, _text in error.value.problems if "sshd" in field]
    assert (named == []) is passes


@pytest.mark.parametrize("fixed, found", [(True, []), (False, ["n1"]), (None, ["n1"])])
def test_a_server_with_a_known_hole_is_named_on_its_node(fixed, found):
    said = judged(fact(1, machines={"sshd": {"version": "OpenSSH_9.7p1", "fixed": fixed}}), fact(2))
    assert [(check, level, nodes) for check, level, nodes, _text in said] == [
        ("sshd", "warn", [name]) for name in found
    ]
    assert judged(fact(1, machines={"sshd": None})) == []


@pytest.mark.parametrize(
    "own, words",
    [({"version": "3.4.1", "fixed": True}, None), (None, None), ({"version": "3.2.7", "fixed": False}, "is not fixed for all known holes (CVE-2024-12084"),
     ({"version": "", "fixed": None}, "it is unknown whether rsync (of an unknown version)")],
)  # fmt: skip
def test_an_rsync_that_a_peer_can_take_over_is_named_on_its_node(own, words):
    said = judged(
        fact(1, machines={"rsync": own}) if own else fact(1, machines={"rsync": None}), fact(2)
    )
    assert [(check, level, nodes) for check, level, nodes, _text in said] == (
        [("rsync", "warn", ["n1"])] if words else []
    )
    assert words is None or words in said[0][3]


def test_the_rsync_of_a_node_that_does_not_tell_is_unknown():
    older = fact(1)
    del older["machines"]["rsync"]
    check, level, nodes, text = only(judged(older, fact(2)))
    assert (check, level, nodes) == ("rsync", "warn", ["n1"]) and "unknown" in text


@pytest.mark.parametrize(
    "own, passes",
    [
        (rsync.look(), True),
        (None, True),
        ("DROP", True),
        ({"version": "3.2.7\x1b", "fixed": True}, False),
        ({"version": "3.2.7", "fixed": 1}, False),
    ],
)
def test_what_a_node_says_of_its_rsync_passes_the_gate_as_it_is_described(own, passes):
    told = dict(shown(), identity={"kernel": "b", "macs": [], "machine_id": "a" * 16}, rsync=own)
    if own == "DROP":
        del told["rsync"]
    with pytest.raises(answer_gate.InvalidAnswer) as error:  # the rest of the answer is left out
        answer_gate.validate("node_info", {"changed": False, "facts": {"machines": told}}, {})
    assert (
        [field for field, _text in error.value.problems if field.startswith("facts.machines")] == []
    ) is passes


def test_ordinary_nodes_are_passed_over_in_silence():
    assert judged(fact(1), fact(2), fact(3)) == []
    assert judged({"hostname": "h"}, {"hostname": "h"}) == []  # an older probe's facts


def test_one_machine_under_two_names_and_clones_that_are_two():
    same = fact(1)["machines"]["identity"]
    check, level, nodes, text = only(
        judged(fact(1), dict(fact(2), hostname="n1", machines=shown(identity=same)))
    )
    assert (
        (check, level, nodes) == ("machine", "stop", ["n1", "n2"])
        and "one machine" in text
        and "inventory" in text
    )
    assert (
        len(
            judged(
                fact(1),
                fact(
                    2,
                    hostname="n1",
                    resolves_to=["10.0.0.1"],
                    addresses=fact(1)["addresses"],
                    machines={"identity": same},
                ),
            )
        )
        == 1
    )
    # containers of one host: one boot id, other namespaces; clones of a snapshot: even that is
    # equal, but not the interfaces
    for other in (
        {"kernel": "boot-1 pid:[2] net:[2]", "macs": ["02:00:00:00:00:02"]},
        {"macs": ["02:00:00:00:00:02"]},
    ):
        check, level, _nodes, text = only(
            judged(fact(1), fact(2, machines={"identity": dict(same, **other)}))
        )
        assert (check, level) == ("machine", "warn") and "machine-id" in text
    assert (
        judged(
            fact(1),
            fact(2, machines={"identity": dict(same, kernel="b", macs=["c"], machine_id="")}),
        )
        == []
    )


@pytest.mark.parametrize(
    "launcher, level", [("paddle", "warn"), ("msrun", "stop"), ("mpirun", "stop")]
)
def test_equal_host_names_stop_what_counts_ranks_by_them(launcher, level):
    check, found, nodes, text = only(
        judged(fact(1), fact(2), fact(3, hostname="n1"), launcher=launcher)
    )
    assert (check, found, nodes) == ("name", level, ["n1", "n3"]) and "hostnamectl" in text


@pytest.mark.parametrize(
    "asked, words",
    [
        (["127.0.1.1"], "n2 resolves to 127.0.1.1"),
        (["10.0.0.1"], "resolves to 10.0.0.1, which is n1"),
        (["10.9.9.9"], "which is no address"),
        ([], "resolves to nothing"),
    ],
)
def test_an_own_name_that_leads_elsewhere(asked, words):
    check, level, nodes, text = only(judged(fact(1), fact(2, resolves_to=asked)))
    assert (
        (check, level, nodes) == ("name", "warn", ["n2"])
        and words in text
        and "10.0.0.2 n2" in text
    )
    assert judged(fact(2, resolves_to=asked)) == []  # alone nobody asks


@pytest.mark.parametrize(
    "ahead, level",
    [
        (3600, "stop"),
        (-3600, "stop"),
        (31, "stop"),
        (5, "warn"),
        (-5, "warn"),
        (1, None),
        (-1, None),
    ],
)
def test_clocks_are_judged_by_what_the_probe_cannot_explain(ahead, level):
    off = fact(2, time=1000.2 + ahead, ended=1000.8 + ahead)
    found = judged(fact(1), off)
    assert [item[:3] for item in found] == ([("clock", level, ["n2"])] if level else [])
    # a probe that took ten minutes between two looks at a right clock accuses nobody
    assert judged(fact(1), fact(2, time=1000.1, ended=1600.0, sent=1000.0, received=1600.1)) == []
    assert judged(fact(1), fact(2, time=1500.0, ended=1501.0, sent=1000.0, received=1510.0)) == []
    assert not [item for item in found if "controller's own clock" in item[3]]
    assert "controller's own clock" not in str(judged(off))  # one node is no majority
    both = judged(fact(1, time=1000.2 + ahead, ended=1000.8 + ahead), off)
    assert all("controller's own clock" in item[3] for item in both) and len(both) == (
        2 if level else 0
    )


def place(**changes):
    """Return the facts of a node whose home is like this."""
    return fact(1, machines={"places": [dict(shown()["places"][0], **changes)]})


@pytest.mark.parametrize(
    "changes, check, level, words",
    [
        ({"free": 500 * 2**20}, "disk", "stop", "500 MiB free of 92160; wanted at least 1024"),
        ({"free": 2 * GIB}, "disk", "warn", "wanted at least 5120"),
        ({"free": 500 * 2**20, "path": "/tmp"}, "disk", "warn", "/tmp has 500 MiB free"),
        ({"free": 0, "path": "/home/100%d"}, "disk", "stop", "/home/100%d has 0 MiB free"),
        ({"inodes_free": 100}, "inodes", "stop", "100 inodes free"),
        ({"read_only": True}, "disk", "stop", "mounted read-only"),
        ({"writable": False}, "disk", "stop", "cannot be written by the training user"),
    ],
)
def test_room_for_what_is_written(changes, check, level, words):
    found = only(judged(place(**changes)))
    assert found[:3] == (check, level, ["n1"]) and words in found[3]
    assert judged(place(inodes=0, inodes_free=0)) == []  # btrfs


@pytest.mark.parametrize(
    "changes, check, level, words",
    [
        ({"shm": {"free": 64 * 2**20}}, "shm", "stop", "64 MiB free"),
        ({"shm": {"free": 512 * 2**20}}, "shm", "warn", "512 MiB free"),
        ({"memory": 100 * 2**20}, "memory", "stop", "100 MiB of memory"),
        ({"unit": {"memory": 600 * 2**20}}, "memory", "warn", "600 MiB of memory"),
        (
            {"unit": {"nofile": [256, 20000]}},
            "limits",
            "stop",
            "256 open files; wanted at least 1024",
        ),
        ({"unit": {"tasks": 33}}, "limits", "stop", "33 more processes"),
        ({"unit": {"cores": 0.5}}, "cores", "warn", "0.5 processors for 1 ranks"),
        (
            {"unit": {"error": "Failed to connect to bus"}},
            "unit",
            "stop",
            "Failed to connect to bus",
        ),
        ({"unit": {"confined": "docker-default (enforce)"}}, "security", "note", "docker-default"),
        (
            {"selinux": True, "unit": {"confined": "user_u:user_r:user_t:s0"}},
            "security",
            "note",
            "user_t",
        ),
        (
            {"locks": [{"path": "/var/lib/dpkg/lock", "pid": 7, "command": "apt-get"}]},
            "packages",
            "warn",
            "apt-get (pid 7) holds /var/lib/dpkg/lock",
        ),
    ],
)
def test_what_a_unit_may_hold_and_what_is_in_the_way(changes, check, level, words):
    found = only(judged(fact(1, machines=changes)))
    assert found[:3] == (check, level, ["n1"]) and words in found[3]


def test_no_limit_is_enough_and_what_is_said_elsewhere_is_not_said_twice():
    assert judged(fact(1, machines={"unit": {"nofile": [-1, -1], "tasks": -1}})) == []
    assert (
        judged(
            fact(
                1,
                missing=["a running systemd user manager"],
                machines={"unit": {"error": "no bus"}},
            )
        )
        == []
    )
    assert (
        judged(
            fact(
                1,
                machines={
                    "selinux": True,
                    "unit": {"confined": "unconfined_u:unconfined_r:unconfined_t:s0"},
                },
            )
        )
        == []
    )


@pytest.mark.parametrize(
    "accelerator, floor, rdma, level",
    [
        ("cpu", "auto", [], None),
        ("cpu", "16777216", [], "stop"),
        ("cpu", 16777216, [], "stop"),
        ("cpu", 8388608, [], None),
        ("cpu", "infinity", [], "stop"),
        ("gpu", "auto", [], "warn"),
        ("gpu", "auto", ["mlx5_0"], "stop"),
        ("ascend", "auto", ["hns_0"], "stop"),
    ],
)
def test_locked_memory_is_asked_where_rdma_needs_it(accelerator, floor, rdma, level):
    found = judged(
        fact(1, machines={"rdma": rdma, "unit": {"memlock": [8388608, 8388608]}}),
        accelerator=accelerator,
        memlock=floor,
    )
    assert [item[:2] for item in found] == ([("limits", level)] if level else [])
    assert judged(fact(1, machines={"rdma": rdma}), accelerator=accelerator, memlock=floor) == []


def test_ranks_share_a_nodes_memory_and_processors():
    assert only(judged(fact(1, machines={"memory": 3 * GIB}), devices=4))[:2] == ("memory", "warn")
    assert (
        only(judged(fact(1, cores=12), accelerator="gpu", devices=8))[0] == "cores"
        and judged(fact(1, cores=16), accelerator="gpu", devices=8) == []
    )


def test_differences_of_system_and_kernel_are_noted():
    found = judged(fact(1), fact(2), fact(3, machines={"system": "Ubuntu 22.04", "kernel": "5.15"}))
    assert [item[:3] for item in found] == [("system", "note", ["n3"])] * 2


V2 = "0::/user.slice/user@1000.service/app.slice/yardcheck-1.service\n"
V1 = "8:pids:/docker/c1/user.slice\n4:memory:/docker/c1/user.slice\n1:cpu,cpuacct:/docker/c1\n0::/docker/c1/user.slice\n"


def test_the_tightest_control_group_counts_in_both_generations(tmp_path):
    unit = "v2/user.slice/user@1000.service/app.slice/yardcheck-1.service"
    new = put(
        tmp_path,
        {
            unit + "/pids.max": "500\n", unit + "/pids.current": "1\n", "v2/user.slice/pids.max": "100\n", "v2/user.slice/pids.current": "60\n",
            unit + "/memory.max": "max\n", "v2/user.slice/memory.max": "1000\n", "v2/user.slice/memory.current": "900\n",
            "v2/user.slice/memory.stat": "anon 5\ninactive_file 300\n", unit + "/cpu.max": "max 100000\n", "v2/user.slice/cpu.max": "150000 100000\n",
        },
    )  # fmt: skip
    root = os.path.join(new, "v2")
    assert (
        unit_limits.room(V2, root, "pids"),
        unit_limits.room(V2, root, "memory"),
        unit_limits.processors(V2, root),
    ) == (40, 400, 1.5)
    old = put(
        tmp_path,
        {
            "v1/pids/docker/c1/pids.max": "max\n", "v1/pids/docker/c1/user.slice/pids.max": "50\n", "v1/pids/docker/c1/user.slice/pids.current": "9\n",
            "v1/memory/docker/c1/memory.limit_in_bytes": "4096\n", "v1/memory/docker/c1/memory.usage_in_bytes": "96\n",
            "v1/memory/docker/c1/user.slice/memory.limit_in_bytes": "9223372036854771712\n",
            "v1/cpu/docker/c1/cpu.cfs_quota_us": "100000\n", "v1/cpu/docker/c1/cpu.cfs_period_us": "100000\n", "v1/cpu/cpu.cfs_quota_us": "-1\n",
        },
    )  # fmt: skip
    root = os.path.join(old, "v1")
    assert (
        unit_limits.room(V1, root, "pids"),
        unit_limits.room(V1, root, "memory"),
        unit_limits.processors(V1, root),
    ) == (41, 4000, 1.0)
    assert (
        unit_limits.room("", str(tmp_path / "none"), "pids") is None
        and unit_limits.processors("", str(tmp_path / "none")) is None
    )


def test_the_unit_is_like_an_attempts_and_none_of_its_name():
    plan = {"launcher": {"console": "logs.txt"}, "stop": {"timeout": 5}}
    real = attempt_dir.start_argv("/a", plan, "n1", "u", "d")
    asked = []
    assert unit_limits.in_unit(
        lambda argv: asked.append(argv) or (1, "", "Failed to\n connect\n"),
        "/usr/bin/python3",
    ) == {"error": "Failed to connect"}
    mine = asked[0]
    properties = [word for word in real if word.startswith(("Type=", "KillMode=", "UMask="))]
    assert [word for word in mine if word in real and "=" in word] == properties and len(
        properties
    ) == 3
    assert (
        mine[:4] == ["timeout", str(unit_limits.SECONDS + 5), "systemd-run", "--user"]
        and "--collect" in mine
    )
    name = next(word for word in mine if word.startswith("--unit="))[7:] + ".service"
    assert not attempt_dir.UNIT.match(name) and not check_lock.UNIT.match(
        name
    )  # a check ends listeners of others, not their probes
    assert "$" not in mine[-1]  # systemd would put a variable there


def test_the_units_program_runs_by_itself_under_the_limits_it_is_given(tmp_path):
    """A stand-in for systemd-run runs the command line of the unit under lowered limits. It returns
    the limits that apply there.
    """
    place = program(
        tmp_path,
        "systemd-run",
        'while [ "$1" != /usr/bin/python3 ]; do shift; done; ulimit -l 64; ulimit -n 300; umask'
        f' 077; shift; exec "{sys.executable}" "$@"',
    )
    environment = dict(os.environ, PATH=str(place) + os.pathsep + os.environ["PATH"])

    def run(argv):
        done = subprocess.run(argv, capture_output=True, text=True, env=environment, check=False)
        return done.returncode, done.stdout, done.stderr

    found = unit_limits.in_unit(run, "/usr/bin/python3")
    assert (found["memlock"][0], found["nofile"][0], found["umask"]) == (65536, 300, 0o077)
    assert set(found) == set(shown()["unit"])


def test_places_are_told_once_a_file_system_also_before_they_exist(tmp_path):
    base = tmp_path / "home" / ".trainyard"
    assert [item["path"] for item in capacity.places(str(base), ["/dev/shm", "/tmp"])] == [
        str(tmp_path),
        "/dev/shm",
    ]
    base.mkdir(parents=True)
    found = capacity.places(str(base), [])
    assert (
        [item["path"] for item in found] == [str(base)]
        and found[0]["writable"]
        and 0 < found[0]["free"] <= found[0]["size"]
    )
    os.symlink("/dev/shm", str(base / "runs"))  # another disk for what trainings write
    assert [item["path"] for item in capacity.places(str(base), [])] == [
        str(base),
        str(base / "runs"),
    ]


def test_a_lock_is_told_with_its_holder_and_without_opening_it(tmp_path):
    """A real fcntl() lock as dpkg and apt take it, in a file that this reader could not open."""
    lock, quiet = tmp_path / "lock", tmp_path / "quiet"
    quiet.write_text("")
    code = (
        "import fcntl,sys; handle = open(sys.argv[1], 'w'); fcntl.lockf(handle, fcntl.LOCK_EX);"
        " print(flush=True); sys.stdin.read()"
    )
    with subprocess.Popen(
        [sys.executable, "-c", code, str(lock)], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as holder:
        holder.stdout.readline()
        lock.chmod(0)
        found = machine.locks([str(lock), str(quiet), str(tmp_path / "none")], [])
        holder.stdin.close()
    assert [(item["path"], item["pid"]) for item in found] == [(str(lock), holder.pid)] and found[
        0
    ]["command"].startswith("python")
    (tmp_path / "pid").write_text("%d\n" % os.getpid())
    (tmp_path / "dead").write_text("%d\n" % holder.pid)
    assert [
        item["pid"]
        for item in machine.locks(
            [], [str(tmp_path / "pid"), str(tmp_path / "dead"), str(tmp_path / "none")]
        )
    ] == [os.getpid()]
    # a process that waits, and a lock of an open file description, which has no pid
    inode = os.stat(quiet).st_ino
    table = (
        "1: -> POSIX  ADVISORY  WRITE 12 fe:00:%d 0 EOF\n2: OFDLCK ADVISORY  READ -1 fe:00:%d 0"
        " EOF\n" % (inode, inode)
    )
    assert machine.locks([str(quiet)], [], table) == [
        {"path": str(quiet), "pid": -1, "command": ""}
    ]


def test_look_says_all_of_this_machine_and_changes_nothing(tmp_path):
    found = machine.look(lambda argv: (127, "", "no systemd-run"), str(tmp_path / "base"), {})
    assert (
        json.loads(json.dumps(found)) == found
        and set(found) == set(shown())
        and found["unit"] == {"error": "no systemd-run"}
    )
    assert (
        found["memory"] > 0
        and found["shm"]["size"] > 0
        and found["identity"]["kernel"].count("[") == 2
        and not list(tmp_path.iterdir())
    )
    if os.path.exists("/etc/machine-id") and stat.S_ISREG(os.stat("/etc/machine-id").st_mode):
        assert (
            Path("/etc/machine-id").read_text().strip() not in json.dumps(found)
            or not Path("/etc/machine-id").read_text().strip()
        )


def test_the_controller_notes_when_it_asked_and_when_it_was_answered(load_plugin, monkeypatch):
    plugin = load_plugin("action", "node_info")
    clock = iter([100.0, 107.0])
    monkeypatch.setattr(plugin.time, "time", lambda: next(clock))
    monkeypatch.setattr(plugin.ActionBase, "run", lambda *_args, **_more: {})
    monkeypatch.setattr(
        plugin.ActionModule, "_execute_module", lambda *_args, **_more: {"facts": {"time": 3.0}}
    )
    action = plugin.ActionModule.__new__(plugin.ActionModule)
    action._connection = None
    facts = {"time": 3.0, "sent": 100.0, "received": 107.0, "login": ""}
    assert action.run()["facts"] == facts
