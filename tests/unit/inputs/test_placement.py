# SPDX-License-Identifier: Apache-2.0
"""Placement: what lies on the nodes already is equal everywhere and never written; two nodes with
one product directory are found.
"""

from __future__ import annotations

import os
import re
import shutil

import pytest
from ansible_collections.trainyard.cluster.plugins.module_utils.attempts import (
    attempt_dir,
)
from ansible_collections.trainyard.cluster.plugins.module_utils.base import findings, manifest
from ansible_collections.trainyard.cluster.plugins.module_utils.base.files import (
    read_json,
    write_json,
)
from ansible_collections.trainyard.cluster.plugins.module_utils.inputs import (
    paths,
    placement,
    remote_outline,
    tree_install,
    tree_state,
)
from ansible_collections.trainyard.cluster.plugins.module_utils.plan import compiler
from ansible_collections.trainyard.cluster.plugins.module_utils.preflight import probe
from ansible_collections.trainyard.cluster.plugins.plugin_utils.base import yaml_source
from ansible_collections.trainyard.cluster.plugins.plugin_utils.config import job as jobs
from ansible_collections.trainyard.cluster.plugins.plugin_utils.plan import readiness
from ansible_collections.trainyard.cluster.plugins.plugin_utils.preflight import checks
from core_support import fact_of, gang, put

FILES = {"annotations/a.json": "{}", "train/1.jpg": "one", "train/2.jpg": "two"}


@pytest.fixture
def site(tmp_path):
    """Return (look, root): look(key changes) gives the facts of two nodes whose data lies in
    root(name).
    """
    names = ["node1", "node2"]
    for name in names:
        put(tmp_path / name / "data", FILES)
        os.makedirs(tmp_path / name / "base")

    def root(name):
        return str(tmp_path / name / "data")

    def base(name):
        return str(tmp_path / name / "base")

    def look(verify="cached", bases=base, roots=root, **place):
        facts = {}
        for name in names:
            given = dict(
                {
                    "key": "data/coco",
                    "path": roots(name),
                    "placement": "present",
                    "exclude": [],
                    "needs": [],
                    "verify": "listing",
                },
                **place,
            )
            asked = {
                "node": name,
                "nodes": names,
                "boot": "b-" + name,
                "places": [given],
                "verify": verify,
            }
            facts[name] = {"placement": placement.look(None, bases(name), asked)}
        return facts

    return look, root, base


def findings_of(facts, named=None):
    """Return the findings about the places."""
    found = placement.judge([{"name": name} for name in facts], facts, {"named": named or {}})
    assert all(item["check"] == "placement" for item in found)
    return found


def judged(facts, named=None):
    """Return [(level, nodes, text)] of what is found about the places."""
    return [(item["level"], item["nodes"], item["text"]) for item in findings_of(facts, named)]


def by_name(facts, site, full=False, **place):
    """Do what roles/preflight/tasks/name_differences.yml does: ask whom, and ask them."""
    whom = placement.find_differing_nodes(facts)
    given = {
        "key": "data/coco",
        "placement": "present",
        "exclude": [],
        "verify": "listing",
        **place,
    }
    return {
        name: {
            key: paths.list_entries(site[2](name), dict(given, path=site[1](name)), parts, full)
            for key, parts in whom["buckets"].items()
        }
        for name in whom["nodes"]
    }


def test_equal_copies_are_nothing_to_speak_of_and_nothing_is_written_there(site):
    look, root, _base = site
    before = {name: sorted(os.listdir(root(name))) for name in ("node1", "node2")}
    assert judged(look()) == [] and judged(look("sample")) == []
    assert {name: sorted(os.listdir(root(name))) for name in before} == before


