# SPDX-License-Identifier: Apache-2.0
"""tree_send: which node asks which, and what is sent from here where no other node gives it."""

from __future__ import annotations

import contextlib
import json
from pathlib import Path
from types import SimpleNamespace

import pytest
from ansible.parsing.dataloader import DataLoader
from ansible_collections.trainyard.cluster.plugins.plugin_utils.inputs import tree_progress
from core_support import put

DIGEST = "4" * 64
TREE = {"kind": "data", "name": "coco", "digest": DIGEST, "source": "/data", "bytes": 1 << 30}

MANIFEST = {name: ["f", 1, "x"] for name in "abc"}


class Synchronize:
    """Stands for Ansible's action synchronize: notes its arguments."""

    def __init__(self, failed=False):
        self.sent, self.failed = [], failed

    def get(self, name, task, **_more):
        assert name == task.action == "ansible.posix.synchronize"
        path = task.args["rsync_opts"][0].partition("=")[2]
        names = Path(path).read_text(encoding="utf-8")
        self.sent.append(dict(task.args, names=names))
        return SimpleNamespace(run=lambda task_vars: {"changed": True, "failed": self.failed})


@pytest.fixture
def send(load_plugin, tmp_path):
    """Return a function that sends the tree to a node: (result, modules asked, what was sent)."""
    files = {f"{DIGEST}.json": json.dumps(MANIFEST), f"{DIGEST}.files": "./a\n./b\n./c\n"}
    put(tmp_path / "manifests", files)

    def run(node, answers, failed=False, **changes):
        given = {"tree": dict(TREE, **changes), "cache_dir": str(tmp_path), "staging": "there"}
        given.update(chain=["node1", "node2", "node3"], holders=["old"])
        task = SimpleNamespace(args=given, async_val=0, check_mode=False, action="tree_send")
        task.copy = lambda: SimpleNamespace(args={}, action="")
        link = SimpleNamespace(_shell=SimpleNamespace(tmpdir="/tmp"), transport="local")
        synchronize = Synchronize(failed)
        loaders = SimpleNamespace(action_loader=synchronize)
        action = load_plugin("action", "tree_send").ActionModule(
            task, link, None, DataLoader(), None, None
        )
        action._load_name, action._shared_loader_obj = "tree_send", loaders
        asked = []

        def execute(name, arguments, task_vars):
            assert name.startswith("trainyard.cluster.")
            asked.append((name.rpartition(".")[2], arguments))
            return answers.get(asked[-1][0], {"changed": False})

        action._execute_module = execute
        return action.run(task_vars={"inventory_hostname": node}), asked, synchronize.sent

    return run


def test_a_node_asks_those_before_it(send):
    answer = {"complete": True, "said": [], "bytes": 5, "changed": True}
    result, asked, sent = send("node3", {"tree_fetch": answer})
    (question,) = asked
    assert question[0] == "tree_fetch" and question[1]["sources"] == ["node2", "node1", "old"]
    assert (question[1]["stall"], question[1]["digest"]) == (40, DIGEST)
    assert sent == [] and (result["origin"], result["changed"]) == ("nodes", True)


def test_the_first_node_gets_a_small_tree_from_here(send):
    result, asked, sent = send("node1", {}, bytes=1000)
    assert [(name, given["state"]) for name, given in asked] == [("tree_install", "begun")]
    assert asked[0][1]["manifest"] == MANIFEST and sent[0]["names"] == "./a\n./b\n./c\n"
    assert sent[0]["dest"] == "there/"
    assert sent[0]["delay_updates"] is False, "the next node reads each file when it is there"
    assert result["origin"] == "controller"


def test_what_no_node_gives_comes_from_here(send):
    answer = {"complete": False, "said": ["node1: ended"], "bytes": 5, "changed": True}
    result, asked, sent = send("node2", {"tree_fetch": answer})
    assert [name for name, _given in asked] == ["tree_fetch", "tree_install"]
    assert len(sent) == 1
    assert (result["origin"], result["said"]) == ("controller", ["node1: ended"])


def test_a_node_that_fails_is_not_sent_to(send):
    result, asked, sent = send("node2", {"tree_fetch": {"failed": True, "msg": "full"}})
    assert result["failed"] and result["msg"] == "full" and sent == [] and len(asked) == 1


def test_the_next_nodes_hear_that_a_tree_will_not_come(send):
    result, asked, _sent = send("node1", {}, failed=True, bytes=1000)
    assert result["failed"] and asked[-1][1]["state"] == "withdrawn"


def test_only_what_a_node_lacks_is_sent(send):
    begun = {"missing": [[0, 0], [0, 0], [2, 99], [7, 5], [0, 9]], "changed": False}
    _result, _asked, sent = send("node1", {"tree_install": begun}, bytes=1000)
    assert sent[0]["names"] == "./a\n./c\n", "a place that does not exist is passed over"
    result, asked, sent = send(
        "node1", {"tree_install": {"missing": [], "changed": False}}, bytes=9
    )
    assert sent == [] and len(asked) == 1 and result["origin"] == "controller"


def test_a_long_transfer_is_looked_at_where_it_arrives(send, monkeypatch):
    made = []

    class Recorder(contextlib.nullcontext):
        def __init__(self, *arguments):
            super().__init__()
            made.append(arguments)

    monkeypatch.setattr(tree_progress, "Progress", Recorder)
    send("node3", {"tree_fetch": {"complete": True, "said": [], "bytes": 5, "changed": True}})
    ((tree, command, _show, interval),) = made
    assert (tree["name"], command, interval) == ("coco", ["du", "-sb", "--", "there"], 10)


def test_a_node_is_asked_for_its_size_over_its_own_connection(send, monkeypatch, load_plugin):
    module = load_plugin("action", "tree_send")
    monkeypatch.setattr(module.log_receiver, "ssh_command", lambda _link: (["ssh", "-T"], "there"))
    action = module.ActionModule.__new__(module.ActionModule)
    action._connection = SimpleNamespace(transport="ssh")
    action.task_vars = {"inventory_hostname": "node3"}
    progress = action._progress({"tree": TREE, "staging": "a b", "chain": ["n"] * 64})
    assert progress._command == ["ssh", "-T", "there", "timeout 60 nice -n 19 du -sb -- 'a b'"]
    assert progress._interval == 64
