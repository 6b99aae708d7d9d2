# SPDX-License-Identifier: Apache-2.0
"""A node's gate as sshd starts it: real processes, hostile words for every verb, nothing outside
the caller's own attempt.
"""

from __future__ import annotations

import json
import os
import random
import shlex
import shutil
import subprocess
import sys
import time
from pathlib import Path

import pytest
from ansible_collections.trainyard.cluster.plugins.module_utils.agent import peer_gate
from ansible_collections.trainyard.cluster.plugins.module_utils.attempts import mesh_credential
from ansible_collections.trainyard.cluster.plugins.module_utils.mesh import mesh_gate
from ansible_collections.trainyard.cluster.plugins.plugin_utils.agent import zipapp
from core_support import RUN, open_gate, program, put, recorded

OTHER = "20261120-103502-other-1f2e"
REFUSED = mesh_gate.REFUSED
PLAN = {
    "nodes": [{"name": "node1"}, {"name": "node2"}],
    "launcher": {"kind": "command"},
    "suite": {"checkpoints": {"folders": ["output"]}},
}


class Home:
    """The home of node2 with two attempts: one whose key node1 has, and another run's."""

    def __init__(self, folder):
        self.folder, self.home = folder, folder / "node2"
        self.base = self.home / ".trainyard"
        self.tools = program(
            folder / "tools",
            "systemctl",
            'echo "$@" >>$LOG; [ $2 = is-active ] && echo active; exit 0',
        )
        self.run_gate = os.path.join(
            os.path.dirname(open_gate(folder, "node2", ["node1", "node2"])), zipapp.NAME
        )
        self.site_gate = str(self.base / "mesh/gate.py")
        put(self.base / "mesh", {"gate.py": Path(mesh_gate.__file__).read_text(encoding="utf-8")})
        mesh_credential.register(str(self.home), str(self.base))
        for run in (RUN, OTHER):
            text = json.dumps(PLAN)
            record = {
                "run": run,
                "attempt": 1,
                "node": "node2",
                "unit": f"trainyard-{run}-1.service",
            }
            record["plan_sha256"] = __import__("hashlib").sha256(text.encode()).hexdigest()
            put(
                self.base / "runs" / run / "attempt-1",
                {
                    "plan.json": text,
                    "attempt.json": json.dumps(record),
                    "output/4.pdparams": "model",
                    "work/x": "code",
                },
            )

    def call(self, words, *arguments, timeout=20):
        """Call a gate as sshd does; return the completed process."""
        gate = self.run_gate if arguments[:1] == ("gate",) else self.site_gate
        environment = {
            "SSH_ORIGINAL_COMMAND": words,
            "PATH": self.tools + ":/usr/bin:/bin",
            "HOME": str(self.home),
        }
        if words is None:
            del environment["SSH_ORIGINAL_COMMAND"]
        argv = [sys.executable, "-I", gate, *arguments]
        return subprocess.run(
            argv,
            env=environment,
            cwd="/",
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=timeout,
        )

    def of_run(self, words, number="1", peer="node1", **options):
        return self.call(words, "gate", RUN, number, peer, **options)

    def of_site(self, words, **options):
        return self.call(words, "node1", **options)

    def stopped(self, run=RUN, number=1):
        path = self.base / "runs" / run / ("attempt-%d" % number) / "stop.json"
        return json.loads(path.read_text()) if path.exists() else None

    def state(self):
        """Return {path: bytes} of everything below the folder but the record of systemctl's
        calls.
        """
        files = [
            path for path in self.folder.rglob("*") if path.is_file() and "tools" not in path.parts
        ]
        return {str(path): path.read_bytes() for path in files}


@pytest.fixture
def home(tmp_path):
    return Home(tmp_path)


def test_the_verbs(home):
    done = home.of_site("identify")
    assert (done.returncode, len(done.stdout.splitlines())) == (0, 2)
    assert home.of_run("stop 1 lost").returncode == 0
    assert {key: home.stopped()[key] for key in ("by", "from", "reason")} == {
        "by": "peer",
        "from": "node1",
        "reason": "lost",
    }
    assert recorded(home.tools, "systemctl")[-1] == f"--user stop trainyard-{RUN}-1.service"
    assert home.stopped(OTHER) is None


