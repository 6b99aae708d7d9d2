# SPDX-License-Identifier: Apache-2.0
"""log_index: brought logs become the run's logs, or stay where they are; no byte is lost."""

from __future__ import annotations

import contextlib
import errno
import hashlib
import json
import os
import stat
import subprocess

import log_index
import pytest
import yaml
from ansible_collections.trainyard.cluster.plugins.plugin_utils.config.quota import Quota
from ansible_collections.trainyard.cluster.plugins.plugin_utils.logsync import (
    collector,
    stream_lock,
)


def described(node, file, home, raw):
    return {
        "file": file,
        "home": home,
        "bytes": len(raw),
        "sha256": hashlib.sha256(raw).hexdigest(),
    }


@pytest.fixture
def run_dir(tmp_path):
    path = tmp_path / "attempt-1"
    path.mkdir()
    return path


@pytest.fixture
def bring(run_dir):
    """Lay a file where collect brings it; returns how its node describes it."""

    def lay(node, file, home, raw, brought=None):
        path = run_dir / ".incoming" / node / file
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(raw if brought is None else brought)
        path.chmod(0o644)
        return described(node, file, home, raw)

    return lay


def entry(node, *files, ranks=()):
    return {"node": node, "files": list(files), "ranks": list(ranks)}


def by_node(entries):
    """Return {node: entry}, as the module takes them."""
    return {each["node"]: each for each in entries}


def tree(path):
    return sorted(str(p.relative_to(path)) for p in path.rglob("*") if p.is_file())


def test_logs_come_home_with_their_names_mode_and_bytes(bring, run_dir):
    raw = bytes(range(256)) * 5000
    nodes = [
        entry(
            "node2",
            bring("node2", "log/workerlog.1", "rank-003.node2.log", raw),
            ranks=[{"rank": 3}],
        ),
        entry(
            "node1",
            bring("node1", "log/workerlog.1", "rank-001.node1.log", b"x"),
            bring("node1", "exit.json", "exit.node1.json", b"{}"),
            ranks=[{"rank": 1}, {"rank": 0}],
        ),
    ]
    result = collector.install_files(str(run_dir), nodes)
    assert (result["changed"], result["mismatches"]) == (True, [])
    assert tree(run_dir) == [
        "exit.node1.json",
        "rank-001.node1.log",
        "rank-003.node2.log",
        "ranks.json",
    ]
    assert (run_dir / "rank-003.node2.log").read_bytes() == raw
    assert not (run_dir / ".incoming").exists()
    for path in run_dir.iterdir():
        assert stat.S_IMODE(path.stat().st_mode) == 0o600, path
    index = json.loads((run_dir / "ranks.json").read_text())
    assert (index["version"], index["run"], index["attempt"]) == (2, run_dir.parent.name, 1)
    assert [r["rank"] for r in index["ranks"]] == [0, 1, 3]
    assert {f["home"]: f["sha256"] for f in index["files"]}["rank-003.node2.log"] == hashlib.sha256(
        raw
    ).hexdigest()


def test_a_second_time_changes_nothing(bring, run_dir):
    nodes = [
        entry(
            "node1",
            bring("node1", "log/workerlog.0", "rank-000.node1.log", b"abc"),
            ranks=[{"rank": 0}],
        )
    ]
    assert collector.install_files(str(run_dir), nodes)["changed"] is True
    before = [(p, p.stat().st_mtime_ns) for p in sorted(run_dir.iterdir())]
    result = collector.install_files(str(run_dir), nodes)
    assert (result["changed"], result["mismatches"], len(result["files"])) == (False, [], 1)
    assert [(p, p.stat().st_mtime_ns) for p in sorted(run_dir.iterdir())] == before


def test_the_same_brought_again_changes_nothing_but_the_copy(bring, run_dir):
    nodes = [entry("node1", bring("node1", "log/workerlog.0", "rank-000.node1.log", b"abc"))]
    collector.install_files(str(run_dir), nodes)
    bring("node1", "log/workerlog.0", "rank-000.node1.log", b"abc")
    result = collector.install_files(str(run_dir), nodes)
    assert (result["changed"], result["mismatches"]) == (False, [])
    assert tree(run_dir) == ["rank-000.node1.log", "ranks.json"]


