# SPDX-License-Identifier: Apache-2.0
"""ranks.json: the written file matches the documentation, an older index is read, and no entry of
other nodes is lost.
"""

from __future__ import annotations

import json
import re
import shutil

import pytest
import yaml
from ansible_collections.trainyard.cluster.plugins.module_utils.attempts import evidence
from ansible_collections.trainyard.cluster.plugins.plugin_utils.logsync import (
    collector,
    rank_index,
)
from conftest import sample_plan
from core_support import ROOT
from jsonschema import Draft202012Validator

SCHEMA = yaml.safe_load((ROOT / "docs/schemas/ranks.yml").read_text(encoding="utf-8"))
# A real run of version 1; see the README beside it.
RUN = "20261120-190935-raise-1b3e"
RAISED = ROOT / "tests/fixtures/raised" / RUN
ENDED = {
    "service_result": "exit-code",
    "exit_code": "exited",
    "exit_status": "250",
    "time": 1795166909.0,
    "stopped_by": None,
}


def valid(index):
    """Assert that an index is what the schema says, after it was JSON."""
    problems = [
        (list(error.path), error.message)
        for error in Draft202012Validator(SCHEMA).iter_errors(json.loads(json.dumps(index)))
    ]
    assert not problems, problems


@pytest.fixture
def brought(make_attempt, tmp_path):
    """Bring a real failure of two nodes home; returns (the attempt's directory, the index)."""
    here = tmp_path / "runs" / RUN / "attempt-1"
    here.mkdir(parents=True)
    suites = ROOT / "playbooks/suites"
    logs = yaml.safe_load((suites / "paddledetection.yml").read_text(encoding="utf-8"))["logs"]

    def call(names=("node1", "node2"), digest=True):
        nodes = []
        for name in names:
            home = tmp_path / "nodes" / name / "attempt-1"
            home = (
                home
                if home.exists()
                else make_attempt(
                    name,
                    "failure_rank3_raises_2x2",
                    plan=sample_plan(logs=logs),
                    events=[],
                    exit=ENDED,
                )
            )
            found = evidence.collect(str(home), name, digest)
            for item in found["files"] if digest else ():
                target = here / ".incoming" / name / item["file"]
                target.parent.mkdir(parents=True, exist_ok=True)
                shutil.copyfile(home / item["file"], target)
            nodes.append(found if digest else dict(found, files=[], goes_on=True))
        result = collector.install_files(str(here), nodes)
        assert not result["mismatches"]
        return here, result["index"]

    return call


# -- the documented fields, the schema, and what is written
# -----------------------------------------------------------------


def documented():
    """Return {section: {field: types}} of docs/ranks-json.md."""
    found, section = {}, None
    for line in (ROOT / "docs/ranks-json.md").read_text(encoding="utf-8").splitlines():
        if line.startswith("## "):
            section = line[3:].strip("`")
        row = re.match(r"^\| `(\w+)` \| ([a-z, ]+) \| .{4,}\|$", line)
        if row:
            found.setdefault(section, {})[row.group(1)] = sorted(row.group(2).split(", "))
    return found


def of_schema(schema):
    """Return {field: types} of an object's schema."""
    assert schema["additionalProperties"] is False and set(schema["required"]) == set(
        schema["properties"]
    )
    kinds = {name: entry.get("type", "string") for name, entry in schema["properties"].items()}
    return {
        name: sorted(kind if isinstance(kind, list) else [kind]) for name, kind in kinds.items()
    }


def test_the_document_has_the_schemas_fields_and_types():
    parts, rank = SCHEMA["properties"], SCHEMA["properties"]["ranks"]["items"]
    assert documented() == {
        "The whole": of_schema(SCHEMA),
        "nodes[]": of_schema(parts["nodes"]["items"]),
        "ranks[]": of_schema(rank),
        "ranks[].error": of_schema(rank["properties"]["error"]),
        "files[]": of_schema(parts["files"]["items"]),
    }