def test_a_run_serves_its_own_checkpoints(home, monkeypatch):
    served = []
    monkeypatch.setattr(peer_gate, "serve", lambda path: served.append(path) or 0)
    monkeypatch.setattr(peer_gate.priority, "lower", lambda: served.append("lower"))
    monkeypatch.setenv("PATH", home.tools + ":/usr/bin:/bin")

    def call(words):
        monkeypatch.setenv("SSH_ORIGINAL_COMMAND", words)
        return peer_gate.main([RUN, "1", "node1"], os.path.dirname(home.run_gate))

    folder = str(home.base / "runs" / RUN / "attempt-1/output")
    assert call("pull 1 output --server --daemon .") == 0
    assert served == ["lower", folder]
    # The start of the next attempt waits for what one that has ended has left.
    for state, expected in (("active", ["lower", folder]), ("failed", [folder])):
        program(home.folder / "tools", "systemctl", f"echo ActiveState={state}")
        served.clear()
        assert call("pull 1 output --server --daemon .") == 0
        assert served == expected, state
    for words in (
        "pull 1 work --server --daemon .",
        "pull 1 output/.. --server --daemon .",
        "pull 2 output --server --daemon .",
        f"pull {OTHER} 1 output --server --daemon .",
        "pull 1 output --server --sender .",
        "pull 1 output --server --daemon . --config=/x",
    ):
        assert call(words) == REFUSED, words
    # A link that leads out of the attempt.
    (home.base / "runs" / RUN / "attempt-1/output").rename(home.folder / "elsewhere")
    os.symlink(home.folder / "elsewhere", folder)
    assert call("pull 1 output --server --daemon .") == REFUSED
    assert len(served) == 1


@pytest.mark.parametrize("uid, expected", [(0, True), (1000, False)])
def test_rsync_changes_no_account_where_it_cannot(home, monkeypatch, uid, expected):
    """rsync 3.5.0 calls setgroups for a group that it is told, which only root may do."""
    written = []
    monkeypatch.setattr(mesh_gate.os, "getuid", lambda: uid)
    monkeypatch.setattr(
        mesh_gate.subprocess,
        "call",
        lambda argv, env: written.append(Path(argv[3].partition("=")[2]).read_text()) or 0,
    )
    assert mesh_gate.serve(str(home.folder)) == 0
    lines = written[0].splitlines()
    assert ("uid = 0" in lines, "gid = 0" in lines) == (expected, expected)
    assert expected or not [line for line in lines if line.startswith(("uid", "gid"))]


def test_the_beat_goes_on_while_somebody_listens(home):
    environment = {"SSH_ORIGINAL_COMMAND": "beat 1", "PATH": home.tools + ":/usr/bin:/bin"}
    argv = [sys.executable, "-I", home.run_gate, "gate", RUN, "1", "node1"]
    with subprocess.Popen(argv, env=environment, stdout=subprocess.PIPE, text=True) as call:
        assert set(json.loads(call.stdout.readline())) == {"state", "holds", "ended"}
        call.stdout.close()
        assert call.wait(timeout=10) == 0


# --- hostile words

INJECTIONS = [
    "; touch {out}",
    "$(touch {out})",
    "`touch {out}`",
    "| touch {out}",
    "&& touch {out}",
    "\ntouch {out}",
    "> {out}",
    "'; touch {out} #",
]
WORDS = [RUN, OTHER, "1", "0", "2", "-1", "+1", "1e0", "01", "١", "99999999999", "node1", "node2",
    "../..", "/etc/passwd", "..", ".", "", "-", "--", "peer",
         "data", "code", "0" * 16, "0" * 17,
         "hang", "lost", "user", "output", "output/..", "output/../..", "/", "plan.json",
         "--server", "--sender", "--daemon", "--config=/etc/x", "-e.LsfxC",
         "orted", "-mca", "plm_rsh_agent", "touch", "sh", "-c", "id", "python3", "-I", "a" * 20000,
         "\x1b[2J", "é", "%s", "{run}", "~", "*", "#"]  # fmt: skip
VERBS = {
    "run": [
        "stop",
        "beat",
        "door",
        "evidence",
        "shell",
        "identify",
        "pull",
        "rsync --server --sender -logDtpr .",
        "scp -f",
        "sftp-server",
        "/bin/sh",
    ],
    "site": [
        "identify",
        "pull",
        "tree",
        "stop 1 peer",
        "beat 1",
        "door 1 orted",
        "rsync --server --sender -logDtpr . /",
        "bash",
        "cat /etc/machine-id",
        "python3 -I -",
    ],
}


def generated(kind, count, seed):
    """Return hostile commands for every verb of a gate: known words in odd order, with
    injections.
    """
    chance, found = random.Random(seed), []
    for number in range(count):
        verb = VERBS[kind][number % len(VERBS[kind])]
        words = [chance.choice(WORDS) for _word in range(chance.randint(0, 5))]
        text = " ".join(
            [verb, *(word if chance.random() < 0.5 else shlex.quote(word) for word in words)]
        )
        found.append(text + (chance.choice(INJECTIONS) if chance.random() < 0.4 else ""))
    return found


