# SPDX-License-Identifier: Apache-2.0
"""fetch_files: real rsync against a pretended node; no name of it becomes a word, and it puts
nothing but the files that were asked for.
"""

from __future__ import annotations

import contextlib
import json
import os
import stat
import subprocess
import sys
import time
from pathlib import Path

import pytest
from ansible_collections.trainyard.cluster.plugins.module_utils.base import safe_names
from ansible_collections.trainyard.cluster.plugins.plugin_utils.config import quota
from ansible_collections.trainyard.cluster.plugins.plugin_utils.logsync import fetcher
from core_support import ROOT, RUN, put

ODD = "a --rsh=sh -c touch$IFS/x.log"
# Runs the remote command here, in the home of the pretended node, and notes how it was called.
SSH = """#!%s
import json, os, sys
words, host = sys.argv[1:], None
with open(%r, "a") as log:
    log.write(json.dumps(words) + "\\n")
while words and words[0].startswith("-"):
    words = words[2:] if words[0] in ("-o", "-p", "-i", "-l", "-F", "-J") else words[1:]
os.environ["HOME"] = %r
os.environ["PATH"] = %r + ":" + os.environ["PATH"]
os.chdir(os.environ["HOME"])
os.execvp("sh", ["sh", "-c", " ".join(words[1:])])
"""


@pytest.fixture
def node(tmp_path):
    """A pretended node: home, bin (first on its PATH), ssh (the words that lead to it) and log (how
    ssh was called).
    """
    home, log, own = tmp_path / "node1", tmp_path / "ssh.log", tmp_path / "bin"
    home.mkdir()
    own.mkdir()
    script = tmp_path / "a folder" / "ssh"
    put(script.parent, {"ssh": SSH % (sys.executable, str(log), str(home), str(own))})
    script.chmod(0o755)
    made = type("Node", (), {})()
    made.home, made.log, made.bin, made.ssh = (
        home,
        log,
        own,
        [str(script), "-T", "-o", "ProxyCommand=nc 'it' \"s\" %h", "-o", 'User="u v"'],
    )
    return made


@pytest.fixture
def fetch(node, tmp_path):
    """Pull from the pretended node: fetch(sizes, ...) -> names; the files come to `fetch.into`."""
    root = tmp_path / "runs" / RUN / "attempt-1"

    def call(sizes, bounds=None, src="log", into=".incoming/node1", **more):
        source = fetcher.source_of("node1", src)
        return fetcher.fetch(
            node.ssh, source, str(root), into, sizes, bounds or quota.Quota(keep_free=0), **more
        )

    call.root, call.into = root, root / ".incoming" / "node1"
    return call


def lay(node, files, folder="log"):
    """Write {name: bytes} on the pretended node; return {name: size}."""
    for name, data in files.items():
        path = Path(node.home, folder, name)
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(data)
    return {name: len(data) for name, data in files.items()}


def tree(path):
    return {
        str(p.relative_to(path)): p.read_bytes()
        for p in Path(path).rglob("*")
        if p.is_file() and not p.is_symlink()
    }


def test_names_of_every_kind_come_whole_and_none_is_a_word(node, fetch, tmp_path):
    names = [
        ODD,
        "#x",
        ";y",
        "a b",
        "*",
        "[x]",
        "?",
        "a:b",
        "host::mod",
        "'q'",
        '"',
        "$HOME",
        "`id`",
        "é",
        "deep/er/file",
        "n" * 200,
        "{a,b}",
        "!x",
        "\\",
    ]
    files = {name: name.encode() * 3 for name in names}
    assert fetch(lay(node, files)) == sorted(names)
    assert tree(fetch.into) == files
    words = [json.loads(line) for line in node.log.read_text().splitlines()]
    assert (
        len(words) == 1
        and words[0][: len(node.ssh) - 1] == node.ssh[1:]
        and words[0][len(node.ssh) - 1] == "node1"
    )
    assert not any(name in word for word in words[0] for name in (ODD, "deep", "host::mod"))
    assert {stat.S_IMODE(path.stat().st_mode) for path in fetch.into.rglob("*")} == {0o600, 0o700}
    assert not Path("/x.log").exists() and not (tmp_path / "x.log").exists()


@pytest.mark.parametrize(
    "name", ["-e sh", "--rsh=touch x", "../x", "a/../../x", "/etc/passwd", "a\nb", "a\0b",
    "\x1b[2J", "n" * 201, "a/" * 17 + "b", "", ".", "a//b", "\udcff"]
)  # fmt: skip
def test_a_name_that_is_refused_starts_nothing(node, fetch, name):
    with pytest.raises(safe_names.UnsafeName):
        fetch({name: 1, "good": 1})
    assert not node.log.exists() and not fetch.root.exists()


