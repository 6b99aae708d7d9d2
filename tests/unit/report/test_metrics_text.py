# SPDX-License-Identifier: Apache-2.0
"""The last figures of a run for Prometheus. The tests compare them with the exposition format, on
real runs (tests/fixtures/series).
"""

from __future__ import annotations

import json
import math
from pathlib import Path

import pytest
from ansible_collections.trainyard.cluster.plugins.module_utils.base.sanitize import MASK
from ansible_collections.trainyard.cluster.plugins.plugin_utils.report import metrics_text
from prometheus_client.parser import text_string_to_metric_families

RUNS = Path(__file__).resolve().parents[2] / "fixtures" / "series"
NAMES = sorted(path.name for path in RUNS.iterdir() if path.is_dir())


def read(name):
    return tuple(json.loads((RUNS / name / file).read_text()) for file in ("plan.json", "run.json"))


def parsed(text):
    """{(metric, its labels beside run and job in order of their names): value}.

    What the format does not allow fails here.
    """
    found, names = {}, []
    for metric in text_string_to_metric_families(text):
        assert metric.type == "gauge" and metric.documentation
        names.append(metric.name)
        for sample in metric.samples:
            # The textfile collector refuses timestamps.
            assert sample.name == metric.name and sample.timestamp is None
            assert {"run", "job"} <= set(sample.labels)
            key = (
                sample.name,
                *(value for name, value in sample.labels.items() if name not in ("run", "job")),
            )
            assert key not in found
            found[key] = sample.value
    # The samples of one metric stand together.
    assert len(set(names)) == len(names)
    return found


@pytest.mark.parametrize("name", NAMES)
def test_every_run_is_valid_text(name):
    found = parsed(metrics_text.exposition_text(*read(name)))
    outcomes = {key[1]: value for key, value in found.items() if key[0] == "trainyard_run_outcome"}
    assert set(outcomes) == set(metrics_text.OUTCOMES)
    assert sorted(outcomes.values()) == [0, 0, 0, 0, 1]


def test_the_figures_of_a_run():
    found = parsed(metrics_text.exposition_text(*read("evaluated")))
    expected = {
        ("info", "paddle", "molecule", "paddleseg"): 1,
        ("outcome", "completed"): 1,
        ("ranks", "done"): 2,
        ("ranks", "failed"): 0,
        ("last_step",): 30,
        ("loss",): 6.308,
        ("learning_rate",): 0.000135,
        ("throughput", "samples/s"): 5.398,  # rank 0's, times two
        ("evaluation", "miou"): 0.0319,
        ("restarts",): 0,
        ("log_bytes",): 8594 + 1282,
        ("start_timestamp_seconds",): 1795201937.875374,
        ("end_timestamp_seconds",): 1795201986.500858,
    }
    assert {key: found.get(("trainyard_run_" + key[0], *key[1:])) for key in expected} == expected


def test_a_run_that_goes_on_and_one_that_was_started_again():
    plan, record = read("failed")
    record["attempts"].append(dict(record["attempts"][0], number=2, verdict=None))
    found = parsed(metrics_text.exposition_text(plan, record))
    assert found["trainyard_run_restarts",] == 1 and {
        found["trainyard_run_outcome", name] for name in metrics_text.OUTCOMES
    } == {0}
    record["attempts"] = []
    assert ("trainyard_run_loss",) not in parsed(metrics_text.exposition_text(plan, record))
    parsed(metrics_text.exposition_text({}, {}))


def test_a_loss_that_is_lost_is_nan():
    plan, record = read("failed")
    rank = record["attempts"][0]["ranks"][0]
    rank["last_step"]["loss"], rank["nan"] = None, {"loss": "nan"}
    assert math.isnan(parsed(metrics_text.exposition_text(plan, record))["trainyard_run_loss",])


def test_labels_are_escaped_and_secrets_masked():
    plan, record = read("failed")
    plan["site"] = 'a"b\\c\nd\x1b é'
    plan["suite"]["name"], plan["env"]["MY_TOKEN"] = "hunter2hunter2", "hunter2hunter2"
    text = metrics_text.exposition_text(plan, record)
    assert ("trainyard_run_info", "fleetrun", 'a"b\\c\\nd\\x1b é', MASK) in parsed(text)
    assert r'site="a\"b\\c\\nd\\x1b é"' in text and "hunter2" not in text


def test_names_in_the_collectors_directory():
    run = "20261120-190935-raise-1b3e"
    name = metrics_text.file_name({"site": "lab"}, run)
    assert name == f"trainyard-lab-{run}.prom"
    assert metrics_text.former_name({"site": "../x"}, {"job": "/etc/a b"}) == (
        "trainyard-.._x-_etc_a_b.prom"
    )
    assert len(metrics_text.former_name({}, {"job": "x" * 500})) < 256
    older = name.replace("2026", "2025")
    others = ["trainyard-lab-raise.prom", "trainyard-lab2-20261120-190935-a.prom", "node.prom"]
    assert metrics_text.run_files({"site": "lab"}, [name, *others, older]) == [older, name]