def sound(kind, text):
    """Whether a generated command is, by chance, one that the gate is to carry out; it was not
    generated to be one.
    """
    try:
        words = shlex.split(text)
    except ValueError:
        return False
    if (
        "\n" in text
        or len(text) > mesh_gate.LONGEST
        or not text.isascii()
        or not text.isprintable()
    ):
        return False
    if kind == "site":
        return words == ["identify"] or (
            words[:1] == ["tree"] and words[1:] in (["data", "0" * 16], ["code", "0" * 16])
        )
    if words[:1] == ["beat"]:
        return len(words) == 2 and words[1] in ("0", "1")
    return (
        words[:1] == ["stop"]
        and len(words) == 3
        and words[1] in ("0", "1")
        and words[2] in peer_gate.REASONS
    )


@pytest.mark.parametrize("kind", ["run", "site"])
def test_hostile_words_are_refused_and_change_nothing(home, kind, monkeypatch, capfd):
    """Every verb with generated words: carried out by the gate's own code, called in this process
    for speed; six of each as sshd does it.
    """
    out = home.folder / "evil"
    texts = [
        text.replace("{out}", str(out))
        for text in generated(kind, 1500, 11)
        if not sound(kind, text)
    ]
    arguments = ["gate", RUN, "1", "node1"] if kind == "run" else ["node1"]
    monkeypatch.setattr(mesh_gate, "__file__", home.site_gate)
    monkeypatch.setattr(peer_gate, "PLAN_SECONDS", 0)
    monkeypatch.setenv("PATH", home.tools + ":/usr/bin:/bin")
    monkeypatch.setattr(
        mesh_gate.subprocess,
        "call",
        lambda *words, **_more: pytest.fail(f"a program was started: {words!r}"),
    )
    monkeypatch.setattr(
        mesh_gate.os, "execv", lambda *words: pytest.fail(f"a program was started: {words!r}")
    )
    before, wrong = home.state(), []
    for text in texts:
        monkeypatch.setenv("SSH_ORIGINAL_COMMAND", text) if "\0" not in text else None
        if kind == "run":
            code = peer_gate.main(arguments[1:], os.path.dirname(home.run_gate))
        else:
            code = mesh_gate.main(arguments)
        wrong += [] if code == REFUSED else [(code, text)]
    assert len(texts) > 1300 and wrong == []
    assert home.state() == before and not out.exists() and recorded(home.tools, "systemctl") == []
    for text in random.Random(3).sample(texts, 6):
        assert home.call(text, *arguments).returncode == REFUSED
    assert home.state() == before and not out.exists()
    shown = capfd.readouterr().err
    # What a caller sends is not sent back as it is.
    assert "\x1b" not in shown


@pytest.mark.parametrize(
    "text",
    [
        None,
        "",
        " ",
        "sh",
        "bash -i",
        "id",
        "cat /etc/machine-id",
        "identify; id",
        "internal-sftp",
        "identify\n",
        "identify\t",
        "stop\t1\tpeer",
        "identify" + " " * mesh_gate.LONGEST,
        "stop 1 peer" + " " * mesh_gate.LONGEST,
        "stop 1 peer \u00a0",
    ],
)
@pytest.mark.parametrize("kind", ["of_run", "of_site"])
def test_there_is_no_shell(home, kind, text):
    done = getattr(home, kind)(text)
    assert (done.returncode, done.stdout) == (REFUSED, "")


def test_a_key_is_for_its_own_attempt(home):
    before = home.state()
    for words in ("stop 2 peer", "beat 2", "door 2 orted", f"stop {OTHER} peer"):
        assert home.of_run(words).returncode == REFUSED
    # A line of another attempt.
    assert home.of_run("stop 1 peer", number="2").returncode == REFUSED
    # Not a node of this attempt.
    assert home.of_run("stop 1 peer", peer="node9").returncode == REFUSED
    assert home.of_run("stop 1 peer", peer="node2").returncode == REFUSED, "itself"
    # Another run has a gate of its own.
    assert home.call("stop 1 peer", "gate", OTHER, "1", "node1").returncode == REFUSED
    assert home.state() == before and recorded(home.tools, "systemctl") == []


def test_a_machine_that_has_no_part_in_it_refuses(home):
    path = Path(home.run_gate).with_name("machine.json")
    machine = json.loads(path.read_text())
    path.write_text(json.dumps(dict(machine, identity="0" * 64)))
    assert home.of_run("stop 1 peer").returncode == REFUSED
    # a home that several machines share: the entry of this one counts, whichever node's line was
    # taken
    put(
        path.parent.parent / "node7",
        {
            "machine.json": json.dumps(
                dict(
                    machine, node="node7", base=str(home.folder / "seven"), nodes=["node1", "node7"]
                )
            )
        },
    )
    assert home.of_run("stop 1 peer").returncode == 0
    assert (
        home.folder / "seven/runs" / RUN / "attempt-1/stop.json"
    ).exists() and home.stopped() is None


