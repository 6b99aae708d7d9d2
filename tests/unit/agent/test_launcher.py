# SPDX-License-Identifier: Apache-2.0
"""The node's agent with every kind of launcher, MindSpore's scheduler and Open MPI's daemons, all
of them real processes.

Programs stand in for mpirun, orted and ssh; the real ones run in molecule's scenario `mindspore`.
"""

from __future__ import annotations

import errno
import json
import os
import resource
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from ansible_collections.trainyard.cluster.plugins.module_utils.agent import (
    attempt_end,
    launcher,
    openmpi,
)
from ansible_collections.trainyard.cluster.plugins.module_utils.base.processes import pids_with_mark
from core_support import RUN, agent_archive, attempt_files, gate_ssh, open_gate, program, put

PYTHON = sys.executable
SHOW = (
    "import json, os, sys; print(json.dumps(dict(os.environ)), flush=True); print('to stderr',"
    " file=sys.stderr, flush=True)"
)
# A rank that does what its own variable says.
RANK = SHOW + "\nexec(os.environ.get('WHAT', ''))"
LONG = "import time; time.sleep(60)"
SHORT = "import time; time.sleep(0.6)"
KILL = "import os, signal, time; time.sleep(0.6); os.kill(os.getpid(), signal.SIGKILL)"