def test_a_file_that_is_missing_larger_or_more_is_named(site):
    look, root, _base = site
    os.unlink(root("node2") + "/train/1.jpg")
    put(root("node2"), {"train/2.jpg": "longer", "extra.bin": ""})
    facts = look()
    level, _nodes, text = judged(facts, by_name(facts, site))[0]
    assert (
        level == "stop"
        and facts["node1"]["placement"]["summary"] != facts["node2"]["placement"]["summary"]
    )
    for words in (
        "train/1.jpg: missing",
        "train/2.jpg: 6 bytes instead of 3",
        "extra.bin: extra file",
        "node2 against node1",
    ):
        assert words in text


def test_other_content_in_the_same_size_and_time_is_found_by_sample_and_by_every_byte(site):
    look, root, base = site
    path = root("node2") + "/train/1.jpg"
    info = os.stat(path)
    put(root("node2"), {"train/1.jpg": "0ne"})
    os.utime(path, ns=(info.st_atime_ns, info.st_mtime_ns))
    assert judged(look()) == []  # names and sizes are all that a listing knows
    sampled = findings_of(look("sample"))[0]
    assert sampled["code"] == "placement.content_differs"
    assert "sampled" in sampled["text"] and " of train/1.jpg " in sampled["text"]
    full = {
        name: {
            "placement": {
                "places": {
                    "data/coco": paths.describe_path(
                        base(name), {"path": root(name), "placement": "present"}, "full"
                    )
                }
            }
        }
        for name in look()
    }
    for name, fact in full.items():
        fact["placement"].update(look()[name]["placement"], places=fact["placement"]["places"])
    found = findings_of(full, by_name(full, site, full=True))[0]
    assert found["code"] == "placement.content_differs"
    assert "train/1.jpg: other content" in found["text"] and " 3 bytes" in found["text"]


def test_content_is_remembered_by_inode_size_and_times_and_every_byte_is_read_where_asked(tmp_path):
    root, base = put(tmp_path / "data", FILES), str(tmp_path / "base")
    place = {"path": root, "placement": "present", "verify": "content"}
    first = paths.describe_path(base, place)["content"]
    cache = paths.cache_path(base, root)
    kept = read_json(cache)
    write_json(
        cache, {name: record[:5] + ["f" * 64] for name, record in kept.items()}
    )  # content that changed under every time stamp
    assert paths.describe_path(base, place)["content"] != first
    assert paths.describe_path(base, place, "full")["content"] == first and read_json(cache) == kept
    info = os.stat(root + "/train/1.jpg")
    put(root, {"train/1.jpg": "0ne"})
    os.utime(root + "/train/1.jpg", ns=(info.st_atime_ns, info.st_mtime_ns))
    assert (
        paths.describe_path(base, place)["content"] != first
    )  # ctime changes with every write, whatever touch says


def test_what_is_not_there_not_readable_or_lacks_what_the_config_reads(site, monkeypatch):
    look, root, _base = site
    shutil.rmtree(root("node2"))
    found = findings_of(look(needs=[root("node1") + "/annotations/b.json"]))
    unusable = [item for item in found if item["code"] == "placement.unusable"]
    assert [(item["level"], item["nodes"]) for item in unusable] == [("stop", ["node2"])]
    assert root("node2") + " " in unusable[0]["text"]
    lacking = [item for item in found if item["code"] == "placement.file_missing"]
    assert [item["nodes"] for item in lacking] == [["node1"]]
    assert "annotations/b.json" in lacking[0]["text"]
    put(root("node2"), FILES)
    os.symlink("/nothing", root("node2") + "/train/3.jpg")
    os.makedirs(root("node2") + "/lost+found")
    put(root("node2"), {"lost+found/x": ""})  # the file system's own
    said = findings_of(look())
    unreadable = [item for item in said if item["code"] == "placement.unreadable"]
    assert [item["level"] for item in unreadable] == ["warn"]
    assert ": train/3.jpg" in unreadable[0]["text"]
    assert not any("lost+found" in item["text"] for item in said)