def test_a_daemon_is_refused_where_the_plan_has_another_launcher(home):
    done = home.of_run("door 1 orted -mca ess env")
    assert done.returncode == REFUSED and "mpirun" in done.stderr


def test_a_plan_that_was_changed_is_not_accepted(home, monkeypatch):
    path = home.base / "runs" / RUN / "attempt-1/plan.json"
    path.write_text(json.dumps(dict(PLAN, launcher={"kind": "first"})))
    put(path.parent, {"stop.json": "{}"})
    assert home.of_run("door 1 orted -mca ess env").returncode == REFUSED


# --- checkpoints


@pytest.fixture
def carrier(home):
    """Fetch from node2's gate with rsync itself; return its exit code and the files that
    arrived.
    """
    script = (
        'while [ "$1" != "${1#-}" ]; do shift 2; done; shift; export SSH_ORIGINAL_COMMAND="$*";'
        f" exec {sys.executable} -I {home.site_gate} node1"
    )
    program(home.folder / "tools", "ssh", script)

    def fetch(verb, *names, module="checkpoint", options=("--times",)):
        target = home.folder / "target"
        shutil.rmtree(target, ignore_errors=True)
        target.mkdir()
        argv = [
            "rsync",
            *options,
            "--files-from=-",
            "-e",
            str(home.folder / "tools/ssh") + " -F x",
            "--rsync-path=" + verb,
        ]
        done = subprocess.run(
            [*argv, f"node2::{module}/", str(target)],
            input="".join(name + "\n" for name in names),
            capture_output=True,
            text=True,
            timeout=20,
        )
        return done.returncode, sorted(
            str(path.relative_to(target)) for path in target.rglob("*") if path.is_file()
        )

    return fetch


def test_a_checkpoint_is_served_to_rsync(carrier):
    assert carrier(f"pull {OTHER} 1 output", "4.pdparams") == (0, ["4.pdparams"])


@pytest.mark.parametrize(
    "verb",
    [f"pull {RUN} 1 .", f"pull {RUN} 1 output/..", f"pull {RUN} 1 work", f"pull {RUN} 2 output",
    f"pull {RUN} 0 output", "pull ../.. 1 output",
     f"pull {RUN} 1 /etc", "pull", "rsync", f"pull {RUN} 1 output --sender"],
)  # fmt: skip
def test_other_folders_are_not_served(carrier, verb):
    code, files = carrier(verb, "plan.json", "passwd", "x")
    assert code != 0 and files == []


@pytest.mark.parametrize(
    "words",
    [
        "--server --sender .",
        "--server --daemon /",
        "--server --daemon . x",
        "--daemon --server .",
        "",
    ],
)
def test_rsync_gets_no_word_of_the_callers(home, words):
    assert home.of_site(f"pull {RUN} 1 output {words}").returncode == REFUSED


@pytest.mark.parametrize(
    "name",
    [
        "../plan.json",
        "../../attempt-1/plan.json",
        "/etc/passwd",
        "out/../../plan.json",
        "../output2/x",
    ],
)
def test_names_that_lead_out_of_the_folder_bring_nothing(carrier, name):
    assert carrier(f"pull {RUN} 1 output", name)[1] == []


def test_nothing_is_written_and_no_link_leads_out(home, carrier):
    secret = home.folder / "secret"
    secret.write_text("secret")
    (home.base / "runs" / RUN / "attempt-1/output/link").symlink_to(secret)
    assert carrier(f"pull {RUN} 1 output", "link", options=("--copy-links",))[1] == []
    assert (
        carrier(f"pull {RUN} 1 output", "link", options=("--remove-source-files", "--times"))[1]
        == []
    )
    before = home.state()
    argv = [
        "rsync",
        "-r",
        "-e",
        str(home.folder / "tools/ssh") + " -F x",
        f"--rsync-path=pull {RUN} 1 output",
        str(secret),
        "node2::checkpoint/",
    ]
    assert subprocess.run(argv, capture_output=True, timeout=20).returncode != 0
    assert home.state() == before
    outside = home.base / "runs" / RUN / "attempt-1/output"
    shutil.rmtree(outside)
    outside.symlink_to(home.folder)
    assert carrier(f"pull {RUN} 1 output", "secret")[1] == []


def test_it_ends_when_its_caller_does(home):
    started = time.monotonic()
    home.of_run("door 1 orted", timeout=15)
    assert time.monotonic() - started < 10
