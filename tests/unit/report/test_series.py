# SPDX-License-Identifier: Apache-2.0
"""What the logs of a run say over time. The tests use real runs (tests/fixtures/series), and copies
of them with wrong clocks, zones, files and logs.
"""

from __future__ import annotations

import hashlib
import json
import re
import shutil
from pathlib import Path

import pytest
from ansible_collections.trainyard.cluster.plugins.module_utils.base.sanitize import MASK
from ansible_collections.trainyard.cluster.plugins.module_utils.logs.timestamps import Clock
from ansible_collections.trainyard.cluster.plugins.plugin_utils.report import curves, phases, series
from ansible_collections.trainyard.cluster.plugins.plugin_utils.suites import suite_file

FIXTURES = Path(__file__).resolve().parents[2] / "fixtures"
RUNS = FIXTURES / "series"
NAMES = sorted(path.name for path in RUNS.iterdir() if path.is_dir())


@pytest.fixture
def run(tmp_path):
    """Copy a fixture to a place where it may be changed."""

    def copy(name):
        place = tmp_path / name
        shutil.copytree(RUNS / name, place)
        return place

    return copy


def change(path, function):
    """Rewrite a JSON file with what the function makes of it (None: what it changed in place)."""
    value = json.loads(path.read_text())
    path.write_text(json.dumps(function(value) or value))
    record = path.parent / "run.json"
    if (
        path.name == "plan.json" and record.exists()
    ):  # the plan stays the one that this controller has recorded
        run, digest = json.loads(record.read_text()), hashlib.sha256(path.read_bytes()).hexdigest()
        run["plan_sha256"] = digest
        for item in run["attempts"] if isinstance(run.get("attempts"), list) else ():
            item["plan_sha256"] = digest
        record.write_text(json.dumps(run))


def only(found):
    """The one attempt, after a look whether the whole can be written as JSON without NaN."""
    json.dumps(found, allow_nan=False)
    (attempt,) = found["attempts"]
    return attempt


def lane(attempt, rank):
    """[(phase, begin, end)] of a rank, in seconds since the attempt's begin."""
    begin = attempt["begin"]
    return [
        (p["phase"], round(p["begin"] - begin), round(p["end"] - begin))
        for p in attempt["phases"]
        if p["rank"] == rank
    ]


# -- real runs
# --------------------------------------------------------------------------------------------------


def test_a_run_with_evaluations():
    found = series.of_run(str(RUNS / "evaluated"))
    attempt = only(found)
    assert (found["run"], found["job"], found["suite"]) == (
        "20261120-191153-segmentation-aea2",
        "segmentation",
        "paddleseg",
    )
    assert found["nodes"] == ["node1", "node2"]
    assert found["ranks"][1] == {
        "rank": 1,
        "node": "node2",
        "local_rank": 0,
        "device": "0",
        "endpoint": "198.51.100.102:*",
    }
    curve = attempt["series"][0]
    assert set(curve) == set(curves.COLUMNS) and list(attempt["series"]) == [0]
    assert curve["step"] == list(range(3, 31, 3)) and curve["epoch"] == [1] * 8 + [2] * 2
    assert (curve["loss"][0], curve["lr"][0], curve["ips"][0], curve["batch_cost"][0]) == (
        9.0936,
        0.00048,
        2.3805,
        0.8402,
    )
    assert (curve["time"][0], curve["time"][-1]) == (1795201948.0, 1795201970.0)
    assert [
        (e["step"], e["time"], e["figures"]["miou"], e["rank"]) for e in attempt["evaluations"]
    ] == [
        (15, 1795201959.0, 0.0565, 0),
        (30, 1795201972.0, 0.0319, 0),
    ]
    assert found["best"] == {
        "figure": "miou",
        "value": 0.0565,
        "step": 15,
        "epoch": 1,
        "time": 1795201959.0,
        "attempt": 1,
    }
    assert attempt["clock"] == attempt["utc_offset"] == {"node1": 0.0, "node2": 0.0}
    assert lane(attempt, 0) == [
        *(
            ("start", 0, 6),
            ("rendezvous", 6, 8),
            ("first_step", 8, 10),
            ("training", 10, 20),
            ("evaluation", 20, 21),
        ),
        *(("training", 21, 32), ("evaluation", 32, 34), ("stop", 34, 36)),
    ]
    # rank 1 prints no step: its training is rank 0's, its end its own
    assert lane(attempt, 1) == [
        ("start", 0, 7),
        ("rendezvous", 7, 8),
        ("first_step", 8, 10),
        ("training", 10, 34),
        ("stop", 34, 36),
    ]
    assert [p.get("inferred", False) for p in attempt["phases"] if p["rank"] == 1] == [
        False,
        False,
        True,
        True,
        False,
    ]
    assert attempt["marks"] == []