def test_a_mode_that_was_loosened_is_mended(bring, run_dir):
    nodes = [
        entry("node1", bring("node1", "a", "a.log", b"abc"), bring("node1", "b", "b.log", b"abc"))
    ]
    collector.install_files(str(run_dir), nodes)
    (run_dir / "a.log").chmod(0o644)
    assert collector.install_files(str(run_dir), nodes)["changed"] is True
    assert stat.S_IMODE((run_dir / "a.log").stat().st_mode) == 0o600
    assert collector.install_files(str(run_dir), nodes)["changed"] is False


def test_a_pipe_is_no_empty_file(bring, run_dir):
    item = bring("node1", "logs.txt", "launcher.node1.log", b"")
    (run_dir / ".incoming/node1/logs.txt").unlink()
    os.mkfifo(run_dir / ".incoming/node1/logs.txt")
    assert (
        collector.install_files(str(run_dir), [entry("node1", item)])["mismatches"][0]["problem"]
        == "was not copied"
    )


def test_ranks_without_a_number_come_last(run_dir):
    ranks = [{"rank": "x"}, {"rank": None}, {"rank": 2}, {}, {"rank": 0}]
    index = collector.install_files(str(run_dir), [entry("node1", ranks=ranks)])["index"]
    assert [r.get("rank") for r in index["ranks"]][:2] == [0, 2]


@pytest.mark.parametrize("brought", [b"abX", b"ab", b"", b"Xbcdef"])
def test_what_the_node_does_not_have_stays_out_and_is_named(bring, run_dir, brought):
    bad = bring("node2", "log/workerlog.0", "rank-002.node2.log", b"abc", brought)
    nodes = [
        entry("node2", bad),
        entry("node1", bring("node1", "logs.txt", "launcher.node1.log", b"fine")),
    ]
    result = collector.install_files(str(run_dir), nodes)
    assert [(m["node"], m["file"]) for m in result["mismatches"]] == [("node2", "log/workerlog.0")]
    problem = result["mismatches"][0]["problem"]
    assert bad["sha256"] in problem and hashlib.sha256(brought).hexdigest() in problem
    assert (run_dir / ".incoming" / "node2" / "log" / "workerlog.0").read_bytes() == brought
    assert not (run_dir / "rank-002.node2.log").exists()
    assert (run_dir / "launcher.node1.log").read_bytes() == b"fine"


def test_a_log_that_grew_since_is_taken_whole(bring, run_dir):
    nodes = [
        entry("node1", bring("node1", "log/workerlog.0", "rank-000.node1.log", b"abc", b"abcdef"))
    ]
    result = collector.install_files(str(run_dir), nodes)
    assert result["mismatches"] == []
    assert (run_dir / "rank-000.node1.log").read_bytes() == b"abcdef"
    assert result["files"][0]["bytes"] == 6
    assert result["files"][0]["sha256"] == hashlib.sha256(b"abcdef").hexdigest()


def test_a_longer_log_replaces_a_shorter_one_and_never_the_other_way(bring, run_dir):
    collector.install_files(
        str(run_dir),
        [entry("node1", bring("node1", "log/workerlog.0", "rank-000.node1.log", b"abc"))],
    )
    collector.install_files(
        str(run_dir),
        [entry("node1", bring("node1", "log/workerlog.0", "rank-000.node1.log", b"abcdef"))],
    )
    assert (run_dir / "rank-000.node1.log").read_bytes() == b"abcdef"
    assert json.loads((run_dir / "ranks.json").read_text())["files"][0]["bytes"] == 6
    result = collector.install_files(
        str(run_dir),
        [entry("node1", bring("node1", "log/workerlog.0", "rank-000.node1.log", b"abcd"))],
    )
    assert result["mismatches"] == []
    assert result["files"][0]["bytes"] == 6
    assert (run_dir / "rank-000.node1.log").read_bytes() == b"abcdef"
    assert not (run_dir / ".incoming").exists()


RANK0 = ("node1", "log/workerlog.0", "rank-000.node1.log")


