# SPDX-License-Identifier: Apache-2.0
"""A tree goes from node to node while it arrives: real gates as processes, sources that die, are
silent, lie or give up, and a node that goes on where an earlier try ended.
"""

from __future__ import annotations

import hashlib
import json
import os
import sys
import threading
import time
from pathlib import Path

import pytest
from ansible_collections.trainyard.cluster.plugins.module_utils.attempts import mesh_credential
from ansible_collections.trainyard.cluster.plugins.module_utils.base import manifest
from ansible_collections.trainyard.cluster.plugins.module_utils.inputs import (
    source_choice,
    tree_install,
    tree_relay,
    tree_state,
)
from ansible_collections.trainyard.cluster.plugins.module_utils.mesh import (
    mesh_gate,
    tree_sender,
)
from ansible_collections.trainyard.cluster.plugins.plugin_utils.inputs import tree_route
from core_support import put

KIND = "data"
LARGE = os.urandom(700_000)  # more than two frames


class Node:
    """A node of the site: its home with the product's directory and the mesh's gate."""

    def __init__(self, folder, name):
        self.home = folder / name
        self.base = str(self.home / ".trainyard")
        for program, name in ((mesh_gate, "gate.py"), (tree_sender, "tree_sender.py")):
            text = Path(program.__file__).read_text(encoding="utf-8")
            put(self.home / ".trainyard/mesh", {name: text})
        mesh_credential.register(str(self.home), self.base)

    def argv(self, digest, words=None):
        """Return the command that starts this node's gate as sshd does."""
        words = words or f"tree {KIND} {digest[:16]}"
        gate = str(self.home / ".trainyard/mesh/gate.py")
        environment = [f"SSH_ORIGINAL_COMMAND={words}", f"HOME={self.home}"]
        return ["env", *environment, sys.executable, "-I", gate, "node9"]

    def staging(self, digest):
        return tree_install.tree_paths(self.base, KIND, digest)[1]


@pytest.fixture
def tree(tmp_path):
    """(root, manifest, digest) of the controller's tree."""
    files = {f"part{number % 3}/{number:03d}.txt": f"{number}\n" for number in range(40)}
    root = put(tmp_path / "source", {**files, "empty": "", "run.sh": "#!/bin/sh\n"})
    Path(root, "part1/large.bin").write_bytes(LARGE)
    os.chmod(os.path.join(root, "run.sh"), 0o755)
    os.symlink("part1/large.bin", os.path.join(root, "link"))
    entries = manifest.scan(root)
    return root, entries, manifest.digest(entries)


@pytest.fixture
def nodes(tmp_path):
    return [Node(tmp_path, f"node{number}") for number in (1, 2, 3)]


@pytest.fixture(autouse=True)
def quick(monkeypatch):
    monkeypatch.setattr(tree_relay, "SILENCE_SECONDS", 3)


def send_slowly(root, entries, staging, pause=0.01):
    """Do what rsync does: files in its order, each growing under a name of rsync's own."""
    for path in sorted(entries, key=tree_relay.order_key):
        source, target = os.path.join(root, path), os.path.join(staging, path)
        os.makedirs(os.path.dirname(target), exist_ok=True)
        if os.path.islink(source):
            os.symlink(os.readlink(source), target)
            continue
        growing = os.path.join(os.path.dirname(target), f".{os.path.basename(path)}.Ab12Cd")
        with open(source, "rb") as reader, open(growing, "wb") as writer:
            for chunk in iter(lambda reader=reader: reader.read(200_000), b""):
                writer.write(chunk)
                writer.flush()
                time.sleep(pause)
        os.chmod(growing, os.stat(source).st_mode)
        os.rename(growing, target)


def fetch(node, digest, *sources, stall=5, most=100_000):
    argvs = {f"node{number}": argv for number, argv in enumerate(sources, 1)}
    return tree_relay.fetch(node.base, KIND, digest, argvs, stall, most)