class Node:
    """An attempt of two nodes with two ranks each on one of them; the other's directory is beside
    it.
    """

    def __init__(self, folder, kind, node="node1", what=("", ""), **changes):
        self.folder, self.node = folder, node
        first = 2 * (int(node[-1]) - 1)
        self.plan = {
            "nodes": [
                {
                    "name": name,
                    "rank": number,
                    "address": "10.0.0.%d" % (number + 1),
                    "base": str(folder / name),
                    "home": str(folder / name),
                    "env": {"PATH": "%s:/usr/bin:/bin" % (folder / name / "bin"), "OF_NODE": name},
                }
                for number, name in enumerate(("node1", "node2"))
            ],
            "launcher": {
                "kind": kind,
                "rank_env": "RANK_ID" if kind == "ranks" else "TRAINYARD_RANK",
                "endpoints_env": None,
            },
            "argv": [PYTHON, "-c", RANK],
            "env": {"OF_PLAN": "1"},
            "endpoints": ["10.0.0.1:17000"],
            "ranks": [
                {
                    "rank": n,
                    "node": "node%d" % (n // 2 + 1),
                    "local_rank": n % 2,
                    "log": "log/rank_%d/train.log" % n,
                    "env": {"RANK_ID": str(n)},
                }
                for n in range(4)
            ],
            "scheduler": None,
            "stop": {"grace": 1, "timeout": 5},
        }
        for entry, code in zip(self.plan["ranks"][first:], what):
            entry["env"]["WHAT"] = code
        self.plan.update(changes)
        self.path = self.write(node)

    def write(self, node):
        """Write what attempts.prepare leaves on a node; return the attempt's path."""
        config = f"{self.folder}/{node}/.trainyard/mesh/runs/{RUN}/1/{node}/config"
        path = attempt_files(self.folder / node, self.plan, node, mesh=config)
        shutil.copy(agent_archive(), path)
        return path

    def start(self):
        """Start the agent as the unit does."""
        with open(os.path.join(self.path, "logs.txt"), "ab") as console:
            argv = [PYTHON, "-I", os.path.join(self.path, "agent.pyz"), "run", self.path, self.node]
            self.process = subprocess.Popen(
                argv, env=dict(os.environ, STRAY="1"), stdout=console, stderr=console, cwd=self.path
            )
        return self

    def end(self, seconds=15):
        """Return the agent's exit code; what is left of the attempt is ended as systemd would."""
        try:
            self.process.wait(timeout=seconds)
        finally:
            self.left = pids_with_mark(RUN, 1)
            if self.process.poll() is None:
                self.process.kill()
            for pid in self.left:
                os.kill(pid, signal.SIGKILL)
        return self.process.returncode

    def events(self, kind):
        """Return the events of ranks.jsonl of one kind."""
        path = Path(self.path, "ranks.jsonl")
        lines = path.read_text(encoding="utf-8").splitlines() if path.exists() else []
        return [event for event in map(json.loads, lines) if event["event"] == kind]

    def ends(self):
        """Return {rank: (exit code, signal)}."""
        return {
            event["rank"]: (event["exit_code"], event["signal"]) for event in self.events("end")
        }

    def text(self, name="logs.txt"):
        """Return a file of the attempt's directory."""
        return Path(self.path, name).read_text(encoding="utf-8")


def until(condition, seconds=10):
    """Wait for a condition; return what it gave last."""
    deadline = time.monotonic() + seconds
    while not condition() and time.monotonic() < deadline:
        time.sleep(0.02)
    return condition()


# --- ranks that the agent starts itself


def test_ranks_get_their_own_environment_and_log(tmp_path):
    node = Node(tmp_path, "ranks", node="node2", what=(SHORT, SHORT)).start()
    assert node.end() == 0 and node.ends() == {2: (0, None), 3: (0, None)}
    for number in (2, 3):
        name = "log/rank_%d/train.log" % number
        seen, second = node.text(name).splitlines()
        planned = dict(
            node.plan["env"],
            **node.plan["nodes"][1]["env"],
            RANK_ID=str(number),
            WHAT=SHORT,
            TRAINYARD_ATTEMPT=RUN + "/1",
        )
        found = json.loads(seen)
        found.pop("LC_CTYPE", None)  # Python's own
        assert found == planned and second == "to stderr"
        assert os.stat(os.path.join(node.path, name)).st_mode & 0o777 == 0o600
    assert [(e["exit_code"], e["signal"]) for e in node.events("launcher_end")] == [(0, None)]
    assert sorted((e["rank"], e["local_rank"]) for e in node.events("start")) == [(2, 0), (3, 1)]


@pytest.mark.parametrize(
    "code, seen", [("sys.exit(7)", (7, None)), (KILL, (None, "SIGKILL"))], ids=["exit 7", "SIGKILL"]
)
def test_the_first_failing_rank_ends_the_attempt(tmp_path, code, seen):
    node = Node(tmp_path, "ranks", what=(LONG, code)).start()
    assert node.end() == 1 and node.ends() == {1: seen} and node.events("launcher_end") == []


def test_ranks_have_succeeded_only_where_all_have(tmp_path):
    node = Node(tmp_path, "ranks", what=("sys.exit(3)", SHORT)).start()
    assert node.end() == 3 and node.ends() == {0: (3, None), 1: (0, None)}
    assert [event["exit_code"] for event in node.events("launcher_end")] == [3]


def test_a_rank_is_not_collected_before_its_end_was_seen(tmp_path):
    node = Node(tmp_path, "ranks", argv=["true"])
    ranks = node.plan["ranks"][:1]
    started = launcher.Launcher(
        node.path, node.plan, node.plan["nodes"][0], ranks, {"PATH": "/usr/bin:/bin"}
    )
    pid = started.processes[0].pid
    assert until(lambda: not alive(pid))
    # The zombie stays. Its exit code would be gone with it.
    assert started.poll({pid: None}) is None and os.path.exists("/proc/%d" % pid)
    assert started.poll({}) == 0


@pytest.mark.parametrize(
    "kind, container, words, killed",
    [
        ("each", False, None, True),
        ("each", True, None, False),
        ("each", False, "pid (.*)", False),  # msrun: its words are needed
        ("first", False, None, False),
    ],
)
def test_only_a_launcher_of_this_nodes_ranks_alone_is_killed(
    tmp_path, kind, container, words, killed
):
    node = Node(tmp_path, kind, argv=["sleep", "60"])
    node.plan["launcher"]["end_words"] = words
    mine = dict(node.plan["nodes"][0])
    if container:
        mine["container"] = {"argv": [], "env": {}, "folders": []}
    environment = {"PATH": "/usr/bin:/bin", "TRAINYARD_ATTEMPT": RUN + "/1"}
    started = launcher.Launcher(node.path, node.plan, mine, [], environment)
    process = started.processes[0]
    try:
        assert started.kill() is killed
        assert until(lambda: process.poll() == -9, 1) is killed
    finally:
        process.kill()
        process.wait()


def test_a_rank_that_cannot_be_started(tmp_path):
    node = Node(tmp_path, "ranks", argv=["no-such-python", "train.py"]).start()
    assert node.end() == 127 and "no-such-python " in node.text()
    assert os.strerror(errno.ENOENT) in node.text()


@pytest.mark.parametrize("log", ["../out.log", "/tmp/trainyard-out.log", "work/away/out.log"])
def test_a_log_outside_the_attempt_is_refused(tmp_path, log):
    node = Node(tmp_path, "ranks")
    node.plan["ranks"][0]["log"] = log
    node.path = node.write("node1")
    os.symlink(str(tmp_path), os.path.join(node.path, "work", "away"))
    assert (
        node.start().end() == 127
        and "not below the attempt" in node.text()
        and node.events("start") == []
    )


def test_a_nodes_own_command_beats_the_plans(tmp_path):
    node = Node(tmp_path, "each")
    node.plan["nodes"][0]["argv"] = [PYTHON, "-c", "print('of this node', flush=True)"]
    node.path = node.write("node1")
    assert node.start().end() == 0 and node.text() == "of this node\n"


# --- MindSpore's scheduler beside them


def scheduler(code, node="node1"):
    """Return the plan's entry of a scheduler."""
    argv = [
        PYTHON,
        "-c",
        "import os, sys; print(os.getpid(), os.environ['MS_ROLE'], os.environ['OF_NODE'],"
        " flush=True)\n" + code,
    ]
    return {
        "node": node,
        "argv": argv,
        "env": {"MS_ROLE": "MS_SCHED", "RANK_ID": "0"},
        "log": "log/scheduler.log",
    }


def alive(pid):
    """Whether a process runs."""
    try:
        return (
            Path("/proc/%d/stat" % pid).read_text(encoding="ascii").rpartition(")")[2].split()[0]
            != "Z"
        )
    except OSError:
        return False


def test_the_scheduler_runs_beside_the_ranks_is_none_and_ends_after_them(tmp_path):
    node = Node(tmp_path, "ranks", what=(SHORT, SHORT), scheduler=scheduler(LONG)).start()
    assert node.process.wait(timeout=15) == 0
    pid, role, of = node.text("log/scheduler.log").split()
    # The agent does not leave its scheduler behind.
    assert until(lambda: not alive(int(pid)))
    assert node.end() == 0 and sorted(node.ends()) == [0, 1]
    assert (role, of) == ("MS_SCHED", "node1") and os.stat(
        os.path.join(node.path, "log/scheduler.log")
    ).st_mode & 0o777 == 0o600


def test_the_scheduler_of_another_node(tmp_path):
    node = Node(
        tmp_path, "ranks", what=(SHORT, SHORT), scheduler=scheduler(LONG, node="node2")
    ).start()
    assert node.end() == 0 and not os.path.exists(os.path.join(node.path, "log/scheduler.log"))


def test_a_scheduler_that_dies_ends_the_attempt_by_name(tmp_path):
    node = Node(tmp_path, "ranks", what=(LONG, LONG), scheduler=scheduler("sys.exit(3)")).start()
    assert node.end() == 1 and node.ends() == {}
    assert "ended with 3;" in node.text() and "log/scheduler.log" in node.text()
    assert [event["exit_code"] for event in node.events("scheduler_end")] == [3]


def test_a_scheduler_that_leaves_before_any_rank_is_there(tmp_path):
    node = Node(tmp_path, "each", argv=[PYTHON, "-c", LONG], scheduler=scheduler("")).start()
    assert node.end() == 1 and "scheduler ended with 0" in node.text()


@pytest.mark.parametrize(
    "end, more", [("", 7), ("sys.exit(1)", 3)], ids=["well", "badly, as its ranks leave"]
)
def test_a_scheduler_that_has_done_its_work(tmp_path, end, more):
    node = Node(
        tmp_path,
        "ranks",
        what=(f"import time; time.sleep({more})", SHORT),
        scheduler=scheduler("import time; time.sleep(0.5)\n" + end),
    )
    assert (
        node.start().end(25) == 0
        and node.ends() == {0: (0, None), 1: (0, None)}
        and "scheduler" not in node.text()
    )


# --- msrun

# What msrun does: a rank and a tail of its log with the same environment, the rank looked after
# without a pause.
MSRUN = """
import os, subprocess, sys
environment = dict(os.environ, MS_NODE_ID="1")
rank = subprocess.Popen([sys.executable, "-c", os.environ["CODE"]], env=environment, start_new_session=True)
tail = subprocess.Popen(["/usr/bin/tail", "-f", "/dev/null"], env=environment)
while rank.poll() is None:
    pass
if rank.returncode:
    print("[ERROR] Worker process %d exit with exception. Error code: %d." % (rank.pid, rank.returncode), flush=True)
tail.kill()
tail.wait()
if os.environ.get("HANG"):
    import time
    time.sleep(60)
sys.exit(1 if rank.returncode else 0)
"""  # noqa: E501
WORDS_OF_MSRUN = (
    r"Worker process (?P<pid>[0-9]+) exit with exception\. Error code: (?P<code>-?[0-9]+)"
)


@pytest.mark.parametrize(
    "code, seen, hang, result",
    [("import time; time.sleep(1.5)", [(0, None), (None, None)], "", 0),
    (KILL.replace("0.6", "1.5"), [(None, "SIGKILL")], "1", 1),
     ("import sys, time; time.sleep(1.5); sys.exit(7)", [(7, None)], "1", 1)],
    ids=["well", "SIGKILL", "exit 7"],
)  # fmt: skip
def test_msrun_collects_its_ranks_at_once_and_tails_their_logs(tmp_path, code, seen, hang, result):
    node = Node(tmp_path, "each", argv=[PYTHON, "-c", MSRUN], env={"CODE": code, "HANG": hang})
    node.plan["launcher"].update(rank_env="MS_NODE_ID", end_words=WORDS_OF_MSRUN)
    node.path = node.write("node1")
    assert node.start().end() == result
    assert (
        [event["rank"] for event in node.events("start")] == [1]
        and list(node.ends()) == [1]
        and node.ends()[1] in seen
    )


# --- mpirun: node 0, its daemon on the peer, a rank

WORDS = [
    " orted",
    "-mca",
    "ess",
    '"env"',
    "-mca",
    "plm_rsh_agent",
    '"python3 -I /of/node1/agent.pyz openmpi"',
    "-mca",
    "ess_base_jobid",
    '"77"',
]
# A daemon notes how it was started and, asked to, starts ranks by the program it is given, whose
# ends it collects at once.
ORTED = f"""exec {PYTHON} -c '
import json, os, subprocess, sys
json.dump({{"argv": sys.argv[1:], "env": dict(os.environ), "cwd": os.getcwd(), "parent": os.getppid()}}, open("orted.json", "w"))
code = 0
for number in os.environ.get("RANKS", "").split():
    agent = ["/usr/bin/python3", "-I", "../agent.pyz", "openmpi", "rank"]
    code = subprocess.call(agent + ["python3", "-c", os.environ["CODE"]], env=dict(os.environ, OMPI_COMM_WORLD_RANK=number)) or code
sys.exit(int(os.environ.get("ORTED_EXIT") or code))' "$@"
"""  # noqa: E501


@pytest.fixture
def peer(tmp_path, monkeypatch):
    """node2 of an attempt by mpirun, its directory longer than a socket's address may be, and an
    ssh that is this machine's shell.
    """
    folder = tmp_path / ("long" * 25)
    node = Node(folder, "first", node="node2")
    program(folder / "node2" / "bin", "orted", ORTED)
    text = 'echo "$1 $2 $3" >>$LOG; KEPT=SESSION=1\n' + gate_ssh(folder, "/usr/bin:/bin")
    tools = program(folder / "tools", "ssh", text)
    open_gate(folder, "node2", ["node1", "node2"], base=str(folder / "node2"))
    monkeypatch.setenv("PATH", tools + os.pathsep + os.environ["PATH"])
    origin = node.write("node1")

    def rsh(*words, host="10.0.0.2", **options):
        argv = [
            PYTHON,
            "-I",
            os.path.join(origin, "agent.pyz"),
            "openmpi",
            "rsh",
            origin,
            "node1",
            host,
        ] + list(words or WORDS)
        return subprocess.Popen(
            argv,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            universal_newlines=True,
            **options,
        )

    node.rsh, node.origin, node.tools = rsh, origin, tools
    node.set = lambda **values: (
        node.plan["env"].update(values),
        node.write("node2"),
        node.write("node1"),
    )
    return node


def daemon_of(node):
    """Return how the daemon was started."""
    return json.loads(
        until(lambda: os.path.exists(os.path.join(node.path, "work", "orted.json")))
        and node.text("work/orted.json")
    )


def test_mpirun_gets_our_programs_and_the_documents_command(tmp_path):
    node = Node(tmp_path, "first", argv=["mpirun", "-n", "4", "python", "tools/train.py"])
    program(tmp_path / "node1" / "bin", "mpirun", 'printf "%s " "$@"; echo; env')
    assert node.start().end() == 0
    command, *environment = node.text().splitlines()
    assert command.split() == node.plan["argv"][1:]
    helper = f"{PYTHON} -I {node.path}/agent.pyz openmpi rsh {node.path} node1"
    assert {
        "OMPI_MCA_plm_rsh_agent=" + helper,
        "OMPI_MCA_orte_fork_agent=python3 -I ../agent.pyz openmpi rank",
        "OF_PLAN=1",
    } <= set(environment)


def test_the_daemon_runs_inside_the_peers_unit_with_the_plans_environment(peer):
    peer.start()
    socket = os.path.join(peer.path, openmpi.SOCKET)
    assert until(lambda: os.path.exists(socket)) and len(socket) > 108
    assert os.stat(socket).st_mode & 0o777 == 0o600
    call = peer.rsh()
    said, _none = call.communicate(timeout=15)
    assert (call.returncode, peer.end(), said) == (0, 0, "")
    found = daemon_of(peer)
    # Node 0's remote shell is no use here.
    assert found["argv"] == [
        "-mca",
        "ess",
        "env",
        "-mca",
        "ess_base_jobid",
        "77",
    ]
    assert (
        found["cwd"] == os.path.join(peer.path, "work")
        and found["parent"] == peer.events("launched")[0]["pid"]
    )
    assert {"OF_PLAN": "1", "OF_NODE": "node2", "TRAINYARD_ATTEMPT": RUN + "/1"}.items() <= found[
        "env"
    ].items()
    assert not {"SESSION", "STRAY"} & set(found["env"])
    assert (
        Path(peer.tools, "ssh.log").read_text(encoding="utf-8")
        == f"-F {peer.folder}/node1/.trainyard/mesh/runs/{RUN}/1/node1/config node2\n"
    )


def test_a_daemons_exit_code_arrives(peer):
    peer.set(ORTED_EXIT="5")
    call = peer.start().rsh()
    assert (call.wait(timeout=15), peer.end()) == (5, 5)


@pytest.mark.parametrize(
    "words",
    [
        ["sh", "-c", "'touch done'"],
        ["/usr/bin/orted", "-mca"],
        [" PATH=/opt/mpi/bin:$PATH ; export PATH ; ", "orted"],
        ["orted;", "id"],
    ],
    ids=["another program", "a path", "a shell's text", "two commands"],
)
def test_nothing_but_the_installed_orted_is_started(peer, words):
    call = peer.start().rsh(*words)
    said, _none = call.communicate(timeout=15)
    assert call.returncode == 77 and "mpirun's daemon is orted" in said
    # The command takes no words of the user's.
    assert "(Debian: openmpi-bin)" in said and "noprefix" not in said
    assert os.listdir(os.path.join(peer.path, "work")) == [".keep"]


@pytest.mark.parametrize(
    "words",
    [
        ["-mca", "ess", "'$(touch done)'"],
        ["-mca", "mca_component_path", "/tmp/evil"],
        ["-mca", "orte_launch_agent", "/tmp/evil"],
        ["-mca", "orte_fork_agent", "/tmp/evil"],
        ["-mca", "plm", "ssh"],
        ["-mca", "ess"],
        ["--daemonize"],
        ["';'", "id"],
    ],
    ids=lambda words: " ".join(words),
)
def test_a_setting_that_the_plan_does_not_have_is_refused(peer, words):
    """The gate refuses it, and so does the unit, should it be asked past the gate."""
    call = peer.start().rsh("orted", *words)
    assert "not those of this plan" in call.communicate(timeout=15)[0]
    assert call.returncode == 77
    assert os.listdir(os.path.join(peer.path, "work")) == [".keep"]
    asked = (
        "import json, sys; sys.path.insert(0, sys.argv[1]); from trainyard.agent import openmpi;"
        " sys.exit(openmpi.door(sys.argv[2], json.loads(sys.argv[3])))"
    )
    spoken = json.dumps(["orted", *(word.strip("'") for word in words)])
    done = subprocess.run(
        [PYTHON, "-c", asked, agent_archive(), peer.path, spoken],
        stderr=subprocess.PIPE,
        text=True,
        timeout=15,
    )
    assert done.returncode == 1 and "not those of this plan" in done.stderr
    assert peer.end() == 1
    assert os.listdir(os.path.join(peer.path, "work")) == [".keep"]


def test_settings_of_the_accepted_plan_and_quoted_words_reach_the_daemon(peer):
    peer.set(OMPI_MCA_btl_tcp_if_include="eth0")
    call = peer.start().rsh(
        "orted",
        "-mca",
        "btl_tcp_if_include",
        '"eth0"',
        "-mca",
        "orte_node_regex",
        '"node[1:1-2]@0(2)"',
    )
    assert call.wait(timeout=15) == 0 and peer.end() == 0
    assert daemon_of(peer)["argv"] == [
        "-mca",
        "btl_tcp_if_include",
        "eth0",
        "-mca",
        "orte_node_regex",
        "node[1:1-2]@0(2)",
    ]


@pytest.mark.parametrize("change", ["the launcher", "the caller"])
def test_only_the_first_node_of_an_mpirun_plan_gets_a_daemon(peer, change):
    if change == "the launcher":
        peer.plan["launcher"]["kind"] = "ranks"
    else:
        peer.plan["nodes"].insert(0, dict(peer.plan["nodes"][0], name="node0"))
    peer.write("node2")
    call = peer.rsh()
    assert (
        call.communicate(timeout=15)[0].startswith("trainyard: refused: ") and call.returncode == 77
    )


def test_an_orted_that_is_not_installed(peer):
    os.unlink(str(peer.folder / "node2" / "bin" / "orted"))
    peer.plan["nodes"][1]["env"]["PATH"] = str(peer.folder / "node2" / "bin")
    peer.write("node2")
    call = peer.start().rsh()
    assert "orted is not installed" in call.communicate(timeout=15)[0] and (
        call.returncode,
        peer.end(),
    ) == (1, 1)


@pytest.mark.parametrize(
    "host", ["10.0.0.1", "node1", "10.9.9.9"], ids=["itself", "itself by name", "a stranger"]
)
def test_a_daemon_somewhere_else_is_refused(peer, host):
    call = peer.rsh(host=host)
    assert "no other node of the plan" in call.communicate(timeout=15)[0]
    assert call.returncode == 1
    assert not os.path.exists(os.path.join(peer.tools, "ssh.log"))


def test_mpirun_may_ask_before_the_unit_is_there(peer):
    shutil.rmtree(peer.path)
    gate = peer.folder / "node2/.trainyard/mesh/runs" / RUN / "1/node2/agent.pyz"
    gate.rename(gate.with_suffix(".later"))
    call = peer.rsh()
    assert until(lambda: os.path.exists(os.path.join(peer.tools, "ssh.log")))
    time.sleep(0.5)
    gate.with_suffix(".later").rename(gate)
    time.sleep(1)
    peer.write("node2")
    peer.start()
    assert (call.wait(timeout=15), peer.end()) == (0, 0)


def test_a_stopped_attempt_gets_no_daemon(peer):
    put(peer.path, {"stop.json": "{}"})
    call = peer.rsh()
    assert "the attempt was stopped" in call.communicate(timeout=15)[0] and call.returncode == 1


def test_a_unit_that_ends_before_its_daemon(peer):
    peer.set(RANKS="2", CODE=LONG)
    call = peer.start().rsh()
    assert until(lambda: peer.events("start"))
    # systemd sends TERM to every process of the unit; the one that waits for the daemon first, or
    # it might still tell how that ended
    for pid in sorted(pids_with_mark(RUN, 1)):
        os.kill(pid, signal.SIGTERM)
    assert "ended before its daemon" in call.communicate(timeout=15)[0]
    assert call.returncode == 1
    peer.process.send_signal(signal.SIGTERM)
    peer.end()
    # Who collects the rank first, its daemon or the runner, is a matter of the machine's load.
    assert peer.ends() in ({2: (None, "SIGTERM")}, {2: (None, None)})


@pytest.mark.parametrize("half", ["", '["orted", "-mca"'], ids=["nothing", "half a line"])
def test_a_request_that_breaks_off(peer, half):
    peer.start()
    assert until(lambda: os.path.exists(os.path.join(peer.path, openmpi.SOCKET)))
    dialled = (
        "import os, socket, sys; s = socket.socket(socket.AF_UNIX); os.chdir(sys.argv[1]);"
        " s.connect(%r); s.send(sys.argv[2].encode())"
    )
    subprocess.run(
        [PYTHON, "-c", dialled % openmpi.SOCKET, peer.path, half], check=True, timeout=15
    )
    assert peer.end() == 1
    said = peer.text()
    assert said.startswith("trainyard: mpirun on node 0 ") and said.endswith(" broke off\n")
    assert said.count("\n") == 1


def test_nobody_waits_for_ever(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(openmpi, "ORDER_SECONDS", 0.2)
    monkeypatch.setattr(openmpi, "UNIT_SECONDS", 0.2)
    (tmp_path / "work").mkdir()
    monkeypatch.chdir(tmp_path / "work")
    assert openmpi.main(["daemon"]) == 1 and "did not ask" in capsys.readouterr().err
    assert openmpi.door(str(tmp_path / "none"), ["orted"]) == 1
    said = capsys.readouterr().err
    assert "within 0 s" in said and os.strerror(errno.ENOENT) in said


@pytest.mark.parametrize(
    "says",
    [
        "head -c 300000000 /dev/zero",
        'yes "$(printf %04000d 0) Permission denied" | head -c 300000000',
    ],
    ids=["a line", "refusals"],
)
def test_what_a_peer_says_without_end_takes_no_memory(says):
    code = (
        "import sys; sys.path.insert(0, sys.argv[1]); from trainyard.agent import openmpi;"
        " code, kept = openmpi.call_door(sys.argv[2:]); print(code, len(kept) < 100000)"
    )

    def limit():
        resource.setrlimit(resource.RLIMIT_AS, (200 << 20, 200 << 20))

    done = subprocess.run(
        [PYTHON, "-c", code, agent_archive(), "sh", "-c", f"({says}) >&2; exit 7"],
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        preexec_fn=limit,
        timeout=60,
    )
    assert done.stdout.split() == [b"7", b"True"]


# --- a rank by mpirun


@pytest.mark.parametrize(
    "code, seen",
    [("import sys, time; time.sleep(1); sys.exit(7)", (7, None)),
    (KILL.replace("0.6", "1"), (None, "SIGKILL")),
     ("import os, time; time.sleep(1); os.abort()", (None, "SIGABRT"))],
    ids=["exit 7", "SIGKILL", "SIGABRT"],
)  # fmt: skip
def test_a_ranks_real_end_is_seen_although_its_daemon_collects_it_at_once(peer, code, seen):
    peer.set(RANKS="2 3", CODE=code)
    call = peer.start().rsh()
    call.wait(timeout=20)
    assert peer.end() != 0 and peer.ends()[2] == seen
    starts = peer.events("start")
    assert [(event["rank"], event["local_rank"]) for event in starts] in (
        [(2, 0)],
        [(2, 0), (3, 1)],
    )


@pytest.mark.parametrize("role", ["MS_WORKER", None], ids=["MindSpore on a CPU", "MPI itself"])
def test_a_rank_gets_what_the_plan_has_for_it(tmp_path, role):
    node = Node(tmp_path, "first")
    node.plan["ranks"][1]["env"] = {"MS_ROLE": role, "MS_NODE_ID": "1"} if role else {}
    node.path = node.write("node1")
    given = {
        "PATH": "/usr/bin:/bin",
        "OMPI_COMM_WORLD_RANK": "1",
        "OMPI_COMMAND": "python",
        "PMIX_RANK": "1",
    }
    argv = [
        PYTHON,
        "-I",
        "../agent.pyz",
        "openmpi",
        "rank",
        "python3",
        "-c",
        (
            "import json, os; print(json.dumps(dict(os.environ)), flush=True); os.system('echo told"
            " >&2')"
        ),
    ]
    said = subprocess.run(
        argv, env=given, cwd=os.path.join(node.path, "work"), stdout=subprocess.PIPE, check=True
    ).stdout
    log = os.path.join(node.path, node.plan["ranks"][1]["log"])
    with open(log, encoding="utf-8") as handle:
        environment, told = handle.read().splitlines()
    assert not said and told == "told" and os.stat(log).st_mode & 0o777 == 0o600
    found = json.loads(environment)
    assert (found.get("MS_ROLE"), found.get("MS_NODE_ID")) == (
        (role, "1") if role else (None, None)
    )
    assert (
        found["TRAINYARD_RANK"] == "1"
        and found["PMIX_RANK"] == "1"
        and ("OMPI_COMMAND" in found) == (role is None)
    )


@pytest.mark.parametrize(
    "code, status",
    [
        ("import sys; sys.exit(7)", 7),
        ("import os; os.abort()", -signal.SIGABRT),
        (LONG, -signal.SIGTERM),
    ],
)
def test_a_rank_ends_as_its_command_does_and_passes_signals_on(tmp_path, code, status):
    node = Node(tmp_path, "first")
    command = [PYTHON, "-c", "open('up', 'w').close()\n" + code]
    argv = [PYTHON, "-I", "../agent.pyz", "openmpi", "rank", *command]
    wrapper = subprocess.Popen(
        argv,
        env={"PATH": "/usr/bin:/bin", "OMPI_COMM_WORLD_RANK": "0"},
        cwd=os.path.join(node.path, "work"),
    )
    assert until(lambda: os.path.exists(os.path.join(node.path, "work", "up")))
    if code == LONG:
        wrapper.terminate()
    assert wrapper.wait(timeout=10) == status


def test_a_rank_whose_command_is_not_there(tmp_path):
    node = Node(tmp_path, "first")
    argv = [PYTHON, "-I", "../agent.pyz", "openmpi", "rank", "no-such-python"]
    work = os.path.join(node.path, "work")
    done = subprocess.run(
        argv,
        env={"PATH": "/usr/bin", "OMPI_COMM_WORLD_RANK": "0"},
        cwd=work,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert done.returncode == 1 and "no-such-python " in done.stderr
    assert os.strerror(errno.ENOENT) in done.stderr


def test_what_a_killed_daemon_left_is_swept_and_nothing_else(tmp_path):
    attempt, uid = Node(tmp_path, "first").path, os.getuid()
    session = tmp_path / "ompi.node1.1000"
    put(session, {"jf.18011/contact.txt": "", "jf.7/contact.txt": ""})
    ours = ["vader_segment.node1.%d.465b0001.%d" % (uid, n) for n in (0, 1)]
    others = [
        "vader_segment.node1.%d.465c0001.0" % uid,
        "vader_segment.node1.%d.465b0001.0" % (uid + 1),
        "something",
    ]
    put(tmp_path / "shm", dict.fromkeys(ours + others, ""))
    given = {
        "PATH": "/usr/bin:/bin",
        "OMPI_COMM_WORLD_RANK": "0",
        "OMPI_MCA_ess_base_jobid": str(0x465B0001),
    }
    given["OMPI_MCA_orte_jobfam_session_dir"] = str(session / "jf.18011")
    subprocess.run(
        [PYTHON, "-I", "../agent.pyz", "openmpi", "rank", "true"],
        env=given,
        cwd=os.path.join(attempt, "work"),
        check=True,
    )
    assert openmpi.sweep(attempt, memory=str(tmp_path / "shm")) == 0
    assert os.listdir(str(session)) == ["jf.7"] and sorted(
        os.listdir(str(tmp_path / "shm"))
    ) == sorted(others)
    put(attempt, {"mpi.json": json.dumps({"folder": str(tmp_path / "shm"), "job": 1})})
    openmpi.sweep(attempt, memory=str(tmp_path / "shm"))
    # Only Open MPI's own directory is removed.
    assert sorted(os.listdir(str(tmp_path / "shm"))) == sorted(others)


def test_the_end_of_the_unit_sweeps(tmp_path):
    node = Node(tmp_path, "first")
    session = tmp_path / "ompi.node1.1000" / "pid.4242"
    put(session, {"contact.txt": ""})
    put(
        node.path,
        {
            "mpi.json": json.dumps({"folder": str(session), "job": 1}),
            "stop.json": json.dumps({"by": "user"}),
        },
    )
    assert attempt_end.finish(node.path, "node1") == 0 and not session.exists()


def test_an_unknown_verb_says_how_it_is_used():
    with pytest.raises(SystemExit, match="openmpi rsh ATTEMPT NODE"):
        openmpi.main(["none"])