@pytest.mark.parametrize("now", [b"XYZ and more", b"X", b"XYZ"])
def test_a_log_that_was_replaced_on_its_node_comes_home_and_what_was_here_is_kept(
    bring, run_dir, now
):
    collector.install_files(str(run_dir), [entry("node1", bring(*RANK0, b"abc"))])
    result = collector.install_files(str(run_dir), [entry("node1", bring(*RANK0, now))])
    assert result["mismatches"] == []
    assert result["replaced"] == [
        {"node": "node1", "file": RANK0[1], "kept": "rank-000.node1.log.1"}
    ]
    assert ((run_dir / RANK0[2]).read_bytes(), (run_dir / "rank-000.node1.log.1").read_bytes()) == (
        now,
        b"abc",
    )
    files = json.loads((run_dir / "ranks.json").read_text())["files"]
    assert [(f["home"], f["file"], f["bytes"]) for f in files] == [
        (RANK0[2], RANK0[1], len(now)),
        ("rank-000.node1.log.1", RANK0[1], 3),
    ]
    assert files[1]["sha256"] == hashlib.sha256(b"abc").hexdigest()
    again = collector.install_files(str(run_dir), [entry("node1", described(*RANK0, now))])
    assert (again["changed"], again["replaced"]) == (False, result["replaced"])


def test_what_did_not_come_whole_stays_where_it_is(bring, run_dir):
    collector.install_files(str(run_dir), [entry("node1", bring(*RANK0, b"abc"))])
    result = collector.install_files(str(run_dir), [entry("node1", bring(*RANK0, b"abcd", b"ab"))])
    assert result["mismatches"][0]["problem"].startswith("here 2 bytes")
    assert (run_dir / RANK0[2]).read_bytes() == b"abc" and (
        run_dir / ".incoming/node1/log/workerlog.0"
    ).read_bytes() == b"ab"
    (run_dir / RANK0[2]).write_bytes(b"abcd")  # a stream has brought the rest meanwhile
    assert (
        collector.install_files(str(run_dir), [entry("node1", described(*RANK0, b"abcd"))])[
            "mismatches"
        ]
        == []
    )
    assert tree(run_dir) == [RANK0[2], "ranks.json"]


def test_only_what_is_missing_is_asked_for_and_what_is_here_lies_ready_for_rsync(run_dir):
    files = {
        "a": (b"whole", b"whole"), "b": (b"par", b"part"), "c": (None, b"new"),
        "d": (b"grown and more", b"grown"), "e": (b"xyz", b"abcd"),
    }  # fmt: skip
    items = []
    for name, (here, there) in files.items():
        home = "rank-%03d.node1.log" % ord(name)
        items.append(described("node1", f"log/{name}", home, there))
        if here is not None:
            (run_dir / home).write_bytes(here)
    sizes, left = collector.find_missing(str(run_dir), [entry("node1", *items)], Quota())
    assert sorted(sizes["node1"]) == ["log/b", "log/c", "log/e"] and left == {"node1": {}}
    incoming = run_dir / ".incoming" / "node1" / "log"
    assert (incoming / "b").stat().st_ino == (run_dir / "rank-098.node1.log").stat().st_ino
    assert sorted(path.name for path in incoming.iterdir()) == ["b", "e"]
    assert all(
        stat.S_IMODE(path.stat().st_mode) == 0o700
        for path in (incoming, incoming.parent, incoming.parent.parent)
    )
    subprocess.run(["rsync", "--version"], check=True, stdout=subprocess.DEVNULL)
    there = run_dir.parent / "there" / "log"
    there.mkdir(parents=True)
    for name, (_here, data) in files.items():
        (there / name).write_bytes(data)
    argv = [
        "rsync",
        "-r",
        "-t",
        "--no-whole-file",
        "--ignore-times",
        "--sparse",
        "--include=*/",
        "--include=/log/b",
        "--include=/log/c",
        "--include=/log/e",
        "--exclude=*",
    ]
    subprocess.run([*argv, f"{there.parent}/", f"{incoming.parent}/"], check=True)
    # rsync has not written through to what is here
    assert (run_dir / "rank-098.node1.log").read_bytes() == b"par"
    result = collector.install_files(str(run_dir), [entry("node1", *items)])
    assert result["mismatches"] == [] and [item["kept"] for item in result["replaced"]] == [
        "rank-101.node1.log.1"
    ]
    assert (run_dir / "rank-098.node1.log").read_bytes() == b"part"


