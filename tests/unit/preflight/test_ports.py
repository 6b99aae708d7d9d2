# SPDX-License-Identifier: Apache-2.0
"""The ports of a job: which ports there are, whether they are free, and which process uses them.
The tests use real sockets on this machine.
"""

from __future__ import annotations

import os
import socket
import subprocess
import sys

import pytest
from ansible_collections.trainyard.cluster.plugins.module_utils.preflight import sockets
from ansible_collections.trainyard.cluster.plugins.module_utils.suites import launcher_table
from ansible_collections.trainyard.cluster.plugins.plugin_utils.preflight import ports
from core_support import RUN, compiled

START = 17000
FREE = {"asked": [START], "taken": [], "used": [], "ephemeral": [[32768, 60999]], "reserved": []}


def taken(port, **more):
    return dict(
        {
            "port": port,
            "error": "EADDRINUSE",
            "uid": 1000,
            "user": "ann",
            "pid": 7,
            "command": "python server.py",
            "run": None,
            "waits": False,
        },
        **more,
    )


@pytest.fixture
def server():
    """A server on a free port of all addresses."""
    with socket.socket() as one:
        one.bind(("0.0.0.0", 0))
        one.listen(1)
        yield one


# --- which ports a job needs


@pytest.mark.parametrize(
    "launcher, kind, nodes, meeting, expected",
    [
        ("paddle", "gpu", 2, None, ([START], [START, START + 1], 0)),
        ("fleetrun", "cpu", 2, "ips", ([START], [START, START + 1], 0)),
        ("paddle", "cpu", 2, "master", ([START], [], 64)),
        ("paddle", "cpu", 1, None, ([], [], 0)),  # the launcher takes any free ports
        ("msrun", "cpu", 1, None, ([START], [], 0)),
        ("msrun", "ascend", 4, None, ([START], [], 0)),
        ("mpirun", "cpu", 2, None, ([START], [], 0)),
        ("mpirun", "ascend", 2, None, ([], [], 0)),  # no scheduler beside it
        ("rank_table", "ascend", 2, None, ([], [], 0)),
    ],
)
def test_the_ports_that_each_launcher_listens_on(launcher, kind, nodes, meeting, expected):
    need = ports.port_needs(launcher, kind, nodes, meeting, START, 2)
    assert (need["listened"], need["others"], len(need["pool"])) == expected
    job = {"launcher": launcher, "rendezvous": meeting, "start_port": None}
    chosen = [{"accelerator": kind, "devices": ["0", "1"]}] * nodes
    assert ports.ports_to_probe(job, {"start_port": START}, chosen) == sorted(
        set(need["listened"] + need["others"] + need["pool"])
        | set(HCCL if kind == "ascend" else ())
    )


def test_the_pool_is_what_the_launcher_is_told():
    need = ports.port_needs("paddle", "cpu", 2, "master", START, 2)
    said = launcher_table.rendezvous("paddle", "master")["env"]["PORT_RANGE"].format(
        **launcher_table.template_values(["a"], ["0", "1"], "", START, 0)
    )
    assert said == "%d:%d" % (need["pool"][0], need["pool"][-1])


# --- looking at a node


def test_a_free_port_and_one_that_is_taken_with_its_owner(server):
    port = server.getsockname()[1]
    told = sockets.look(None, "/b", {"ports": [port, 1]})
    mine = next(item for item in told["taken"] if item["port"] == port)
    assert (mine["error"], mine["pid"], mine["uid"]) == (
        "EADDRINUSE",
        os.getpid(),
        os.getuid(),
    ) and "python" in mine["command"]
    server.close()
    assert [item for item in sockets.look(None, "/b", {"ports": [port]})["taken"]] == []
    assert sockets.look(None, "/b", {})["taken"] == []


def test_ports_that_others_have_are_told_beside_the_asked_ones(server):
    port = server.getsockname()[1]
    assert port in sockets.look(None, "/b", {"ports": [port - 1]})["used"]


@pytest.mark.parametrize(
    "address, family", [("127.0.0.1", socket.AF_INET), ("::", socket.AF_INET6)]
)
def test_a_server_on_one_address_or_on_ipv6_takes_the_port_too(address, family):
    with socket.socket(family) as one:
        one.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        one.bind((address, 0))
        one.listen(1)
        port = one.getsockname()[1]
        assert (
            sockets.try_port(port) == "EADDRINUSE"
            and sockets.owners([port], sockets.sockets())[port]["pid"] == os.getpid()
        )


