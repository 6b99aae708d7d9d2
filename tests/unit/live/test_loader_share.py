# SPDX-License-Identifier: Apache-2.0
"""The warning that the data loader is the bottleneck, with the suites' own lines. Each guard stands
beside the log that must not give a warning.
"""

from __future__ import annotations

import re

import pytest
import yaml
from ansible_collections.trainyard.cluster.plugins.module_utils.logs import parser
from ansible_collections.trainyard.cluster.plugins.plugin_utils.live import (
    live_warnings,
    loader_share,
    model,
    plain_lines,
)
from core_support import ROOT
from corpus_support import names, unpack
from unit.live.test_screen import rank, status

# A line of each suite as its version of the samples prints it. %(...)s: what changes.
LINES = {
    "paddledetection": (
        "[11/20 09:29:26] ppdet.engine.callbacks INFO: Epoch: [%(epoch)d] [%(step)d/80]"
        " learning_rate: 0.000500 loss: 5.294779 loss_cls: 2.374824 loss_iou: 0.560830 loss_dfl:"
        " 3.035760 loss_l1: 4.185783 eta: 0:01:13 batch_cost: 2.0000 data_cost: %(wait).4f ips:"
        " 0.3429 images/s"
    ),
    "paddleocr": (
        "[2026/11/20 09:27:36] ppocr INFO: epoch: [%(epoch)d/9], global_step: %(step)d, lr:"
        " 0.000500, acc: 0.000000, norm_edit_dis: 0.070834, loss: 41.524860, avg_reader_cost:"
        " %(wait).5f s, avg_batch_cost: 2.00000 s, avg_samples: 8.0, ips: 13.95600 samples/s, eta:"
        " 0:00:00,  "
    ),
    "paddleseg": (
        "[2026/11/20 09:27:50] INFO: [TRAIN] epoch: %(epoch)d, iter: %(step)d/90, loss: 4.5240,"
        " lr: 0.000015, batch_cost: 2.0000, reader_cost: %(wait).5f, ips: 1.5418 samples/sec | ETA"
        " 00:00:10"
    ),
}


def table_of(suite):
    return parser.Table(
        yaml.safe_load((ROOT / "playbooks" / "suites" / f"{suite}.yml").read_text("utf-8"))["logs"]
    )


def watch_of(suite, waits, epochs=None, batch=2.0):
    """Return a Watch after one look for each line: waits of a step in seconds."""
    table, found = table_of(suite), model.Watch()
    for number, wait in enumerate(waits):
        epoch = (epochs or [1] * len(waits))[number]
        line = LINES[suite] % {"epoch": epoch, "step": number + 1, "wait": wait}
        log = parser.LogScan(table)
        log.feed(line.encode() + b"\n")
        show(found, log.finish()["last_step"], number)
    return found


def show(found, step, second, number=0, node="node1"):
    said = rank(number, step=step, log_time=float(second))
    found.add(node, status(node, said, now=float(second), started=0.0), float(second))


def texts(found):
    return [item.text for item in live_warnings.warnings(found, 0.0) if item.kind == "loader"]


@pytest.mark.parametrize("suite", sorted(LINES))
def test_a_loader_that_takes_more_than_half_of_ten_steps_is_named(suite):
    waits = [1.5] * 11  # the first one begins an epoch
    assert texts(watch_of(suite, waits[:-1])) == []
    (text,) = texts(watch_of(suite, waits))
    assert re.findall(r"\d+", text) == ["75", "10", "0", "1"] and "data loader" in text
    assert "rank 0 on node1" in text
    # half of a step is not more than half
    assert texts(watch_of(suite, [1.0] * 40)) == []
    assert texts(watch_of(suite, [0.01] * 40)) == []


@pytest.mark.parametrize("suite", sorted(LINES))
def test_it_is_gone_when_the_share_drops(suite):
    assert texts(watch_of(suite, [1.5] * 30 + [0.2])) == []
    assert texts(watch_of(suite, ([1.5] * 9 + [0.2]) * 5)) == []
    assert len(texts(watch_of(suite, [0.2] * 5 + [1.5] * 10))) == 1