def test_what_was_brought_of_a_log_that_is_gone_stays_in_the_index(run_dir):
    (run_dir / RANK0[2]).write_bytes(b"brought")
    (run_dir / "rank-000.node2.log").write_bytes(b"of another node")
    result = collector.install_files(str(run_dir), [entry("node1")])
    assert [(item["home"], item["file"], item["bytes"]) for item in result["index"]["files"]] == [
        (RANK0[2], "", 7)
    ]


def test_a_stream_that_still_brings_the_logs_is_not_disturbed(bring, run_dir):
    lock = stream_lock.Lock(str(run_dir), "node1")
    nodes = [entry("node1", bring(*RANK0, b"abc"))]
    result = collector.install_files(str(run_dir), nodes, seconds=0.2)
    assert (
        "another process" in result["mismatches"][0]["problem"]
        and not (run_dir / RANK0[2]).exists()
    )
    lock.close()
    assert collector.install_files(str(run_dir), nodes)["mismatches"] == []
    assert tree(run_dir) == [RANK0[2], "ranks.json"]


def test_a_file_that_was_not_brought(run_dir):
    result = collector.install_files(
        str(run_dir), [entry("node1", described("node1", "logs.txt", "launcher.node1.log", b"abc"))]
    )
    assert result["mismatches"][0]["problem"] == "was not copied"


def test_a_link_that_a_node_sent_is_not_followed(bring, run_dir, tmp_path):
    secret = tmp_path / "secret"
    secret.write_bytes(b"abc")
    secret.chmod(0o644)
    item = bring("node1", "logs.txt", "launcher.node1.log", b"abc")
    path = run_dir / ".incoming/node1/logs.txt"
    path.unlink()
    path.symlink_to(secret)
    assert (
        collector.install_files(str(run_dir), [entry("node1", item)])["mismatches"][0]["problem"]
        == "was not copied"
    )
    assert stat.S_IMODE(secret.stat().st_mode) != 0o600
    assert not (run_dir / "launcher.node1.log").exists()


@pytest.mark.parametrize(
    "node, file, home",
    [
        ("..", "a", "b"),
        ("a/b", "a", "b"),
        ("node1", "../a", "b"),
        ("node1", "/a", "b"),
        ("node1", "a//b", "b"),
        ("node1", "a", "../b"),
        ("node1", "a", "b/c"),
        ("node1", "a", ".hidden"),
        ("node1", "a\0", "b"),
        ("", "a", "b"),
    ],
)
def test_names_that_could_leave_the_directory(run_dir, node, file, home):
    with pytest.raises(collector.RequestError):
        collector.install_files(str(run_dir), [entry(node, described(node, file, home, b""))])
    assert tree(run_dir) == []


def test_two_files_with_one_name_and_a_file_without_a_digest(run_dir):
    item = described("node1", "a", "b", b"")
    with pytest.raises(collector.RequestError, match="b is also the name of a file of node1"):
        collector.install_files(str(run_dir), [entry("node1", item), entry("node2", item)])
    with pytest.raises(collector.RequestError, match="no size and sha256"):
        collector.install_files(str(run_dir), [entry("node1", dict(item, bytes=None))])
    with pytest.raises(collector.RequestError, match="no size and sha256"):
        collector.install_files(str(run_dir), [entry("node1", dict(item, sha256=None))])


@pytest.mark.parametrize(
    "broken",
    [
        {"node": "node1"},
        {"node": "node1", "files": [], "ranks": "x"},
        {"node": "node1", "files": ["x"], "ranks": []},
        {},
    ],
)
def test_what_rank_logs_did_not_return(run_dir, broken):
    with pytest.raises(collector.RequestError, match="rank_logs_info"):
        collector.install_files(str(run_dir), [broken])


def test_ranks_json_is_mended(bring, run_dir):
    nodes = [
        entry(
            "node1",
            bring("node1", "log/workerlog.0", "rank-000.node1.log", b"abc"),
            ranks=[{"rank": 0}],
        )
    ]
    collector.install_files(str(run_dir), nodes)
    whole = (run_dir / "ranks.json").read_text()
    for broken in (b"", b"\xff", whole.encode()[:10]):
        (run_dir / "ranks.json").write_bytes(broken)
        assert collector.install_files(str(run_dir), nodes)["changed"] is True
        assert (run_dir / "ranks.json").read_text() == whole
    (run_dir / "ranks.json").chmod(0o644)
    collector.install_files(str(run_dir), nodes)
    assert stat.S_IMODE((run_dir / "ranks.json").stat().st_mode) == 0o600