def test_a_tree_goes_through_a_chain_while_it_arrives_and_is_read_once(tree, nodes, monkeypatch):
    root, entries, digest = tree
    first, second, third = nodes
    results = {}
    followers = [
        threading.Thread(
            target=lambda: results.update(second=fetch(second, digest, first.argv(digest)))
        ),
        threading.Thread(
            target=lambda: results.update(third=fetch(third, digest, second.argv(digest)))
        ),
    ]
    for follower in followers:  # before anything is there
        follower.start()
    time.sleep(0.3)
    tree_relay.begin(first.base, KIND, digest, entries)
    send_slowly(root, entries, first.staging(digest))
    for follower in followers:
        follower.join(30)
    size = sum(entry[1] for entry in entries.values() if entry[0] != "l")
    assert results == {"second": (True, [], size), "third": (True, [], size)}
    # What was verified when it arrived is not read again.
    monkeypatch.setattr(manifest, "file_sha256", lambda path: pytest.fail(f"{path} is read"))
    for node in (second, third):
        tree_install.switch_in(node.base, KIND, digest)
        assert tree_state.look(node.base, KIND, digest)["ok"]
        final = tree_install.tree_paths(node.base, KIND, digest)[0]
        assert os.readlink(os.path.join(final, "link")) == "part1/large.bin"
        assert os.listdir(os.path.join(node.base, "staging")) == []
        assert not os.path.exists(final + tree_install.LOCK)


def placed(node, tree):
    """Give a node the whole tree."""
    root, entries, digest = tree
    tree_relay.begin(node.base, KIND, digest, entries)
    send_slowly(root, entries, node.staging(digest), pause=0)
    tree_install.switch_in(node.base, KIND, digest)


def test_a_node_goes_on_where_an_earlier_try_ended(tree, nodes):
    _root, entries, digest = tree
    placed(nodes[0], tree)
    put(nodes[1].staging(digest), {"part0/000.txt": "0\n", "part0/003.txt": "X\n", "run.sh": "#!"})
    Path(nodes[1].staging(digest), "part1").mkdir()
    Path(nodes[1].staging(digest), "part1/large.bin").write_bytes(LARGE[:600_000])
    complete, said, received = fetch(nodes[1], digest, nodes[0].argv(digest))
    assert (complete, said) == (True, [])
    assert received < len(LARGE), "what was there is not sent again"
    tree_install.switch_in(nodes[1].base, KIND, digest)
    assert tree_state.look(nodes[1].base, KIND, digest)["ok"]


def test_a_wrong_beginning_of_an_earlier_try_is_sent_again(tree, nodes):
    _root, _entries, digest = tree
    placed(nodes[0], tree)
    put(nodes[1].staging(digest), {"run.sh": "#?"})
    complete, said, _received = fetch(nodes[1], digest, nodes[0].argv(digest))
    assert complete and said == ["node1: sends other content of run.sh"]


def script(tmp_path, name, text):
    """Return the command of a source that sends what a script prints."""
    path = tmp_path / f"{name}.py"
    path.write_text("import json, sys, time\nout = sys.stdout.buffer\n" + text)
    return [sys.executable, str(path)]