@pytest.mark.parametrize("size", [-1, True, "1", None, 1.5, 1 << 60])
def test_a_size_that_is_none_is_refused(node, fetch, size):
    with pytest.raises(fetcher.FetchError):
        fetch({"a": size})
    assert not node.log.exists()


@pytest.mark.parametrize("src", ["-a", "../x", "a\nb", "a/../b", ""])
def test_a_directory_that_is_refused(fetch, src):
    with pytest.raises(fetcher.FetchError):
        fetch({"a": 1}, src=src)


@pytest.mark.parametrize("host", ["-oProxyCommand=x", "a b", "a/b", "u@h", ""])
def test_a_host_that_is_none(host):
    with pytest.raises(fetcher.FetchError):
        fetcher.source_of(host, "x")
    assert (
        fetcher.source_of("::1", "x") == "[::1]:./x/" and fetcher.source_of("h", "/x/") == "h:/x/"
    )


def test_links_pipes_and_devices_stay_where_they_are(node, fetch, tmp_path):
    secret = tmp_path / "secret"
    secret.write_text("of the node")
    sizes = dict(lay(node, {"good": b"g"}), link=11, pipe=5, folder=3)
    os.symlink(secret, node.home / "log" / "link")
    os.mkfifo(node.home / "log" / "pipe")
    (node.home / "log" / "folder").mkdir()
    assert fetch(sizes) == ["good"] and sorted(os.listdir(fetch.into)) in (
        ["folder", "good"],
        ["good"],
    )


@pytest.mark.parametrize("planted", [".incoming", ".incoming/node1", ".incoming/node1/log"])
def test_a_link_that_stands_in_the_way_leads_nowhere(node, fetch, tmp_path, planted):
    sizes = {"log/" + name: size for name, size in lay(node, {"x": b"of the node"}).items()}
    outside = tmp_path / "outside"
    put(outside, {"x": "mine", "node1/x": "mine", "log/x": "mine", "node1/log/x": "mine"})
    before = tree(outside)
    (fetch.root / planted).parent.mkdir(parents=True)
    os.symlink(outside, fetch.root / planted)
    with contextlib.suppress(OSError):
        fetch(sizes, src=".")
    assert tree(outside) == before


def test_a_file_that_is_a_link_here_is_replaced_and_not_written_through(node, fetch, tmp_path):
    mine = tmp_path / "mine"
    mine.write_text("mine")
    fetch.into.mkdir(parents=True)
    os.symlink(mine, fetch.into / "x")
    assert fetch(lay(node, {"x": b"of the node"})) == ["x"] and mine.read_text() == "mine"
    assert not (fetch.into / "x").is_symlink()


def test_a_sender_that_sends_more_than_was_asked_leaves_nothing_of_it(node, fetch):
    """The node's rsync is the training user's own: it gets another list of names."""
    sizes = lay(node, {"good": b"g", "more": b"m" * 100})
    os.symlink("/etc/passwd", node.home / "log" / "link")
    put(node.bin, {"rsync": f'#!/bin/sh\nexec /usr/bin/env -u PATH {_rsync()} "$@" more link\n'})
    (node.bin / "rsync").chmod(0o755)
    with contextlib.suppress(fetcher.FetchError):
        fetch({"good": sizes["good"]})
    assert set(os.listdir(fetch.into)) <= {"good"}


def _rsync():
    return subprocess.run(
        ["sh", "-c", "command -v rsync"], stdout=subprocess.PIPE, text=True, check=True
    ).stdout.strip()


@pytest.mark.parametrize(
    "bounds, said",
    [
        ({"most_bytes": 1 << 20}, "are more than"),
        ({"most_files": 2}, "are more than"),
        ({"keep_free": 1 << 50}, "free"),
    ],
)
def test_a_bound_is_passed_before_a_byte_moves(node, fetch, bounds, said):
    sizes = lay(node, {name: b"x" * (400 << 10) for name in ("a", "b", "c")})
    with pytest.raises(fetcher.BoundExceeded, match=said):
        fetch(sizes, quota.Quota(**dict({"keep_free": 0}, **bounds)))
    assert not node.log.exists()