# -- the module
# --------------------------------------------------------------------------------------------------


def test_the_module(bring, run_dir, run_action):
    nodes = [
        entry(
            "node1",
            bring("node1", "log/workerlog.0", "rank-000.node1.log", b"abc"),
            ranks=[{"rank": 0}],
        )
    ]
    result = run_action("log_index", {"run_dir": str(run_dir), "results": by_node(nodes)})
    assert (result["changed"], result["ranks_file"]) == (True, str(run_dir / "ranks.json"))
    assert (
        run_action("log_index", {"run_dir": str(run_dir), "results": by_node(nodes)})["changed"]
        is False
    )
    missing = run_action(
        "log_index", {"run_dir": str(run_dir), "results": by_node(nodes), "state": "missing"}
    )
    assert (missing["changed"], missing["missing"], missing["left"]) == (
        False,
        {"node1": {}},
        {"node1": {}},
    )
    assert (set(result) | set(missing)) - {"invocation", "changed"} == set(
        yaml.safe_load(log_index.RETURN)
    )


def test_the_module_takes_what_rank_logs_returns(make_attempt, run_dir, run_action):
    from ansible_collections.trainyard.cluster.plugins.module_utils.attempts import evidence

    nodes = []
    for name in ("node1", "node2"):
        home = make_attempt(
            name, "failure_rank3_raises_2x2", events=[], exit={"service_result": "exit-code"}
        )
        found = evidence.collect(str(home), name)
        for item in found["files"]:
            target = run_dir / ".incoming" / name / item["file"]
            target.parent.mkdir(parents=True, exist_ok=True)
            target.write_bytes((home / item["file"]).read_bytes())
        nodes.append(dict(found, changed=False, failed=False))
    result = run_action("log_index", {"run_dir": str(run_dir), "results": by_node(nodes)})
    assert result["changed"] is True
    assert [r["rank"] for r in result["index"]["ranks"]] == [0, 1, 2, 3]
    assert (
        "rank-003.node2.log" in tree(run_dir)
        and "launcher.node1.log" in tree(run_dir)
        and "ranks.node2.jsonl" in tree(run_dir)
    )


def test_check_mode_compares_and_touches_nothing(bring, run_dir, run_action):
    nodes = [
        entry(
            "node1",
            bring("node1", "log/workerlog.0", "rank-000.node1.log", b"abc"),
            ranks=[{"rank": 0}],
        )
    ]
    (run_dir / ".incoming" / "empty").mkdir()
    before = tree(run_dir)
    result = run_action(
        "log_index", {"run_dir": str(run_dir), "results": by_node(nodes)}, check=True
    )
    assert (run_dir / ".incoming" / "empty").is_dir()
    assert result["changed"] is True
    assert tree(run_dir) == before
    assert stat.S_IMODE((run_dir / ".incoming/node1/log/workerlog.0").stat().st_mode) == 0o644
    nodes[0]["files"][0]["sha256"] = "0" * 64
    assert (
        run_action("log_index", {"run_dir": str(run_dir), "results": by_node(nodes)}, check=True)[
            "failed"
        ]
        is True
    )


def test_the_module_fails_with_node_file_and_both_digests(bring, run_dir, run_action):
    item = bring("node2", "log/workerlog.0", "rank-002.node2.log", b"abc", b"abX")
    result = run_action(
        "log_index", {"run_dir": str(run_dir), "results": by_node([entry("node2", item)])}
    )
    assert result["failed"] is True
    for word in ("node2", "log/workerlog.0", item["sha256"], hashlib.sha256(b"abX").hexdigest()):
        assert word in result["msg"]
    assert len(result["mismatches"]) == 1


def test_the_module_without_a_run_directory(run_action, tmp_path):
    result = run_action("log_index", {"run_dir": str(tmp_path / "none"), "results": {}})
    assert result["failed"] is True and "is no directory" in result["msg"]


# -- nodes that lie
# ------------------------------------------------------------------------------------------------

ODD = "a --rsh=sh -c touch$IFS/x.log"