MANIFEST = """
entries = json.dumps(ENTRIES).encode()
out.write(json.dumps({"manifest": len(entries)}).encode() + b"\\n" + entries); out.flush()
files = json.loads(sys.stdin.readline())["files"]

def index_of(path):
    return [file[0] for file in files].index(path)

def frame(index, data):
    out.write(json.dumps({"file": index, "bytes": len(data)}).encode() + b"\\n" + data); out.flush()

"""
TEXT_SIZES = "{k: [a, str(b), c] for k, (a, b, c) in ENTRIES.items()}"
TRICKLE = "while True: frame(index_of('part1/large.bin'), b'x'); time.sleep(0.3)"
TWO_FILES = "frame(index_of('run.sh'), b'#'); frame(index_of('run.sh') - 1, b'x')"
# {name: (what the source does, what is said of it)}.
BAD_SOURCES = {
    "dead": ("", "ended"),
    "silent": ("time.sleep(60)", "nothing for 3 s"),
    "beats alone": (
        "while True: print(json.dumps({'beat': 0}), flush=True); time.sleep(0.1)",
        "sends no manifest",
    ),
    "no frames": ("print('hello', flush=True)", "sends no frames"),
    "an endless line": ("while True: out.write(b'x' * 1000)", "sends no frames"),
    "no manifest": ("print(json.dumps({'manifest': -1}), flush=True)", "sends no manifest"),
    "another manifest": (
        MANIFEST.replace("ENTRIES", "{'x': ['f', 1, '0']}"),
        "of another tree",
    ),
    "a manifest with sizes as text": (MANIFEST.replace("ENTRIES", TEXT_SIZES), "of another tree"),
    "a manifest that is too large": (
        "print(json.dumps({'manifest': 200_000}), flush=True)",
        "sends no manifest",
    ),
    "empty frames": (MANIFEST + "frame(0, b'')", "sends no frames"),
    "a trickle": (MANIFEST + TRICKLE, "no progress for"),
    "too much of a file": (MANIFEST + "frame(0, b'x' * 1000)", "too much of"),
    "a file nobody asked for": (MANIFEST + "frame(10**6, b'x')", "sends no frames"),
    "a text for a count": (MANIFEST + "frame('0', b'x')", "sends no frames"),
    "another content": (
        MANIFEST + "frame(index_of('run.sh'), b'#!/bin/xx\\n')",
        "other content of run.sh",
    ),
    "another link": (MANIFEST + "frame(index_of('link'), b'/etc')", "another link for link"),
    "two files at once": (MANIFEST + TWO_FILES, "before the end of run.sh"),
    "given up": (MANIFEST + "print(json.dumps({'gone': 0}), flush=True)", "given it up"),
}


@pytest.mark.parametrize("name", sorted(BAD_SOURCES))
def test_a_bad_source_is_named_and_the_next_one_serves(tree, nodes, tmp_path, name):
    _root, entries, digest = tree
    placed(nodes[0], tree)
    text, words = BAD_SOURCES[name]
    bad = script(tmp_path, "bad", text.replace("ENTRIES", repr(entries)))
    complete, said, _received = fetch(nodes[1], digest, bad, nodes[0].argv(digest), stall=1)
    assert complete and words in said[0], said
    # A second try after a wrong content, which the next source gets too if it was left by this one.
    assert len(said) == (2 if "other content" in words or name == "a trickle" else 1)
    tree_install.switch_in(nodes[1].base, KIND, digest)
    assert tree_state.look(nodes[1].base, KIND, digest)["ok"]
    assert not os.path.exists(os.path.join(nodes[1].base, "run.sh"))


def test_a_source_that_stands_still_is_left(tree, nodes):
    _root, entries, digest = tree
    tree_relay.begin(nodes[0].base, KIND, digest, entries)  # and nothing comes
    complete, said, _received = fetch(nodes[1], digest, nodes[0].argv(digest), stall=1)
    assert not complete and said == ["node1: no progress for 1 s"]


def slow_source(tmp_path, entries, data):
    """Return the command of a source that sends 10 kB a second of the large file."""
    text = f"""
data = {data!r}
for place in range(0, len(data), 1000):
    frame(index_of('part1/large.bin'), data[place:place + 1000]); time.sleep(0.1)
"""
    return script(tmp_path, "slow", (MANIFEST + text).replace("ENTRIES", repr(entries)))


def test_a_slow_source_is_left_and_what_it_has_sent_is_kept(tree, nodes, tmp_path, monkeypatch):
    monkeypatch.setattr(source_choice, "TRIAL_SECONDS", 0.5)
    # What has come is not read again to go on with its digest.
    monkeypatch.setattr(tree_relay, "open", pytest.fail, raising=False)
    _root, entries, digest = tree
    placed(nodes[0], tree)
    slow = slow_source(tmp_path, entries, LARGE[:100_000])
    begun = time.monotonic()
    complete, said, received = fetch(nodes[1], digest, slow, nodes[0].argv(digest))
    assert complete and said == [] and time.monotonic() - begun < 10
    assert received == sum(entry[1] for entry in entries.values() if entry[0] != "l")