def test_links_are_followed_but_never_for_ever(tmp_path):
    put(tmp_path / "elsewhere", {"1.jpg": "one"})
    root = put(tmp_path / "data", {"a": "a", "__pycache__/x.pyc": "x", "log/1": "x"})
    os.symlink(tmp_path / "elsewhere", os.path.join(root, "train"))
    os.symlink(root, os.path.join(root, "again"))
    assert sorted(name for name, _path, _info in paths.walk(root, ["log"])) == ["a", "train/1.jpg"]


# --- one directory or two


def test_a_network_file_system_is_one_from_any_address_of_its_server_and_under_any_mount(tmp_path):
    inside = os.path.join(str(tmp_path), "coco")
    os.makedirs(inside)

    def ids(line, kernel):
        return set(paths.identity(inside, "1 0 8:1 / / rw - ext4 /dev/sda1 rw\n" + line, kernel))

    nfs = "2 1 0:5 / %s rw - nfs4 10.0.0.%d:/export rw\n"
    assert ids(nfs % (tmp_path, 1), "k1") & ids(nfs % (tmp_path, 2), "k2")
    deeper = f"2 1 0:5 / {inside} rw - nfs4 10.0.0.1:/export/coco rw\n"
    assert ids(nfs % (tmp_path, 1), "k1") & ids(deeper, "k2")
    assert not ids("", "k1") & ids("", "k2") and ids("", "k1") & ids(
        "", "k1"
    )  # a local disk, unless one kernel runs both nodes


def test_shared_that_is_not_is_refused_and_present_that_is_shared_is_noted(site):
    look, root, _base = site
    (found,) = findings_of(look(placement="shared"))
    assert (found["level"], found["nodes"]) == ("stop", ["node2"])
    assert found["code"] == "placement.not_shared"

    def one(name):
        return root("node1")

    assert judged(look(roots=one, placement="shared")) == []
    assert [level for level, _nodes, _text in judged(look(roots=one))] == ["note"]
    aside = look(roots=one, placement="shared")["node2"]["placement"]["places"]["data/coco"]
    assert aside["listing"] == "" and aside["top"]  # one node reads it for all
    facts = look(roots=one, placement="shared")
    facts["node2"]["placement"]["places"]["data/coco"]["top"] = "f" * 64  # a stale or hidden mount
    (found,) = findings_of(facts)
    assert found["code"] == "placement.names_differ"
    assert "the directory itself" in found["text"]


def test_two_nodes_with_one_product_directory_are_refused_with_the_remedy(site):
    look, _root, base = site

    def one(name):
        return base("node1")

    (found,) = placement.judge_bases(
        {name: fact["placement"] for name, fact in look(bases=one).items()}
    )
    assert (
        found["level"] == "stop"
        and found["nodes"] == ["node1", "node2"]
        and ".trainyard/{{ inventory_hostname }}" in found["remedy"]
    )
    assert (
        placement.judge_bases(
            {
                name: fact["placement"]
                for name, fact in look(bases=lambda name: base("node1") + "/" + name).items()
            }
        )
        == []
    )


def test_a_nonce_tells_a_shared_directory_on_a_file_system_that_nobody_knows(tmp_path):
    names = ["node1", "node2"]
    first = placement.exchange_nonces(str(tmp_path), "node1", names)
    second = placement.exchange_nonces(str(tmp_path), "node2", names)
    assert placement.find_shared(
        {"node1": ["a"], "node2": ["b"]}, {"node1": first, "node2": second}
    ) == {"node1": "node1", "node2": "node1"}
    later = placement.exchange_nonces(str(tmp_path), "node1", names)
    assert (
        later["own"] != first["own"]
    )  # so a copied home's is out of date with the next look, on the node that it came from
    apart = {"node1": dict(later, seen={}), "node2": second}
    assert placement.find_shared({"node1": ["a"], "node2": ["b"]}, apart) == {
        "node1": "node1",
        "node2": "node2",
    }
    assert placement.exchange_nonces(str(tmp_path / "bare"), "node1", names) == {
        "own": "",
        "seen": {},
    } and not os.path.exists(tmp_path / "bare")