def test_a_node_that_sends_more_than_it_announced_is_cut_off(node, fetch, monkeypatch):
    monkeypatch.setattr(fetcher, "GROWTH", 1 << 20)
    lay(node, {"a": os.urandom(1 << 10)})
    os.truncate(node.home / "log" / "a", 64 << 20)
    began = time.monotonic()
    assert fetch({"a": 1000}) == []  # larger than announced: left there by --max-size
    # rsync on the node lies about the size, and goes on sending
    monkeypatch.setattr(
        fetcher, "rsync_argv", lambda shell, source, most, options=(): _unbounded(shell, source)
    )
    with pytest.raises(fetcher.FetchError):
        fetch({"a": 1000})
    assert sum(map(len, tree(fetch.into).values())) <= 3 << 20 and time.monotonic() - began < 60


_argv = fetcher.rsync_argv


def _unbounded(shell, source):
    return [word for word in _argv(shell, source, 1) if not word.startswith("--max-size")]


def test_a_node_that_is_silent_is_given_up_and_the_ssh_is_gone(node, fetch):
    put(node.bin, {"rsync": f"#!/bin/sh\necho $$ > {node.bin}/pid\nexec sleep 600\n"})
    (node.bin / "rsync").chmod(0o755)
    with pytest.raises(fetcher.BoundExceeded, match="in time"):
        fetch(lay(node, {"a": b"x"}), seconds=3)
    pid = int((node.bin / "pid").read_text())
    end = time.monotonic() + 10
    while (
        os.path.exists("/proc/%d" % pid)
        and "sleep" in Path("/proc/%d/cmdline" % pid).read_text()
        and time.monotonic() < end
    ):
        time.sleep(0.05)
    assert (
        not os.path.exists("/proc/%d" % pid)
        or "sleep" not in Path("/proc/%d/cmdline" % pid).read_text()
    )


def test_what_is_here_moves_only_the_rest_and_holes_stay_holes(node, fetch):
    data = os.urandom(4 << 20) + bytes(32 << 20) + b"end"
    sizes = lay(node, {"a": data})
    put(fetch.into, {})
    fetch.into.mkdir(parents=True, exist_ok=True)
    (fetch.into / "a").write_bytes(data[: 4 << 20])
    os.link(fetch.into / "a", fetch.root / "here")
    assert fetch(sizes, options=["--ignore-times", "--sparse", "--stats"]) == ["a"]
    assert (fetch.into / "a").read_bytes() == data and (
        fetch.into / "a"
    ).stat().st_blocks * 512 < 8 << 20
    # rsync has not written through to what is here
    assert (fetch.root / "here").read_bytes() == data[: 4 << 20]


def test_an_interrupted_copy_goes_on(node, fetch):
    data = os.urandom(40 << 20)
    sizes = lay(node, {"a": data})
    put(node.bin, {"rsync": f'#!/bin/sh\nexec env -u PATH {_rsync()} --bwlimit=8m "$@"\n'})
    (node.bin / "rsync").chmod(0o755)
    with pytest.raises(fetcher.BoundExceeded):
        fetch(sizes, options=["--partial"], seconds=1.5)
    had = (fetch.into / "a").stat().st_size
    assert 0 < had < len(data)
    (node.bin / "rsync").unlink()
    assert fetch(sizes, options=["--partial"]) == ["a"] and (fetch.into / "a").read_bytes() == data


def test_a_password_goes_to_sshpass_and_stands_in_no_word(node, fetch, tmp_path, monkeypatch):
    program = (
        "#!%s\nimport os, sys\nopen(%r, 'wb').write(os.read(int(sys.argv[1][2:]),"
        " 100))\nos.execvp(sys.argv[2], sys.argv[2:])\n"
    )
    program %= (sys.executable, str(tmp_path / "seen"))
    put(tmp_path / "own", {"sshpass": program})
    (tmp_path / "own" / "sshpass").chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path / "own"), prepend=os.pathsep)
    assert fetch(lay(node, {"a": b"x"}), password="se cret'") == ["a"]
    assert (tmp_path / "seen").read_text() == "se cret'\n" and "cret" not in node.log.read_text()


def test_the_environment_cannot_change_rsyncs_words(node, fetch, monkeypatch):
    for name, value in (
        ("RSYNC_RSH", "false"),
        ("RSYNC_OLD_ARGS", "1"),
        ("RSYNC_PARTIAL_DIR", "/tmp/elsewhere"),
    ):
        monkeypatch.setenv(name, value)
    assert fetch(lay(node, {"a": b"x"}), options=["--partial"]) == ["a"]