def test_a_node_is_not_blamed_for_what_another_one_has_sent(tree, nodes, tmp_path, monkeypatch):
    monkeypatch.setattr(source_choice, "TRIAL_SECONDS", 0.5)
    _root, entries, digest = tree
    placed(nodes[0], tree)
    slow = slow_source(tmp_path, entries, b"x" * 100_000)
    blamed = []
    fail = source_choice.SourceChoice.fail
    monkeypatch.setattr(
        source_choice.SourceChoice, "fail", lambda self: (blamed.append(self.node), fail(self))
    )
    complete, said, _received = fetch(nodes[1], digest, slow, nodes[0].argv(digest))
    assert complete and said == ["node2: sends other content of part1/large.bin"]
    assert blamed == []


@pytest.mark.parametrize(
    ("offset", "kind"), [(0, tree_relay.OtherContent), (3, tree_relay.ContentOfSeveral)]
)
def test_other_content_is_of_several_where_a_part_was_there(nodes, offset, kind):
    digest = "5" * 64
    staging = nodes[0].staging(digest)
    put(staging, {"file": "x" * offset})
    receiver = tree_relay.Receiver(nodes[0].base, KIND, digest, 5, 1000, None)
    receiver.entries, receiver.missing = {"file": ["f", offset, "0" * 64]}, {"file"}
    receiver._open("file", offset)
    with pytest.raises(tree_relay.OtherContent) as raised:
        receiver._finish()
    receiver.close()
    assert raised.type is kind and not os.path.exists(os.path.join(staging, "file"))


def test_a_source_that_is_tried_and_sends_nothing_is_soon_left(tree, nodes, tmp_path, monkeypatch):
    monkeypatch.setattr(source_choice, "TRIAL_SECONDS", 0.5)
    monkeypatch.setattr(tree_relay, "TRIAL_PATIENCE_SECONDS", 1)
    _root, entries, digest = tree
    slow = slow_source(tmp_path, entries, LARGE[:30_000])
    tree_relay.begin(nodes[0].base, KIND, digest, entries)  # and nothing comes
    begun = time.monotonic()
    complete, said, received = fetch(nodes[1], digest, slow, nodes[0].argv(digest), stall=60)
    assert not complete and said[0] == "node2: no progress for 1 s"
    assert received > 20_000 and time.monotonic() - begun < 30


def test_those_who_wait_for_a_node_that_gives_up_hear_it_at_once(tree, nodes):
    _root, entries, digest = tree
    tree_relay.begin(nodes[0].base, KIND, digest, entries)
    threading.Timer(0.5, tree_relay.give_up, (nodes[0].base, KIND, digest)).start()
    begun = time.monotonic()
    complete, said, _received = fetch(nodes[1], digest, nodes[0].argv(digest))
    assert not complete and said == ["node1: has given it up"]
    assert time.monotonic() - begun < 10


def test_each_node_waits_longer_than_the_one_before():
    seconds = [tree_route.stall_seconds(node, CHAIN) for node in CHAIN[:3]]
    assert seconds == [20, 30, 40]


@pytest.mark.parametrize(
    "request_line",
    [
        b"x\n",
        b"{}\n",
        b'{"files": [["../x", "f", 0, 1]]}\n',
        b'{"files": [["/etc/passwd", "f", 0, 1]]}\n',
        b'{"files": [["a//b", "f", 0, 1]]}\n',
        b'{"files": [["a\\u0000", "f", 0, 1]]}\n',
        b'{"files": [["a", "f", 0]]}\n',
        b'{"files": [[1, "f", 0, 1]]}\n',
        b'{"files": [["a", "f", -1, 1]]}\n',
        b'{"files": [["a", "f", Infinity, 1]]}\n',
    ],
)
def test_the_gate_sends_files_of_the_tree_alone(request_line):
    class Requests:
        def readline(self, _limit):
            return request_line

    with pytest.raises(tree_sender.Refused):
        tree_sender.read_request(Requests(), 100)