def test_the_sum_of_a_suite_that_prints_on_its_first_rank():
    summed = only(series.of_run(str(RUNS / "evaluated")))["summed"]
    assert summed["ips"][0] == 2 * 2.3805 and len(summed["time"]) == len(summed["ips"]) == 10
    assert summed["note"].startswith("rank 0's times ") and "ranks (2)" in summed["note"]


def test_every_rank_that_prints_is_summed_as_it_is(run):
    place = run("evaluated")
    change(place / "plan.json", lambda plan: plan["suite"]["logs"]["step"].pop("ranks") and None)
    attempt = only(series.of_run(str(place)))
    assert attempt["summed"]["ips"][0] == 2.3805
    assert re.findall("[0-9]+", attempt["summed"]["note"]) == ["1", "2"]
    shutil.copyfile(
        place / "attempt-1" / "rank-000.node1.log", place / "attempt-1" / "rank-001.node2.log"
    )
    attempt = only(series.of_run(str(place)))
    assert attempt["summed"]["ips"][0] == 2 * 2.3805 and attempt["summed"]["note"] is None
    assert not any(p.get("inferred") for p in attempt["phases"])


def test_epochs_count_on_and_checkpoints_are_seen():
    found = series.of_run(str(RUNS / "recognition"))
    attempt = only(found)
    assert (
        attempt["series"][0]["step"] == list(range(16, 385, 16))
        and attempt["series"][0]["epoch"][-1] == 6
    )
    assert [(s["step"], s["path"].rpartition("/")[2]) for s in attempt["saved"]][:3] == [
        (64, "latest"),
        (128, "best_accuracy"),
        (128, "latest"),
    ]
    assert found["best"]["value"] == 0.77734375 and found["best"]["step"] == 384
    assert {p["phase"] for p in attempt["phases"] if p["rank"] == 0} == set(
        ["start", "rendezvous", "first_step", "training", "evaluation", "checkpoint", "stop"]
    )


def test_an_evaluation_whose_figures_have_no_date(tmp_path):
    """PaddleDetection: the evaluation began when the checkpoint was saved, and ended with its
    message. The checkpoint came after the last step of the epoch.
    """
    step = (
        "[11/20 19:18:14] ppdet.engine INFO: Epoch: [2] [10/12] learning_rate: 0.000901 loss:"
        " 2.644034 eta: 0:00:02 batch_cost: 0.9554 ips: 4.1867 images/s"
    )
    lines = [  # of run 20261120-191718-short-ce1b
        step.replace(":14]", ":12]").replace("[10/12]", "[ 8/12]"),
        step,
        (
            "[11/20 19:18:16] ppdet.utils.checkpoint INFO: Save checkpoint:"
            " output/ppyoloe_crn_s_300e_coco"
        ),
        " Average Precision  (AP) @[ IoU=0.50:0.95 | area=   all | maxDets=100 ] = 0.029",
        " Average Precision  (AP) @[ IoU=0.50      | area=   all | maxDets=100 ] = 0.074",
        (
            "[11/20 19:18:18] ppdet.engine INFO: Total sample number: 24, average FPS:"
            " 19.168750893804674"
        ),
        (
            "[11/20 19:18:19] ppdet.utils.checkpoint INFO: Save checkpoint:"
            " output/ppyoloe_crn_s_300e_coco"
        ),
    ]
    place = composed(tmp_path / "run", "paddledetection", {1: "\n".join(lines).encode()})
    (place / "run.json").write_text('{"started": 1795202200.0, "attempts": []}')
    attempt = only(series.of_run(str(place)))
    (evaluation,) = attempt["evaluations"]
    assert (evaluation["time"], evaluation["step"]) == (1795202298.0, 35)
    assert evaluation["figures"] == {
        "ap": 0.029,
        "ap50": 0.074,
        "samples": 24,
        "fps": 19.168750893804674,
    }
    begin = 1795202292.0
    drawn = [
        (p["phase"], round(p["begin"] - begin, 2), round(p["end"] - begin, 2))
        for p in attempt["phases"]
    ]
    assert drawn[-4:] == [
        ("training", 0, 2.96),
        ("checkpoint", 2.96, 4),
        ("evaluation", 4, 6),
        ("checkpoint", 6, 7),
    ]