@pytest.mark.parametrize("reuses", [True, False])
def test_a_connection_that_waits_for_its_end_is_in_the_way_where_it_would_be_in_paddles(reuses):
    with socket.socket() as one:
        one.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, reuses)
        one.bind(("127.0.0.1", 0))
        one.listen(1)
        port = one.getsockname()[1]
        with socket.create_connection(("127.0.0.1", port)):
            accepted, _peer = one.accept()
            accepted.close()  # this end closes first, so TIME_WAIT is here
    assert (port, "06") in {(row[0], row[3]) for row in sockets.sockets()}
    told = sockets.look(None, "/b", {"ports": [port]})
    assert port not in sockets.look(None, "/b", {"ports": [port - 1]})["used"]
    assert [item["waits"] for item in told["taken"]] == ([] if reuses else [True])
    assert reuses or "TIME_WAIT" in ports.owner_words(told["taken"][0])


def test_a_socket_that_is_bound_and_listens_later():
    with socket.socket() as one:
        one.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        one.bind(("0.0.0.0", 0))
        assert (
            sockets.try_port(one.getsockname()[1]) == ""
        )  # Paddle's own server gets it, too, as long as nobody listens
        one.listen(1)
        assert sockets.try_port(one.getsockname()[1]) == "EADDRINUSE"