def test_the_gate_follows_no_link_out_of_the_tree(tree, nodes, tmp_path):
    _root, entries, digest = tree
    placed(nodes[0], tree)
    final = tree_install.tree_paths(nodes[0].base, KIND, digest)[0]
    secret = put(tmp_path / "secret", {"000.txt": "0\n", "large.bin": ""})
    os.chmod(final, 0o700)
    os.rename(os.path.join(final, "part0"), os.path.join(final, "old"))
    os.symlink(secret, os.path.join(final, "part0"))
    os.unlink(os.path.join(final, "run.sh"))
    os.symlink("/etc/hostname", os.path.join(final, "run.sh"))
    sender = tree_sender.TreeSender([nodes[0].base], KIND, digest[:16], None)
    for path in ("part0/000.txt", "run.sh"):
        assert sender.grown(path, 0, 2) is None
    descriptor = sender.grown("part1/large.bin", 0, len(LARGE))
    assert os.read(descriptor, 10) == LARGE[:10]
    os.close(descriptor)


def test_the_gate_serves_no_damaged_copy_while_it_is_repaired(tree, nodes):
    placed(nodes[0], tree)
    sender = tree_sender.TreeSender([nodes[0].base], KIND, tree[2][:16], None)
    assert sender.manifest() and not sender.is_gone()
    os.makedirs(nodes[0].staging(tree[2]))
    assert sender.manifest() is None and sender.grown("run.sh", 0, 10) is None


def test_two_commands_bring_one_tree_one_after_the_other(tree, nodes, monkeypatch):
    _root, _entries, digest = tree
    placed(nodes[0], tree)
    monkeypatch.setattr(tree_install, "HOLD_SECONDS", 0.5)
    with tree_install.hold(nodes[1].base, KIND, digest):
        with pytest.raises(tree_install.TreeError, match="another command"):
            fetch(nodes[1], digest, nodes[0].argv(digest))
        with pytest.raises(tree_install.TreeError, match="another command"):
            tree_install.switch_in(nodes[1].base, KIND, digest)
    assert fetch(nodes[1], digest, nodes[0].argv(digest))[0]


@pytest.mark.parametrize(
    "words", ["tree", "tree logs 0", "tree data ../x", "tree data 0123456789abcde"]
)
def test_the_gate_knows_trees_by_kind_and_digest(nodes, words):
    done = __import__("subprocess").run(
        nodes[0].argv("0" * 64, words), capture_output=True, text=True, timeout=20, stdin=-3
    )
    assert done.returncode == mesh_gate.REFUSED and not done.stdout


def test_a_gate_without_its_sender_refuses(tree, nodes):
    placed(nodes[0], tree)
    (nodes[0].home / ".trainyard/mesh/tree_sender.py").unlink()
    done = __import__("subprocess").run(
        nodes[0].argv(tree[2]), capture_output=True, timeout=20, stdin=-3
    )
    assert done.returncode == mesh_gate.REFUSED and not done.stdout


def test_a_manifest_of_another_digest_is_not_begun(tree, nodes):
    with pytest.raises(tree_install.TreeError):
        tree_relay.begin(nodes[0].base, KIND, hashlib.sha256(b"").hexdigest(), tree[1])


def test_a_staged_tree_without_its_manifest_is_not_switched_in(tree, nodes):
    root, entries, digest = tree
    send_slowly(root, entries, nodes[0].staging(digest), pause=0)
    with pytest.raises(tree_install.TreeError, match="manifest"):
        tree_install.switch_in(nodes[0].base, KIND, digest)
    Path(nodes[0].staging(digest) + tree_install.MANIFEST).write_text(json.dumps({"x": 1}))
    with pytest.raises(tree_install.TreeError, match="manifest"):
        tree_install.switch_in(nodes[0].base, KIND, digest)


CHAIN = [f"node{number}" for number in range(1, 13)]


@pytest.mark.parametrize(
    "node, size, holders, sources",
    [
        ("node1", 1 << 30, [], []),
        ("node1", 1 << 30, ["old"], ["old"]),
        ("node3", 1 << 30, ["old"], ["node2", "node1", "old"]),
        ("node12", 1 << 30, ["old"], [f"node{number}" for number in range(11, 3, -1)]),
        ("node3", 1 << 20, ["old"], []),
        ("other", 1 << 30, [], []),
    ],
)
def test_the_way_of_a_tree(node, size, holders, sources):
    assert tree_route.sources_of(node, size, CHAIN, holders) == sources