def test_very_many_evaluations_and_checkpoints_stay_few(monkeypatch, tmp_path):
    """Some of both kinds stay, over the whole time. The best is never dropped."""
    monkeypatch.setattr(curves, "SIGNS", 10)
    lines = [
        "2026-11-20 09:%02d:00 [INFO]\t[TRAIN] epoch: 1, iter: %d/99, loss: 1.0, lr: 0.1, ips: 2.0"
        " samples/sec\n2026-11-20 09:%02d:10 [INFO]\t[EVAL] #Images: 24 mIoU: %s Acc: 0.5 Kappa:"
        " 0.3\n2026-11-20 09:%02d:20 [INFO]\tSave checkpoint: x\n"
        % (n, n + 1, n, 0.9 if n == 17 else 0.01, n)
        for n in range(60)
    ]
    place = composed(tmp_path / "run", "paddleseg", {1: "".join(lines).encode()})
    saved = {"has": ["Save checkpoint: "], "lines": ["Save checkpoint: (?P<path>.*)"]}
    (place / "run.json").write_text('{"attempts": []}')
    change(place / "plan.json", lambda plan: plan["suite"]["logs"].update(saved=saved))
    found = series.of_run(str(place))
    attempt = only(found)
    for kind, entries in (("evaluation", attempt["evaluations"]), ("checkpoint", attempt["saved"])):
        assert 5 <= len(entries) <= 10 and entries[0]["step"] == 1 and entries[-1]["step"] == 60
        assert 5 <= len([p for p in attempt["phases"] if p["phase"] == kind]) <= 10
    assert found["best"]["step"] == 18


def test_mindspore():
    attempt = only(series.of_run(str(RUNS / "msrun")))
    assert attempt["series"][0]["step"] == [8, 16, 24, 32, 40, 48, 56, 64]
    assert attempt["series"][0]["batch_cost"][0] == pytest.approx(
        0.956443
    )  # the log has milliseconds
    assert lane(attempt, 1)[:3] == [("start", 0, 5), ("rendezvous", 5, 14), ("first_step", 14, 22)]
    assert [e["step"] for e in attempt["evaluations"]] == [32, 64] and [
        s["step"] for s in attempt["saved"]
    ] == [32]


def test_the_first_fault_comes_first():
    attempt = only(series.of_run(str(RUNS / "failed")))
    marks = [
        (m["rank"], m["level"], m["text"].split(":")[0], m.get("verdict", False))
        for m in attempt["marks"]
    ]
    assert marks == [
        (1, "error", "ValueError", True),
        (0, "warning", "RuntimeError", False),
        (None, "info", "stop requested by peer (node2)", False),
    ]
    assert lane(attempt, 1)[-2:] == [("training", 7, 13), ("stop", 13, 15)]
    assert lane(attempt, 0)[-2:] == [("training", 7, 16), ("stop", 16, 16)]
    assert attempt["verdict"]["cause"] == "python_exception"


def test_a_stop_by_the_user(run):
    place = run("stopped")
    attempt = only(series.of_run(str(place)))
    assert [m["text"] for m in attempt["marks"] if m["level"] == "info"] == [
        "stop requested by user (root)"
    ] * 2
    assert not [m for m in attempt["marks"] if m["level"] == "error"]
    # newer records say when the stop was asked for
    asked = attempt["end"] - 1.5
    change(
        place / "run.json",
        lambda r: r["attempts"][0].update(
            nodes=[{"node": n, "utc_offset": 0, "stopped_at": asked} for n in ("node1", "node2")]
        ),
    )
    newer = only(series.of_run(str(place)))
    assert [m["time"] for m in newer["marks"] if m["level"] == "info"] == [asked] * 2
    assert [p["begin"] for p in newer["phases"] if p["phase"] == "stop"] == [asked] * 2


def test_a_node_that_was_lost():
    attempt = only(series.of_run(str(RUNS / "lost")))
    assert [(m["node"], m["text"]) for m in attempt["marks"] if m["text"] == "did not answer"] == [
        ("node2", "did not answer")
    ]
    assert {p["rank"] for p in attempt["phases"]} == {0} and attempt["utc_offset"] == {
        "node1": 0.0,
        "node2": None,
    }