# --- trees of ours


def test_pushed_trees_are_read_again_where_asked_and_the_sync_then_sees_what_was_found(tmp_path):
    root, base = put(tmp_path / "source", FILES), str(tmp_path / "base")
    entries = manifest.scan(root)
    digest = manifest.digest(entries)
    final, staging = tree_install.tree_paths(base, "data", digest)
    shutil.copytree(root, staging)
    tree_install.switch_in(base, "data", digest, entries)
    path = os.path.join(final, "train/1.jpg")
    os.chmod(path, 0o600)
    info = os.stat(path)
    put(final, {"train/1.jpg": "0ne"})
    os.utime(path, ns=(info.st_atime_ns, info.st_mtime_ns))
    os.chmod(path, 0o400)
    info = os.stat(path)
    cache = read_json(final + ".scan.json")
    cache["train/1.jpg"][:4] = [
        info.st_ino,
        info.st_size,
        info.st_mtime_ns,
        info.st_ctime_ns,
    ]  # as if no time stamp had changed
    write_json(final + ".scan.json", cache)
    assert tree_state.look(base, "data", digest)["ok"]  # nothing but reading can tell
    for verify in ("sample", "full"):
        (difference,) = tree_state.look(base, "data", digest, verify)["differences"]
        assert difference.startswith("train/1.jpg: other content")
        assert difference.endswith(" 3 bytes")
    assert not tree_state.look(base, "data", digest)[
        "ok"
    ]  # remembered, so that sync.yml brings it again


def test_how_long_every_byte_takes_is_told_from_what_was_measured_and_assumed_aloud_else(tmp_path):
    root, base = (
        put(tmp_path / "source", {"1.bin": "1" * (paths.BLOCK_BYTES + 5)}),
        str(tmp_path / "base"),
    )
    digest = manifest.digest(manifest.scan(root))
    shutil.copytree(root, tree_install.tree_paths(base, "data", digest)[0])
    state = tree_state.look(base, "data", digest, "estimate")
    assert state["ok"] and state["rate"] > 0 and "rate" not in tree_state.look(base, "data", digest)
    put(tree_install.tree_paths(base, "code", "c" * 64)[0], FILES)
    small = tree_state.look(base, "code", "c" * 64, "estimate")
    assert small["rate"] is None  # a few bytes tell nothing of a disk

    def told(**states):
        items = [
            {
                "kind": kind,
                "name": "x",
                "digest": (digest, "c" * 64)[kind == "code"],
                "bytes": 6 << 30,
            }
            for kind in ("data", "code")
        ]
        facts = {
            "placement": {"places": {}},
            "trees": {
                "{}/{}".format(t["kind"], t["digest"][:16]): states.get(t["kind"]) for t in items
            },
        }
        return placement.estimate_verification("node1", facts, items)

    def values(line):
        return re.findall(r"^\w+(?=:)|[\d.]+ [\w/]+|\w+ x", line)

    sampled, as_data = told(data=dict(state, rate=3 << 30), code=small)
    assert values(sampled) == ["node1", "6 GiB", "data x", "2 s", "3 GiB/s"]
    assert "sample" in sampled
    assert values(as_data) == ["node1", "6 GiB", "code x", "2 s", "3 GiB/s", "data x"]
    (assumed,) = told(code=small)  # what is not there is not read
    assert values(assumed) == ["node1", "6 GiB", "code x", "30 s", "200 MiB/s"]
    assert ", assumed: " in assumed


def test_the_probe_measures_where_every_byte_will_be_read(tmp_path, monkeypatch):
    asked = []
    monkeypatch.setattr(tree_state, "look", lambda base, kind, digest, verify: asked.append(verify))
    monkeypatch.setattr(probe, "SUBJECTS", {})
    for verify in ("cached", "sample", "full"):
        probe.look(
            lambda argv: (1, "", ""),
            str(tmp_path),
            [{"kind": "data", "digest": "d" * 64}],
            [],
            questions={"verify": verify},
        )
    assert asked == ["cached", "sample", "estimate"]