def test_the_first_step_of_an_epoch_says_nothing():
    """The workers of the loader start then. Neither is it counted, nor does it end the row."""
    epochs = [number // 2 for number in range(18)]
    assert texts(watch_of("paddledetection", [1.5] * 18, epochs)) == []  # nine that count
    first_only = [1.9 if number % 2 == 0 else 0.1 for number in range(60)]
    assert texts(watch_of("paddledetection", first_only, [n // 2 for n in range(60)])) == []
    assert texts(watch_of("paddledetection", [1.5] * 24, [n // 2 for n in range(24)])) != []
    # A fast first step does not end the row.
    quick = [0.1 if number % 12 == 0 else 1.5 for number in range(24)]
    assert re.search(
        " 22 ", texts(watch_of("paddledetection", quick, [n // 12 for n in range(24)]))[0]
    )


def test_a_line_that_is_seen_twice_counts_once():
    found = model.Watch()
    step = {"epoch": 1, "step": 7, "batch_cost": 2.0, "data_cost": 1.9}
    show(found, dict(step, step=1), 0)
    for second in range(40):
        show(found, step, second)
    assert texts(found) == [] and found.loaders[0].count == 1


@pytest.mark.parametrize(
    "step",
    [
        {},
        {"batch_cost": 2.0},
        {"data_cost": 1.5},
        {"batch_cost": 0, "data_cost": 1.5},
        {"batch_cost": "2.0", "data_cost": 1.5},
        {"batch_cost": None, "data_cost": None},
        {"batch_cost": True, "data_cost": True},
        {"batch_cost": 2.0, "data_cost": -1.5},
    ],
)
def test_a_line_without_both_figures_gives_no_statement(step):
    assert loader_share.share_of(step) is None
    found = model.Watch()
    for number in range(30):
        show(found, dict(step, epoch=1, step=number), number)
    assert texts(found) == []


def test_the_ranks_are_put_together_and_a_rank_that_has_ended_is_not_named():
    found = model.Watch()
    for number in range(14):
        step = {"epoch": 1, "step": number, "batch_cost": 1.0}
        show(found, dict(step, data_cost=0.6), number, 0, "node1")
        show(found, dict(step, data_cost=0.9), number, 1, "node2")
    (text,) = texts(found)
    assert re.findall(r"\d+", text) == ["90", "13", "0", "1", "1", "2"]
    done = status("node2", rank(1, "done", step=step), now=15.0, started=0.0)
    found.add("node2", done, 15.0)
    assert "rank 0 on node1" in texts(found)[0]


def test_a_new_attempt_begins_anew():
    found = watch_of("paddleseg", [1.5] * 20)
    assert texts(found)
    found.add("node1", status("node1", rank(0), attempt=2, now=30.0), 30.0)
    assert texts(found) == [] and found.loaders == {}


def test_plain_lines_say_it_once_and_again_after_it_was_gone():
    found, ticker, said = model.Watch(), plain_lines.Ticker(), []
    waits = [0.9] * 200 + [0.1] * 5 + [0.9] * 40
    for number, wait in enumerate(waits):
        step = {"epoch": 1, "step": number, "batch_cost": 1.0, "data_cost": wait}
        show(found, step, number * 20)
        said += [
            (number, text)
            for text, _style in ticker.lines(found, "node1", number * 20.0)
            if "data loader" in text
        ]
    # 4000 s of it are one line; the other warnings come again every five minutes.
    assert [number for number, _text in said] == [10, 214]


@pytest.mark.parametrize(
    "case", [name for name in names() if name.endswith("-completed") and "run" not in name]
)
def test_the_real_runs_of_the_corpus_give_no_warning(case, tmp_path):
    """Every step line has both figures; single steps are above the limit, ten in a row are not."""
    unpack(case, tmp_path)
    suite = {"det": "paddledetection", "ocr": "paddleocr", "seg": "paddleseg"}[case[:3]]
    table, shares, found = table_of(suite), [], model.Watch()
    for path in sorted(tmp_path.rglob("workerlog.0")):
        for number, line in enumerate(path.read_bytes().splitlines()):
            log = parser.LogScan(table)
            log.feed(line + b"\n")
            step = log.finish()["last_step"]
            if step:
                shares.append(loader_share.share_of(step))
                show(found, step, number)
    assert shares and None not in shares, shares
    assert texts(found) == []