# -- clocks and zones
# --------------------------------------------------------------------------------------------------


def shift(place, node, seconds):
    """Set a node's clock ahead, in everything that it wrote; the record by the controller stays."""
    moved = re.compile(r"\b1795\d{6}(?:\.\d+)?")
    for path in (place / "attempt-1").glob(f"*.{node}.json*"):
        path.write_text(moved.sub(lambda m: str(float(m.group()) + seconds), path.read_text()))

    def ranks(record):
        for rank in record["attempts"][0]["ranks"]:
            rank.update(
                {key: rank[key] + seconds for key in ("mtime", "started", "ended")}
                if rank["node"] == node
                else {}
            )

    change(place / "run.json", ranks)
    hours = int(seconds // 3600)
    for path in (place / "attempt-1").glob(f"rank-*.{node}.log"):
        path.write_text(re.sub(r"\b19(?=:1[0-9]:)", "%02d" % (19 + hours), path.read_text()))


@pytest.mark.parametrize("hours", [1, -1])
def test_a_clock_that_is_off_is_set_right(run, hours):
    place = run("failed")
    shift(place, "node2", 3600 * hours)
    attempt = only(series.of_run(str(place)))
    assert abs(attempt["clock"]["node2"] - 3600 * hours) < 4 and attempt["clock"]["node1"] == 0.0
    right = only(series.of_run(str(RUNS / "failed")))
    assert attempt["end"] - attempt["begin"] < right["end"] - right["begin"] + 4
    for one in lane(right, 1):
        assert one[0] == "first_step" or any(
            one[0] == other[0] and abs(one[1] - other[1]) <= 4 for other in lane(attempt, 1)
        )


def test_how_far_a_clock_is_off():
    assert (
        phases.clock_offset((-10.0, 1.5))
        == phases.clock_offset((None, 2.0))
        == phases.clock_offset((-3.0, None))
        == phases.clock_offset((None, None))
        == 0.0
    )
    assert phases.clock_offset((-70.0, -58.5)) == -58.5
    assert 48.0 <= phases.clock_offset((48.0, 61.0)) <= 61.0
    assert phases.clock_offset((30.0, None)) == 30.0


def test_a_nodes_time_zone(run):
    """The dates of a log are those of its node. The zone is the one that the node reported. In
    records of older versions, it follows from the times of the agent.
    """
    place = run("msrun")
    for path in (place / "attempt-1").glob("rank-*.log"):
        text = re.sub(r"2026-11-20([ -])19:", r"2026-11-21\g<1>03:", path.read_text())
        path.write_text(text)
    right = only(series.of_run(str(RUNS / "msrun")))
    attempt = only(series.of_run(str(place)))
    assert attempt["utc_offset"] == {"node1": 28800.0, "node2": 28800.0}
    assert (attempt["series"], attempt["phases"]) == (right["series"], right["phases"])
    said = [{"node": n, "utc_offset": 28800 - 3600} for n in ("node1", "node2")]
    change(place / "run.json", lambda r: r["attempts"][0].update(nodes=said))
    assert (
        only(series.of_run(str(place)))["series"][0]["time"][0]
        == right["series"][0]["time"][0] + 3600
    )


# -- logs that are not as they should be
# -----------------------------------------------------------------------------------------


def composed(place, suite, logs):
    """A run's directory made of {attempt: log of rank 0}, with the suite's table of today; nobody
    has seen its ends.
    """
    place.mkdir()
    ranks = [
        {
            "rank": n,
            "node": "node%d" % (n + 1),
            "local_rank": 0,
            "device": "0",
            "endpoint": "198.51.100.10%d:17000" % n,
        }
        for n in (0, 1)
    ]
    table = suite_file.load(suite)
    plan = {
        "ranks": ranks,
        "nodes": [{"name": "node1"}, {"name": "node2"}],
        "suite": {"name": suite, "logs": table["logs"]},
    }
    (place / "plan.json").write_text(json.dumps(plan))
    for number, text in logs.items():
        (place / ("attempt-%d" % number)).mkdir()
        (place / ("attempt-%d" % number) / "rank-000.node1.log").write_bytes(text)
    return place


def test_a_hang_is_a_hole(run):
    """Between the last step and the stop an hour later there is no phase."""
    place = run("stopped")
    late = re.compile(r'("ended": |"time": )(17952017\d\d\.\d+)')
    for path in (place / "attempt-1").glob("*.json*"):
        path.write_text(
            late.sub(lambda m: m.group(1) + str(float(m.group(2)) + 3600), path.read_text())
        )

    def ends(record):
        entry = record["attempts"][0]
        entry["ended"] += 3600
        for rank in entry["ranks"]:
            rank.update(ended=rank["ended"] + 3600, first_error=None)

    change(place / "run.json", ends)
    attempt = only(series.of_run(str(place)))
    (training,) = [p for p in attempt["phases"] if p["rank"] == 0 and p["phase"] == "training"]
    (stop,) = [p for p in attempt["phases"] if p["rank"] == 0 and p["phase"] == "stop"]
    assert training["end"] == attempt["series"][0]["time"][-1]
    assert stop["begin"] - training["end"] > 3590


def test_a_loss_that_is_lost(tmp_path):
    text = (FIXTURES / "logs" / "paddleseg" / "nan.log").read_bytes()
    attempt = only(series.of_run(str(composed(tmp_path / "run", "paddleseg", {1: text}))))
    (mark,) = attempt["marks"]
    first = attempt["series"][0]["loss"].index(None)
    assert (mark["text"], mark["level"], mark["rank"]) == ("the loss is nan", "warning", 0)
    assert mark["time"] == attempt["series"][0]["time"][first]


def test_a_resumed_training_counts_on(tmp_path):
    logs = FIXTURES / "logs" / "mindocr"
    found = series.of_run(
        str(
            composed(
                tmp_path / "run",
                "mindocr",
                {1: (logs / "trained.log").read_bytes(), 2: (logs / "resumed.log").read_bytes()},
            )
        )
    )
    first, second = found["attempts"]
    assert (first["number"], second["number"]) == (1, 2)
    assert second["series"][0]["epoch"][0] > 1
    assert second["series"][0]["step"][0] > first["series"][0]["step"][0]


@pytest.mark.parametrize(
    ("record", "first", "number"),
    [
        ({"epoch": 0, "step": 0, "steps": 12}, {"epoch": 0, "step": 0}, 1),
        ({"epoch": 2, "step": 10, "steps": 12}, {"epoch": 0, "step": 0}, 35),
        ({"epoch": 2, "step": 8, "steps": 32}, {}, 40),
        ({"epoch": 3, "global_step": 140, "steps": 64}, {}, 140),
        # PaddleOCR, resumed at the third epoch: its own count begins again
        ({"epoch": 3, "global_step": 12, "steps": 64}, {}, 140),
        ({"epoch": 3, "global_step": 64, "steps": 64}, {}, 192),
        ({"epoch": 2, "global_step": 27}, {"epoch": 1, "global_step": 1}, 27),
        ({"step": 5}, {}, 5),
        ({"epoch": 5}, {}, None),
    ],
)
def test_steps_over_epochs(record, first, number):
    assert curves.counted(record, first) == number


def test_what_was_brought_before_a_log_was_truncated_counts(run):
    place = run("evaluated") / "attempt-1"
    log = place / "rank-000.node1.log"
    lines = log.read_bytes().splitlines(keepends=True)
    (place / "rank-000.node1.log.1").write_bytes(b"".join(lines[:146]) + b"half a line, when")
    (place / "rank-000.node1.log.2").write_bytes(b"".join(lines[146:150]))
    log.write_bytes(b"".join(lines[150:]))
    attempt = only(series.of_run(str(place.parent)))
    right = only(series.of_run(str(RUNS / "evaluated")))
    assert (attempt["series"], attempt["phases"]) == (right["series"], right["phases"])


def test_no_link_is_read(run, tmp_path):
    log = run("evaluated") / "attempt-1" / "rank-000.node1.log"
    outside = tmp_path / "outside.log"
    log.rename(outside)
    log.symlink_to(outside)
    assert only(series.of_run(str(log.parents[1])))["series"] == {}


def test_bytes_of_every_kind(tmp_path):
    step = (
        "2026-11-20 09:27:%02d [INFO]\t[TRAIN] epoch: 1, iter: %s/99, loss: %s, lr: 1e-3,"
        " batch_cost: 1, reader_cost: 1, ips: 2.0 samples/sec\n"
    )
    odd = [
        b"\xff\xfe\0\0\r\r",
        b"x" * 3_000_000,
        (step % (1, "9" * 5000, "1")).encode(),
        (step % (2, "3", "1e999")).encode(),
        b"\x1b[2J[TRAIN] epoch: \n",
    ]
    text = (
        (step % (3, 3, 1.5)).encode()
        + b"\n".join(odd)
        + (step % (9, 9, 2.5)).encode()
        + (step % (59, 10, 3.5)).encode()[:-30]
    )
    attempt = only(series.of_run(str(composed(tmp_path / "run", "paddleseg", {1: text}))))
    curve = attempt["series"][0]
    assert (curve["step"][0], curve["loss"][0], curve["step"][-2], curve["loss"][-2]) == (
        3,
        1.5,
        9,
        2.5,
    )
    assert (curve["step"][-1], curve["loss"][-1]) == (10, 3.5)  # the line that is being written


@pytest.mark.parametrize("digits", [300, 5000])
def test_a_number_of_steps_that_no_training_has(tmp_path, digits):
    text = "ppocr INFO: train dataloader has %s iters\n" % ("9" * digits)
    text += (
        "[2026/11/20 19:14:13] ppocr INFO: epoch: [1/6], global_step: 16, lr: 0.003, loss: 11.8,"
        " avg_batch_cost: 0.03 s, ips: 457.4 samples/s\n"
    )
    attempt = only(series.of_run(str(composed(tmp_path / "run", "paddleocr", {1: text.encode()}))))
    assert attempt["series"][0]["step"] == [16]


def test_a_log_without_dates(tmp_path):
    text = b"".join(
        b"x [TRAIN] epoch: 1, iter: %d/99, loss: 2.5, lr: 0.1, ips: 2.0 samples/sec\n" % n
        for n in range(1, 9)
    )
    attempt = only(series.of_run(str(composed(tmp_path / "run", "paddleseg", {1: text}))))
    assert attempt["series"][0]["step"] == list(range(1, 9)) and set(
        attempt["series"][0]["time"]
    ) == {None}
    assert attempt["summed"]["ips"] == [] and attempt["phases"] == []


def test_many_lines_are_thinned_and_a_spike_stays(tmp_path):
    line = (
        "2026-11-20 %02d:%02d:%02d [INFO]\t[TRAIN] epoch: 1, iter: %d/20000, loss: %s, lr: 0.1,"
        " batch_cost: 1.0, reader_cost: 0.1, ips: %s samples/sec\n"
    )
    text = "".join(
        line
        % (
            n // 3600,
            n // 60 % 60,
            n % 60,
            n,
            99.5 if n == 7777 else 2.5 + n % 3,
            0.1 if n == 12345 else 4,
        )
        for n in range(1, 20001)
    )
    attempt = only(
        series.of_run(str(composed(tmp_path / "run", "paddleseg", {1: text.encode()})), points=300)
    )
    curve = attempt["series"][0]
    assert 100 < len(curve["step"]) <= 300 and (curve["step"][0], curve["step"][-1]) == (1, 20000)
    assert (
        curve["loss"][curve["step"].index(7777)] == 99.5
        and curve["ips"][curve["step"].index(12345)] == 0.1
    )
    assert len(attempt["summed"]["time"]) <= curves.SPANS and attempt["summed"]["ips"][0] == 8.0


# -- runs with missing and damaged files
# -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", NAMES)
def test_whatever_is_missing(run, name):
    place = run(name)
    for path in sorted(place.rglob("*")):
        if path.is_file():
            kept = path.read_bytes()
            for damage in (None, b"", b"{\xff", kept[: len(kept) // 2], b"[]", b"7"):
                path.unlink(missing_ok=True)
                if damage is not None:
                    path.write_bytes(damage)
                only(series.of_run(str(place), points=50))
            path.unlink()
    assert only(series.of_run(str(place)))["series"] == {}


@pytest.mark.parametrize(
    ("place", "value"),
    [
        (("step", "first"), "x"),
        (("step", "scale"), [1]),
        (("step", "has"), [None]),
        (("evaluation", "main"), [1]),
        (("saved",), 5),
        (("step", "line"), "("),
    ],
)
def test_a_table_that_cannot_be_used(run, place, value):
    path = run("failed")

    def broken(plan):
        table = plan["suite"]["logs"]
        for key in place[:-1]:
            table = table[key]
        table[place[-1]] = value

    change(path / "plan.json", broken)
    assert len(only(series.of_run(str(path)))["marks"]) == 3


def test_nothing_at_all(tmp_path):
    assert series.of_run(str(tmp_path / "none"))["attempts"] == []
    (tmp_path / "attempt-1").mkdir()
    assert only(series.of_run(str(tmp_path)))["phases"] == []


# -- settings
# --------------------------------------------------------------------------------------------------


def test_settings_to_compare_by():
    found = series.of_run(str(RUNS / "evaluated"))["settings"]
    assert (
        found["suite"] == "paddleseg"
        and found["launcher"] == "paddle"
        and found["version"] == "2.6.2"
        and found["nodes"] == 2
    )
    assert (
        found["override batch_size"] == 2
        and found["batch in total"] == 4
        and found["learning rate"] == 0.002
        and found["iterations"] == 30
    )
    assert (
        found["data cityscapes"] == "08d46a305b21"
        and found["code"] == "47e7a4ae994e"
        and found["devices"] == "1 a node"
    )
    assert all(isinstance(value, (str, int, float, bool)) for value in found.values())


def test_numbers_come_from_the_plans_settings_and_else_from_its_sentences(run):
    """A plan of an earlier version has sentences only."""
    path = run("evaluated")
    numbers = {"batch_per_card": 3, "batch_total": 6, "learning_rate": 0.5, "iterations": None}
    change(path / "plan.json", lambda plan: plan.update(settings=numbers))
    found = series.of_run(str(path))["settings"]
    assert (found["batch per card"], found["batch in total"], found["learning rate"]) == (3, 6, 0.5)
    assert "iterations" not in found


def test_secrets_are_masked(run):
    place, secret = run("failed"), "hunter2hunter2"

    def marked(plan):
        plan["env"].update(WANDB_API_KEY=secret, MY_LOGIN="other-word", A_PASSWORD="abc")
        plan["job"]["overrides"]["logger.token"] = secret
        plan["secret_env"] = ["MY_LOGIN"]

    change(place / "plan.json", marked)

    def said(record):
        record["job"] = secret
        record["attempts"][0]["ranks"][1]["first_error"]["text"] = (
            f"login with {secret} and other-word \x1b[2J failed"
        )

    change(place / "run.json", said)
    found = series.of_run(str(place))
    text = json.dumps(found)
    assert secret not in text and "other-word" not in text and "\\u001b" not in text
    assert (
        found["settings"]["env WANDB_API_KEY"]
        == found["settings"]["env MY_LOGIN"]
        == found["settings"]["env A_PASSWORD"]
        == MASK
    )
    assert f"login with {MASK}" in text


def test_the_start_of_a_log_is_read_up_to_its_first_step(tmp_path):
    """Later messages about lost peers are not a rendezvous."""
    path = tmp_path / "log"
    path.write_bytes(
        (RUNS / "failed" / "attempt-1" / "rank-001.node2.log").read_bytes()
        + b"I1120 19:30:00.000000 1 x] Retry to connect to 1\n"
    )
    table = series.Table(suite_file.load("paddledetection")["logs"])
    with path.open("rb") as handle:
        begun = curves.beginning(handle.fileno(), table, Clock(0, 1795201787))
    assert begun.has_peers - begun.seeks_peers == pytest.approx(3.0, abs=0.1)
    log = (RUNS / "failed" / "attempt-1" / "rank-000.node1.log").read_bytes()
    path.write_bytes(
        log + b"I1120 19:30:00.000000 1 x] Successfully connected to 198.51.100.102:1\n"
    )
    with path.open("rb") as handle:
        begun = curves.beginning(handle.fileno(), table, Clock(0, 1795201787))
    assert begun.has_peers < 1795201800


def test_of_logs_of_gigabytes_beginning_and_end_are_read_and_what_was_left_out_is_said(
    run, monkeypatch
):
    directory = run("evaluated")
    log = next((directory / "attempt-1").glob("rank-000.*.log"))
    lines = log.read_bytes().splitlines(keepends=True)
    log.write_bytes(
        b"".join(lines[:-1]) + b"nothing of interest in this line\n" * 200_000 + lines[-1]
    )
    whole = series.of_run(str(directory))["attempts"][0]
    monkeypatch.setattr(series, "SHARE", 1 << 20)
    monkeypatch.setattr(series, "MOST", 1 << 20)
    part = series.of_run(str(directory))["attempts"][0]
    assert whole["left_out"] == [] and part["series"] == whole["series"]
    assert [line.split(" in ")[0] for line in part["left_out"]] == [f"attempt-1/{log.name}: 5 MB"]