def test_a_sample_is_the_same_everywhere_and_bounded():
    entries = {"%d.jpg" % n: ["f", 1 << 20, ""] for n in range(1000)}
    chosen = manifest.sampled(entries, files=8, size=4 << 20)
    assert len(chosen) == 4 and chosen == manifest.sampled(
        dict(reversed(list(entries.items()))), files=8, size=4 << 20
    )
    assert manifest.sampled({"big": ["f", 1 << 40, ""]}) == ["big"]


# --- the plan and the start


def test_what_lies_on_the_nodes_is_linked_to_never_brought_and_in_the_plans_digest(tmp_path):
    given = gang(
        data={},
        code={"digest": "c" * 64, "path": "/opt/PaddleDetection"},
        placed=[{"key": "data/coco", "path": "/data/coco", "placement": "shared"}],
    )
    made = compiler.compile_plan(**given)
    assert made["links"]["dataset/coco"] == "/data/coco" and readiness.required_trees(made) == {
        "code": [],
        "data": [],
        "weights": [],
        "checkpoints": [],
    }
    given["facts"]["node1"] = fact_of(
        "10.127.6.17", placement={"places": {"data/coco": {"listing": "l"}}}
    )
    assert compiler.sha256(compiler.compile_plan(**given)) != compiler.sha256(made)
    code = put(tmp_path / "code", {"tools/train.py": "x"})
    node = dict(made["nodes"][0], base=str(tmp_path / "base"))
    made = dict(made, nodes=[node], code={"digest": "c" * 64, "path": code})
    place = str(tmp_path / "base/runs/r/attempt-1")
    attempt_dir.prepare(
        place,
        compiler.canonical_bytes(made).decode(),
        compiler.sha256(made),
        node["name"],
        "20261120-103501-a-1f2e",
        1,
        {},
    )
    work = os.path.join(place, "work")
    assert (
        os.path.realpath(work + "/tools/train.py") == code + "/tools/train.py"
        and os.readlink(work + "/dataset/coco") == "/data/coco"
    )


def test_the_outline_holds_the_config_chain_and_its_digest_every_file(tmp_path):
    code = {
        "tools/train.py": "x",
        "configs/a.yml": "_BASE_: ['../base.yml']\n",
        "base.yml": "_BASE_: more/deep.yml\n",
        "more/deep.yml": "a: 1\n",
    }
    root = put(tmp_path / "code", dict(code, **{"other.yml": "b: 1\n", "log/1": "x"}))
    found = remote_outline.describe_tree(str(tmp_path / "base"), root, "configs/a.yml", ["log"])
    assert (
        sorted(found["texts"]) == ["base.yml", "configs/a.yml", "more/deep.yml"]
        and "log/1" not in found["names"]
    )
    put(root, {"more/deep.yml": "a: 2\n"})
    assert (
        remote_outline.describe_tree(str(tmp_path / "base"), root, "configs/a.yml", ["log"])[
            "digest"
        ]
        != found["digest"]
    )
    with pytest.raises(manifest.ManifestError, match="the code is not there"):
        remote_outline.describe_tree(str(tmp_path / "base"), root + "x", "configs/a.yml", [])


def test_the_check_judges_placement(site):
    look, root, base = site
    nodes = [{"name": name, "accelerator": "cpu", "devices": ["0"]} for name in ("node1", "node2")]
    found = checks.judge_nodes(nodes, look(bases=lambda name: base("node1")), {})
    assert [item["check"] for item in findings.stops(found)].count("placement") == 1


# --- what a site may say