def test_a_process_of_a_run_is_named_as_that_run():
    code = (
        "import socket; s = socket.socket(); s.bind(('', 0)); s.listen(1);"
        " print(s.getsockname()[1], flush=True); input()"
    )
    argv = [sys.executable, "-c", code]
    environment = dict(os.environ, TRAINYARD_ATTEMPT=RUN + "/1")
    with subprocess.Popen(
        argv, env=environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:
        port = int(process.stdout.readline())
        item = sockets.look(None, "/b", {"ports": [port]})["taken"][0]
        process.communicate("\n")
    assert (item["run"], item["pid"]) == (RUN, process.pid)
    assert ports.owner_words(item).startswith(f"taken by the run {RUN} (pid {process.pid}, ")


def test_another_users_socket_shows_its_uid_alone(server, monkeypatch):
    monkeypatch.setattr(sockets, "holders", lambda inodes: {})
    item = sockets.look(None, "/b", {"ports": [server.getsockname()[1]]})["taken"][0]
    assert (item["pid"], item["command"], item["uid"]) == (None, None, os.getuid())
    words = ports.owner_words(item)
    assert words.startswith(f"taken by a process of {item['user']} (uid {os.getuid()}), ")
    assert "only that user and root" in words


def test_the_kernels_lists_of_ports():
    assert sockets.number_ranges("32768\t60999\n") == [[32768, 60999]]
    assert (
        sockets.number_ranges("8080,9000-9100\n") == [[8080, 8080], [9000, 9100]]
        and sockets.number_ranges("\n") == []
    )
    assert sockets.look(None, "/b", {"ports": [START]})["ephemeral"]


def test_a_node_without_yaml_can_be_looked_at():
    """Nodes have Python only. The controller has the table of the launchers."""
    code = (
        f"import sys; sys.path[:0] = {sys.path!r}; sys.modules['yaml'] = None\n"
        "from ansible_collections.trainyard.cluster.plugins.module_utils.preflight import probe\n"
        "from ansible_collections.trainyard.cluster.plugins.module_utils.attempts import status\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True, timeout=60)


# --- judging


def judged(first=None, second=None, made=None, port=START, **job):
    made = made or compiled(
        count=2, devices=2, accelerator="cpu", job=dict({"start_port": port}, **job)
    )
    answers = {
        "node1": {"ports": dict(FREE, **(first or {}))},
        "node2": {"ports": dict(FREE, **(second or {}))},
    }
    return ports.judge(made, answers, {})


def test_free_ports_give_no_finding():
    assert judged() == [] and ports.judge(compiled(count=2), {"node1": {}, "node2": {}}, {}) == []


def test_the_first_nodes_start_port_stops_with_owner_and_the_next_one_free_everywhere():
    found = judged({"taken": [taken(START)], "used": [17002]}, {"used": [17004, 17005]})
    assert [(item["code"], item["level"], item["nodes"]) for item in found] == [
        ("port.taken", "stop", ["node1"])
    ]
    assert found[0]["text"].startswith("port 17000: ")
    assert "pid 7 of ann: " in found[0]["text"]
    assert "python server.py" in found[0]["text"]
    # 17001-17002, 17002-17003, 17003-17004 ... each has one that is taken somewhere
    assert "-e start_port=17006 " in found[0]["remedy"]


@pytest.mark.parametrize(
    "node, port", [("second", START), ("second", START + 1), ("first", START + 1)]
)
def test_a_port_that_nobody_listens_on_is_only_told(node, port):
    assert [item["level"] for item in judged(**{node: {"taken": [taken(port)]}})] == ["warn"]


def test_a_run_of_ours_on_the_port_has_its_remedy():
    assert judged({"taken": [taken(START, run=RUN)]})[0]["remedy"].startswith(
        f"ansible-playbook playbooks/stop.yml -e run={RUN} ends it; or "
    )


def test_one_node_needs_no_port_unless_it_has_a_scheduler():
    alone = compiled(count=1, devices=2, accelerator="cpu")
    assert ports.judge(alone, {"node1": {"ports": dict(FREE, taken=[taken(START)])}}, {}) == []
    alone["launcher"]["name"] = "msrun"
    assert [
        item["level"]
        for item in ports.judge(alone, {"node1": {"ports": dict(FREE, taken=[taken(START)])}}, {})
    ] == ["stop"]


def test_a_master_on_the_start_port_and_enough_of_the_pool():
    few = [taken(port) for port in range(START + 1, START + 65)]
    assert judged(rendezvous="master", launcher="paddle") == []
    assert [
        item["level"]
        for item in judged({"taken": [taken(START)]}, rendezvous="master", launcher="paddle")
    ] == ["stop"]
    assert (
        judged(second={"taken": few[:60]}, rendezvous="master", launcher="paddle") == []
    )  # four are left, the launcher passes over the others
    found = judged(second={"taken": few[:61]}, rendezvous="master", launcher="paddle")
    assert [(item["code"], item["level"], item["nodes"]) for item in found] == [
        ("port.too_few", "stop", ["node2"])
    ]
    assert " 3 are free and 4 " in found[0]["text"]
    assert "-e start_port=17062 " in found[0]["remedy"]


def test_a_start_port_of_the_kernels_range_can_be_taken_at_any_moment():
    found = judged(port=40000)
    assert [item["level"] for item in found] == ["warn"] and "32768 to 60999" in found[0]["text"]
    assert "ip_local_reserved_ports=40000" in found[0]["remedy"]
    assert judged({"reserved": [[39990, 40010]]}, port=40000) == []


@pytest.mark.parametrize(
    "error, words",
    [
        ("EACCES", "ip_unprivileged_port_start"),
        ("EADDRNOTAVAIL", "it cannot be bound: EADDRNOTAVAIL"),
    ],
)
def test_other_reasons_are_said(error, words):
    assert words in judged({"taken": [taken(START, error=error)]})[0]["text"]


def test_no_other_start_port_is_promised_where_none_is_known():
    assert ports.find_start_port(START, 4, [dict(FREE, used=list(range(10000, 20000)))]) is None
    assert ports.find_start_port(19999, 2, [dict(FREE, used=list(range(20000, 22000)))]) == 10000


def test_a_start_port_that_is_proposed_has_no_port_in_the_kernels_range():
    assert ports.find_start_port(32765, 2, [FREE]) == 32766
    assert ports.find_start_port(32766, 2, [FREE]) == 10000
    assert (
        ports.find_start_port(32765, 2, [FREE, dict(FREE, ephemeral=[[32000, 60999]])]) == 10000
    )  # another node's, too


# The second is that of an older release.
@pytest.mark.parametrize("program", ["agent.pyz listen", "netprobe.py"])
def test_another_checks_listener_is_left_to_the_networks_proof_which_waits_for_it(program):
    command = (
        f"/usr/bin/python3 -I /run/user/1000/yardcheck-5f2a/{program} /run/user/1000/yardcheck-5f2a"
    )
    told = {
        "node%d" % at: {"ports": dict(FREE, taken=[taken(START, command=command)])} for at in (1, 2)
    }
    assert ports.judge(compiled(count=2), told, {}) == []
    alone = compiled(count=1, job={"launcher": "msrun"})  # nobody waits where there is no network
    assert [item["level"] for item in ports.judge(alone, {"node1": told["node1"]}, {})] == ["stop"]
    told["node1"]["ports"]["taken"][0]["command"] = f"python {program}"
    assert [item["level"] for item in ports.judge(compiled(count=2), told, {})] == ["stop"]


# --- HCCL's ports on the host: CANN's reference of environment variables, HCCL_IF_BASE_PORT

HCCL = list(range(60000, 60016))
RESERVED = {"reserved": [[60000, 60015]]}


def of_ascend(count=2, devices=2, env=None):
    plan = compiled(count=count, devices=devices, accelerator="ascend", job={"launcher": "msrun"})
    plan["env"].update(env or {})
    return plan


@pytest.mark.parametrize(
    "kind, ranks, env, expected",
    [
        ("ascend", 2, {}, HCCL),
        ("ascend", 16, {"HCCL_IF_BASE_PORT": "50000"}, list(range(50000, 50016))),
        ("ascend", 2, {"HCCL_IF_BASE_PORT": "65520"}, list(range(65520, 65536))),
        ("ascend", 2, {"HCCL_IF_BASE_PORT": "65521"}, []),  # CANN refuses it
        ("ascend", 2, {"HCCL_IF_BASE_PORT": "1023"}, []),
        ("ascend", 2, {"HCCL_IF_BASE_PORT": "many"}, []),
        ("ascend", 2, {"HCCL_HOST_SOCKET_PORT_RANGE": "auto", "HCCL_IF_BASE_PORT": "50000"}, []),
        ("ascend", 1, {}, []),
        ("gpu", 16, {}, []),
        ("cpu", 16, {"HCCL_IF_BASE_PORT": "50000"}, []),
    ],
)
def test_the_ports_that_hccl_listens_on(kind, ranks, env, expected):
    assert ports.hccl_ports(kind, ranks, env) == expected
    nodes = [{"accelerator": kind, "devices": ["0"]}] * ranks
    site = {"start_port": START, "env": {"HCCL_IF_BASE_PORT": "40000"}}
    for job_env, site_env in ((env, site["env"] if "HCCL_IF_BASE_PORT" in env else {}), ({}, env)):
        job = {"launcher": "rank_table", "start_port": None, "env": job_env}
        assert ports.ports_to_probe(job, {**site, "env": site_env}, nodes) == expected


def test_a_taken_port_of_hccl_is_named_with_16_others_that_are_free_everywhere():
    # 61000 is the first one above the range of which the kernel gives ports to connections
    second = {"taken": [taken(60007), taken(60015)], "used": [61003], **RESERVED}
    found = judged(RESERVED, second, made=of_ascend())
    assert [(item["code"], item["level"], item["nodes"]) for item in found] == [
        ("port.hccl_taken", "warn", ["node2"])
    ] * 2
    assert found[0]["text"].startswith("port 60007: taken by pid 7 of ann: ")
    assert "HCCL_IF_BASE_PORT: 61004 " in found[0]["remedy"]
    for port in (59999, 60016, 16666):
        assert judged(RESERVED, {"taken": [taken(port)], **RESERVED}, made=of_ascend()) == []
    other = of_ascend(env={"HCCL_IF_BASE_PORT": "20000"})
    assert judged({}, {"taken": [taken(60007)]}, made=other) == []
    found = judged({}, {"taken": [taken(20015)]}, made=other)
    assert [item["code"] for item in found] == ["port.hccl_taken"]


def test_ports_of_hccl_that_are_offered_are_not_the_jobs_own():
    made = of_ascend(env={"HCCL_IF_BASE_PORT": str(START - 16)})
    (found,) = judged({"taken": [taken(START - 1)]}, made=made)
    assert f"HCCL_IF_BASE_PORT: {START + 16} " in found["remedy"]


def test_ports_of_hccl_that_the_kernel_gives_to_any_connection():
    (found,) = judged({}, {}, made=of_ascend())
    assert (found["code"], found["level"], found["nodes"]) == (
        "port.hccl_ephemeral",
        "warn",
        ["node1", "node2"],
    )
    assert "ip_local_reserved_ports=60000-60015" in found["remedy"]
    (found,) = judged(RESERVED, {"reserved": [[60000, 60014]]}, made=of_ascend())
    assert found["nodes"] == ["node2"]
    assert judged(RESERVED, {"ephemeral": [[32768, 59999]]}, made=of_ascend()) == []


def test_a_launcher_without_ports_of_its_own_is_judged_for_hccl_all_the_same():
    made = of_ascend(count=1)
    made["launcher"]["name"] = "rank_table"
    facts = {"node1": {"ports": dict(FREE, taken=[taken(60000)], **RESERVED)}}
    assert [item["code"] for item in ports.judge(made, facts, {})] == ["port.hccl_taken"]