def lies(node="node2"):
    """What a lying node may say of its files, one after the other; each is refused."""
    good = described(node, "log/workerlog.0", f"rank-000.{node}.log", b"abc")
    for name in (
        "../x",
        "/etc/passwd",
        "a\nb",
        "-e sh",
        "a/../../b",
        "",
        "n" * 300,
        "x/" * 20 + "y",
        None,
        7,
    ):
        yield dict(good, file=name)
    for name in (
        "rank-000.node1.log",
        "../x",
        "plan.json",
        "rank-000.node2.log.1",
        ".stream.node1",
        "ranks.json",
        None,
    ):
        yield dict(good, home=name)
    for key, values in (
        ("bytes", (-1, 1 << 60, "1", None, True, 1.5)),
        ("sha256", ("", "0" * 63, None, "../x")),
    ):
        for value in values:
            yield dict(good, **{key: value})


@pytest.mark.parametrize("item", list(lies()), ids=lambda item: "")
def test_a_node_that_lies_costs_no_other_its_logs(bring, run_dir, run_action, tmp_path, item):
    nodes = [
        entry("node2", item),
        entry(
            "node1", bring("node1", "logs.txt", "launcher.node1.log", b"fine"), ranks=[{"rank": 0}]
        ),
    ]
    missing = run_action(
        "log_index",
        {"run_dir": str(run_dir), "results": by_node(nodes), "state": "missing", "strict": False},
    )
    assert list(missing["refused"]) == ["node2"] and list(missing["missing"]) == ["node1"]
    result = run_action(
        "log_index", {"run_dir": str(run_dir), "results": by_node(nodes), "strict": False}
    )
    assert not result.get("failed") and (run_dir / "launcher.node1.log").read_bytes() == b"fine"
    assert [rank["node"] for rank in result["index"]["ranks"]] == ["node1"] and tree(tmp_path) == [
        "attempt-1/launcher.node1.log", "attempt-1/ranks.json",
    ]  # fmt: skip


def test_a_mismatch_of_one_node_is_said_and_the_others_are_taken(bring, run_dir, run_action):
    bad = bring("node2", "log/workerlog.0", "rank-002.node2.log", b"abc", b"abX")
    nodes = [
        entry("node2", bad),
        entry("node1", bring("node1", "logs.txt", "launcher.node1.log", b"fine")),
    ]
    result = run_action(
        "log_index", {"run_dir": str(run_dir), "results": by_node(nodes), "strict": False}
    )
    assert (
        not result.get("failed")
        and [item["node"] for item in result["mismatches"]] == ["node2"]
        and result["warnings"]
    )
    assert (run_dir / "launcher.node1.log").read_bytes() == b"fine"


def test_the_inventory_names_the_node(bring, run_dir, run_action):
    item = bring("node1", "logs.txt", "launcher.node1.log", b"fine")
    liar = dict(entry("node2", item, ranks=[{"rank": 0}]), run="x", goes_on=True)
    result = run_action("log_index", {"run_dir": str(run_dir), "results": {"node1": liar}})
    assert [rank["node"] for rank in result["index"]["ranks"]] == ["node1"]
    assert [each["home"] for each in result["files"]] == ["launcher.node1.log"]


def test_a_running_attempt_has_ranks_and_no_files_yet(bring, run_dir, run_action):
    item = bring("node1", "logs.txt", "launcher.node1.log", b"fine")
    results = by_node([entry("node1", item, ranks=[{"rank": 0}])])
    result = run_action("log_index", {"run_dir": str(run_dir), "results": results, "running": True})
    assert result["files"] == [] and len(result["index"]["ranks"]) == 1
    assert not (run_dir / "launcher.node1.log").exists()


def test_problems_name_what_differs_and_what_was_refused(bring, run_dir, run_action):
    bad = bring("node2", "log/workerlog.0", "rank-002.node2.log", b"abc", b"abX")
    results = by_node([entry("node2", bad), {"node": "node1", "files": None, "ranks": []}])
    asked = {"run_dir": str(run_dir), "results": results, "strict": False}
    problems = run_action("log_index", asked)["problems"]
    assert [problem.split(":")[0] for problem in problems] == ["node2", "node1"]


def test_a_name_with_words_in_it_is_a_name(bring, run_dir):
    item = bring("node1", ODD, "rank-000.node1.log", b"abc")
    assert collector.install_files(str(run_dir), [entry("node1", item)])["mismatches"] == []
    assert (run_dir / "rank-000.node1.log").read_bytes() == b"abc"