def test_what_is_written_is_what_the_schema_says(brought):
    here, index = brought()
    valid(index)
    assert (
        json.loads((here / "ranks.json").read_text(encoding="utf-8"))
        == index
        == rank_index.read_index(str(here))
    )
    assert (index["version"], index["run"], index["attempt"]) == (rank_index.VERSION, RUN, 1)
    failed = [
        rank for rank in index["ranks"] if rank["error"] and rank["error"]["kind"] == "ValueError"
    ]
    assert [
        (rank["rank"], rank["node"], rank["local_rank"], rank["device"]) for rank in failed
    ] == [(3, "node2", 1, "1")]
    assert failed[0]["error"] == {
        "kind": "ValueError",
        "text": "image 000000012.jpg is truncated",
        "line": 14,
        "cause": "python_exception",
    }
    assert (
        failed[0]["bytes"] == (here / failed[0]["home"]).stat().st_size and failed[0]["lines"] == 14
    )
    assert failed[0]["first_time"] <= failed[0]["last_time"]


def test_of_a_run_that_goes_on_the_index_has_the_ranks_and_leaves_the_files_alone(
    brought, tmp_path
):
    streamed = tmp_path / "runs" / RUN / "attempt-1" / "rank-000.node1.log"
    streamed.write_bytes(b"its first")
    here, index = brought(digest=False)
    valid(index)
    assert [rank["rank"] for rank in index["ranks"]] == [0, 1, 2, 3] and index["files"] == []
    assert {rank["sha256"] for rank in index["ranks"]} == {None}
    assert sorted(path.name for path in here.iterdir()) == ["rank-000.node1.log", "ranks.json"]


# -- an older index
# ------------------------------------------------------------------------------------------------


def test_an_index_of_version_1_is_read_as_todays():
    old = json.loads((RAISED / "attempt-1/ranks.json").read_text(encoding="utf-8"))
    assert old["version"] == 1
    index = rank_index.read_index(str(RAISED / "attempt-1"))
    valid(index)
    assert (index["run"], index["attempt"], [node["node"] for node in index["nodes"]]) == (
        RUN,
        1,
        ["node1", "node2"],
    )
    one = index["ranks"][1]
    assert one["error"] == {
        "kind": "ValueError",
        "text": "image 000000012.jpg is truncated",
        "line": 26,
        "cause": "python_exception",
    }
    assert one["last_time"] == old["ranks"][1]["mtime"]
    assert rank_index.is_complete(
        index, json.loads((RAISED / "plan.json").read_text(encoding="utf-8"))
    )


@pytest.mark.parametrize(
    "text, words",
    [
        ('{"version": 3, "ranks": [], "files": []}', "has version 3, this Trainyard reads 1 and 2"),
        ('{"version": 2, "ranks": {}}', "has no lists `ranks` and `files`"),
        ('{"version": 2, "ranks": [1], "files": []}', "has no lists"),
        ("[]", "has no lists"),
        ('{"vers', "cannot be read"),
        ("[" * 100000, "cannot be read"),
        ("\xff", "has no lists|cannot be read"),
    ],
)
def test_an_index_that_cannot_be_read_says_why(tmp_path, text, words):
    (tmp_path / "ranks.json").write_bytes(text.encode("latin-1"))
    with pytest.raises(rank_index.IndexProblem, match=words):
        rank_index.read_index(str(tmp_path))


def test_no_index_is_none(tmp_path):
    assert rank_index.read_index(str(tmp_path)) is None


# -- nothing is lost
# -----------------------------------------------------------------------------------------------


def test_what_is_known_of_other_nodes_stays(brought):
    whole = brought()[1]
    again = brought(names=("node2",))[1]
    assert again == whole


def test_an_index_of_a_newer_trainyard_is_left_as_it_is(brought):
    here, index = brought()
    (here / "ranks.json").write_text(json.dumps(dict(index, version=3)), encoding="utf-8")
    with pytest.raises(
        collector.RequestError,
        match="has version 3, this Trainyard reads 1 and 2; use the newer one",
    ):
        collector.install_files(str(here), [])
    assert json.loads((here / "ranks.json").read_text(encoding="utf-8"))["version"] == 3


def test_the_end_of_every_rank_and_node_makes_it_over(brought):
    index, plan = brought()[1], dict(sample_plan(), nodes=[{"name": "node1"}, {"name": "node2"}])
    assert rank_index.is_complete(index, plan)
    assert not rank_index.is_complete(dict(index, ranks=index["ranks"][:-1]), plan)
    assert not rank_index.is_complete(
        dict(index, ranks=[dict(rank, state="training") for rank in index["ranks"]]), plan
    )
    assert not rank_index.is_complete(
        dict(index, files=[item for item in index["files"] if item["home"] != "exit.node2.json"]),
        plan,
    )