@pytest.mark.parametrize(
    "said, words",
    [
        (
            {
                "data": {"coco": {"path": "/d", "placement": "shared"}},
                "weights": {"path": "/w", "placement": "present"},
            },
            None,
        ),
        (
            {
                "code": {"path": "/c", "placement": "present"},
                "data": {"coco": {"path": "~/d", "placement": "push"}},
            },
            None,
        ),
        (
            {"data": {"coco": {"path": "~/d", "placement": "present"}}},
            "must be an absolute path on the nodes",
        ),
        (
            {"data": {"coco": {"path": "/d:ro", "placement": "shared"}}},
            "must be an absolute path on the nodes",
        ),
        ({"data": {"coco": {"path": "/d", "placement": "presnt"}}}, "did you mean 'present'?"),
        (
            {"code": {"git": "u", "version": "v", "placement": "present"}},
            "must be {path: a directory on the controller}",
        ),
        ({"weights": {"placement": "present"}}, "the key 'path' is missing"),
    ],
)
def test_what_a_site_may_say_of_placement(said, words):
    entry = dict({"code": {"path": "/c"}, "environment": {"python": "/p"}}, **said)
    problems = [
        str(problem)
        for problem in yaml_source.validate(entry, jobs.load_schema("site"), {}, "inventory")
    ]
    assert (len(problems), words in problems[0]) == (1, True) if words else problems == [], problems


def test_the_controller_needs_no_copy_of_what_lies_on_the_nodes(run_action, tmp_path):
    config = "configs/s.yml"
    text = (
        "epoch: 1\npretrain_weights: https://example.org/w.pdparams\nTrainDataset: {dataset_dir:"
        " dataset/coco, anno_path: a.json}\n"
    )
    code = put(tmp_path / "node", {"tools/train.py": "x", config: text})
    told = remote_outline.describe_tree(str(tmp_path / "base"), code, config, [])
    job = {
        "suite": "paddledetection",
        "launcher": "paddle",
        "config": config,
        "arguments": [],
        "overrides": {},
        "scaling": "advise",
    }
    given = {
        "suite": jobs.load_suite("paddledetection"),
        "job": job,
        "code": "/opt/code",
        "placement": "present",
        "outline": told,
    }
    given.update(
        data={"coco": {"path": "/data/coco", "placement": "shared"}},
        weights={"path": "/w", "placement": "present"},
    )
    found = run_action("job_inputs", dict(given, cache_dir=str(tmp_path / "cache")))
    assert not found.get("failed"), found["msg"]
    assert (
        found["trees"] == []
        and found["data"] == {}
        and found["weights"] == {}
        and found["fetched"] == []
    )
    assert (
        found["code"]["digest"] == told["digest"]
        and found["code"]["path"] == "/opt/code"
        and found["config"]["epochs"] == 1
    )
    assert [(item["key"], item["path"], item["verify"]) for item in found["placed"]] == [
        ("code", "/opt/code", "content"), ("data/coco", "/data/coco", "listing"),
        ("weights/w.pdparams", "/w/w.pdparams", "content"),
    ]  # fmt: skip
    assert found["overrides"]["pretrain_weights"] == "/w/w.pdparams"
    assert "dataset/coco" in found["placed"][0]["exclude"]
    blind = run_action(
        "job_inputs",
        dict(given, outline={}, unread="Connection refused", cache_dir=str(tmp_path / "none")),
    )
    assert (
        blind["placed"] == found["placed"][:1]
        and blind["trees"] == []
        and blind["unread"] == "Connection refused"
    )
    assert not (tmp_path / "none").exists()


def test_a_directory_that_is_made_between_two_looks_is_the_same_one(tmp_path):
    """One node makes the product's directory on a shared home while another one still looks."""
    path = tmp_path / "home" / ".trainyard" / "a"
    (tmp_path / "home").mkdir()
    before = set(paths.identity(str(path)))
    other = set(paths.identity(str(path.with_name("b"))))
    path.mkdir(parents=True)
    assert before & set(paths.identity(str(path)))
    path.with_name("b").mkdir()
    assert not set(paths.identity(str(path))) & (
        other | set(paths.identity(str(path.with_name("b"))))
    )