def test_what_a_bound_leaves_there_is_named_and_no_mismatch(run_dir, run_action):
    sizes = {
        "logs.txt": ("launcher", 10),
        "log/workerlog.0": ("rank-000", 5000),
        "log/workerlog.1": ("rank-001", 400),
    }
    nodes = [
        entry(
            node,
            *[
                dict(described(node, file, f"{home}.{node}.log", b""), bytes=size)
                for file, (home, size) in sizes.items()
            ],
        )
        for node in ("node1", "node2")
    ]
    (run_dir / "ranks.node2.jsonl").write_bytes(b"x" * 700)
    asked = {
        "run_dir": str(run_dir),
        "results": by_node(nodes),
        "state": "missing",
        "bytes": "1000",
        "strict": False,
    }
    found = run_action("log_index", asked)
    assert found["missing"]["node1"] == {"logs.txt": 10, "log/workerlog.1": 400} and found["left"][
        "node1"
    ] == {"log/workerlog.0": 5000}
    assert (
        found["missing"]["node2"] == {"logs.txt": 10}
        and len(found["left"]["node2"]) == 2
        and len(found["warnings"]) == 2
    )
    assert run_action("log_index", dict(asked, bytes="1 MiB", files=2))["left"]["node1"] == {
        "log/workerlog.0": 5000
    }
    result = run_action(
        "log_index",
        {
            "run_dir": str(run_dir),
            "results": by_node(nodes),
            "strict": False,
            "left": found["left"],
        },
    )
    assert [(item["node"], item["file"]) for item in result["mismatches"]] == [
        ("node1", "logs.txt"), ("node1", "log/workerlog.1"), ("node2", "logs.txt"),
    ]  # fmt: skip


def test_a_log_that_was_replaced_too_often_stays_where_it_is(bring, run_dir):
    for number in range(collector.quota.KEPT_COPIES + 3):
        result = collector.install_files(
            str(run_dir), [entry("node1", bring(*RANK0, b"%03d" % number))]
        )
    assert (
        len(result["mismatches"]) == 1
        and len(list(run_dir.glob(RANK0[2] + ".*"))) == collector.quota.KEPT_COPIES
    )


@pytest.mark.parametrize("planted", [".incoming", ".incoming/node1", ".incoming/node1/log"])
def test_a_link_on_the_way_takes_nothing_from_elsewhere(run_dir, tmp_path, planted):
    mine = tmp_path / "mine"
    for name in ("workerlog.0", "log/workerlog.0", "node1/log/workerlog.0"):
        (mine / name).parent.mkdir(parents=True, exist_ok=True)
        (mine / name).write_bytes(b"abc")
    (run_dir / planted).parent.mkdir(parents=True, exist_ok=True)
    os.symlink(mine, run_dir / planted)
    before = {path: path.stat() for path in mine.rglob("*")}
    item = described(*RANK0, b"abc")
    with contextlib.suppress(OSError):
        collector.find_missing(str(run_dir), [entry("node1", item)], Quota())
    assert len(collector.install_files(str(run_dir), [entry("node1", item)])["mismatches"]) == 1
    assert {path: path.stat() for path in mine.rglob("*")} == before and not (
        run_dir / RANK0[2]
    ).exists()


@pytest.mark.parametrize("error", [errno.ENOSPC, errno.EDQUOT, errno.EACCES])
@pytest.mark.parametrize("state", ["missing", "indexed"])
def test_a_full_disk_here_ends_no_collection(run_action, run_dir, monkeypatch, state, error):
    """The verdict needs no log on the controller. Any other error of the disk is a failure."""

    def refuse(*_arguments, **_more):
        raise OSError(error, os.strerror(error))

    for name in ("find_missing", "install_files"):
        monkeypatch.setattr(collector, name, refuse)
    arguments = {"run_dir": str(run_dir), "results": {}, "state": state, "strict": False}
    said = run_action("log_index", arguments)
    assert bool(said.get("failed")) is (error == errno.EACCES)
    if not said.get("failed"):
        assert os.strerror(error) in said["problems"][0]
        assert said["missing" if state == "missing" else "mismatches"] in ({}, [])
    assert run_action("log_index", dict(arguments, strict=True))["failed"]