def test_the_task_takes_the_connections_own_words(node, tmp_path):
    """One real ansible-playbook against a node that is cut off, one that is refused and one that
    gives what is asked.
    """
    lay(node, {ODD: b"log", "b": b"x" * 3000})
    task = {
        "src": "log",
        "root": str(tmp_path / "runs" / RUN / "attempt-1"),
        "into": ".incoming/{{ inventory_hostname }}",
        "free": "0",
    }
    runs = {
        "good": {"sizes": {ODD: 3}},
        "bounded": {"sizes": {"b": 3000}, "bytes": "1 KiB"},
        "odd": {"sizes": {"../b": 1}},
    }
    tasks = [
        {"fetch_files": dict(task, **more), "register": name, "ignore_errors": True}
        for name, more in runs.items()
    ] + [
        {
            "copy": {
                "content": "{{ {'good': good, 'bounded': bounded, 'odd': odd} | to_json }}",
                "dest": str(tmp_path / "said"),
            },
            "delegate_to": "localhost",
        }
    ]
    host = {
        "ansible_host": "::1", "ansible_port": 2222, "ansible_ssh_executable": node.ssh[0],
        "ansible_user": "u",
        "ansible_ssh_common_args": "-o ProxyJump='a b'",
    }  # fmt: skip
    files = {"play.yml": json.dumps([{"hosts": "node1", "gather_facts": False, "tasks": tasks}])}
    put(tmp_path, dict(files, **{"hosts.yml": json.dumps({"all": {"hosts": {"node1": host}}})}))
    words = [
        os.path.join(os.path.dirname(sys.executable), "ansible-playbook"),
        "-i",
        str(tmp_path / "hosts.yml"),
        str(tmp_path / "play.yml"),
    ]
    words += ["-e", json.dumps({"ansible_python_interpreter": sys.executable})]
    environment = dict(os.environ, ANSIBLE_CONFIG=str(ROOT / "ansible.cfg"))
    done = subprocess.run(
        words,
        cwd=ROOT,
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout
    said = json.loads((tmp_path / "said").read_text())
    assert (said["good"]["brought"], said["good"]["changed"], said["good"]["cut"]) == (
        [ODD],
        True,
        "",
    )
    assert (
        said["bounded"]["cut"] and not said["bounded"]["failed"] and said["odd"]["failed"] is True
    )
    (called,) = [json.loads(line) for line in node.log.read_text().splitlines()]
    for word in (
        "ControlPersist=60s",
        "Port=2222",
        'User="u"',
        "ProxyJump=a b",
        "BatchMode=yes",
        "::1",
    ):
        assert word in called, called
    assert any(word.startswith("ControlPath=") for word in called) and not any(
        "StrictHostKeyChecking" in word for word in called
    )


@pytest.mark.parametrize("word", ["", "a\0b"])
def test_a_word_of_ssh_that_rsync_would_lose_is_refused(word):
    with pytest.raises(fetcher.FetchError):
        fetcher.shell_words(["ssh", word, "-p", "22"])


@pytest.mark.parametrize("path", ["", "-x", "../x", "a/../../x", "a\x1b", 5, None])
def test_a_directory_that_is_none_is_not_read(path):
    with pytest.raises(fetcher.FetchError):
        fetcher.source_of("node1", path)


def test_a_full_disk_here_is_said_in_words(tmp_path):
    """rsync 3.5.0's own lines, from a copy to a full tmpfs."""
    path = tmp_path / "said"
    path.write_text(
        'rsync: [receiver] write failed on "/r/.incoming/node1/log/workerlog.0": No space left on'
        " device (28)\n"
        "rsync error: error in file IO (code 11) at receiver.c(657) [receiver=3.5.0]\n"
    )
    with path.open("rb") as output:
        assert fetcher._failure_text(11, output) == (
            "no room on the controller: No space left on device"
        )
    path.write_text("rsync error: error starting client-server protocol (code 5)\n")
    with path.open("rb") as output:
        assert fetcher._failure_text(5, output).startswith("rsync ended with 5: rsync error")


def test_the_sender_on_the_node_gives_way_to_the_next_attempt(node, fetch):
    text = f'#!/bin/sh\nnice > {node.bin}/niceness\nexec /usr/bin/rsync "$@"\n'
    put(node.bin, {"rsync": text})
    (node.bin / "rsync").chmod(0o755)
    assert fetch(lay(node, {"a": b"x"})) == ["a"]
    assert (node.bin / "niceness").read_text() == "19\n"
