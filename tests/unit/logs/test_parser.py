# SPDX-License-Identifier: Apache-2.0
"""logs, errors, causes and display: what is read from a rank's log, in any state a log can be
in.
"""

from __future__ import annotations

import hashlib
import json
import os
import time
import tracemalloc

import pytest
import yaml
from ansible_collections.trainyard.cluster.plugins.module_utils.base.sanitize import (
    MASK,
    mask,
    printable,
    printable_data,
)
from ansible_collections.trainyard.cluster.plugins.module_utils.logs import (
    error_scanner,
    failure_catalogue,
    parser,
)

STEP = (
    "[11/20 09:30:27] ppdet.engine.callbacks INFO: Epoch: [%d] [%d/8] learning_rate: 0.003500 loss:"
    " %s loss_cls: 13.7 eta: 1 day, 0:00:10 batch_cost: 4.4751 data_cost: 0.0002 ips: 0.4469"
    " images/s, max_mem_reserved: 900 MB, max_mem_allocated: 800 MB\n"
)
TRACEBACK = (
    'Traceback (most recent call last):\n  File "/srv/a.py", line 3, in <module>\n    main()\n'
    '  File "/srv/b.py", line 7, in main\n    raise X\n'
)


@pytest.fixture
def paddledet(root):
    suites = root / "playbooks" / "suites"
    return yaml.safe_load((suites / "paddledetection.yml").read_text())["logs"]


def scan(data, table=None, piece=1 << 20):
    found = parser.LogScan(parser.Table(table))
    data = data.encode() if isinstance(data, str) else data
    for begin in range(0, len(data), piece):
        found.feed(data[begin : begin + piece])
    return found.finish()


def first_error(text):
    return scan(text)["first_error"]


# -- real logs
# --------------------------------------------------------------------------------------------------


def test_paddledetection_rank_0(samples, paddledet):
    path = samples / "logs" / "paddledetection_ppyoloe_s_2x2" / "node1" / "workerlog.0"
    found = scan(path.read_bytes(), paddledet)
    assert found["bytes"] == path.stat().st_size
    assert found["sha256"] == hashlib.sha256(path.read_bytes()).hexdigest()
    assert found["lines"] == 24
    assert found["steps"] == 8
    assert (
        found["first_step"]["line"],
        found["first_step"]["epoch"],
        found["first_step"]["step"],
    ) == (16, 0, 0)
    assert found["last_step"] == {
        "line": 23,
        "epoch": 1,
        "step": 6,
        "steps": 8,
        "time": "11/20 09:30:27",
        "lr": 0.0035,
        "loss": 16.403414,
        "eta": 10,
        "batch_cost": 4.4751,
        "data_cost": 0.0002,
        "ips": 0.4469,
    }
    assert found["saved"] == [{"epoch": 1, "step": 6, "line": 24, "path": "/srv/out"}]
    assert found["first_error"] is None
    assert parser.fraction(found["last_step"], paddledet, 2) == 15 / 16


def test_every_real_log_is_read_to_its_last_line(samples, paddledet):
    seen = 0
    for path in sorted((samples / "logs").glob("*/*/*")):
        raw = path.read_bytes()
        found = scan(raw, paddledet, piece=997)
        assert (found["bytes"], found["lines"], found["sha256"]) == (
            len(raw),
            raw.count(b"\n"),
            hashlib.sha256(raw).hexdigest(),
        ), path
        if "failure" not in str(path) and path.name.startswith("worker"):
            assert found["first_error"] is None, path
            seen += 1
    assert seen == 16


# One entry for each other suite shows that the engine needs no change for them, only a table.
OTHERS = {
    "paddleseg_ppliteseg_2x2/node1/workerlog.0": (
        {
            "step": {
                "has": ["[TRAIN] epoch"],
                "line": (
                    r"\[TRAIN\] epoch: (?P<epoch>\d+), iter:"
                    r" (?P<global_step>\d+)/(?P<total_steps>\d+)"
                ),
                "fields": [
                    r"loss: (?P<loss>[-\w.+]+)",
                    r"ips: (?P<ips>[\d.]+) samples",
                    r"ETA (?P<eta>[\d:]+)",
                ],
            },
            "evaluation": {
                "has": "[EVAL]",
                "lines": [r"mIoU: (?P<miou>[\d.]+)", r"best validation mIoU \((?P<best>[\d.]+)\)"],
            },
        },
        {
            "line": 157,
            "epoch": 3,
            "global_step": 10,
            "total_steps": 10,
            "loss": 3.7344,
            "ips": 1.5997,
            "eta": 0,
        },
        {"epoch": 3, "global_step": 10, "line": 160, "miou": 0.0261, "best": 0.0261},
    ),
    "paddleocr_crnn_2x2/node1/workerlog.0": (
        {
            "step": {
                "has": ["global_step: ", "train dataloader has"],
                "totals": [r"train dataloader has (?P<steps>\d+) iters"],
                "line": (
                    r"epoch: \[(?P<epoch>\d+)/(?P<epochs>\d+)\], global_step: (?P<global_step>\d+)"
                ),
                "fields": [r", loss: (?P<loss>[-\w.+]+)"],
            },
            "evaluation": {"has": ["best metric"], "lines": [r"best metric, acc: (?P<acc>[\d.]+)"]},
            "saved": {"has": ["save model in "], "lines": [r"save model in (?P<path>\S+)"]},
        },
        {"steps": 2, "line": 101, "epoch": 1, "epochs": 1, "global_step": 2, "loss": 41.52486},
        {"epoch": 1, "global_step": 2, "line": 104, "acc": 0.0},
    ),
    "mindocr_crnn_msrun_2x1/node1/worker_0.log": (
        {
            "step": {
                "has": "step: [",
                "line": (
                    r"epoch: \[(?P<epoch>\d+)/(?P<epochs>\d+)\] step:"
                    r" \[(?P<step>\d+)/(?P<steps>\d+)\]"
                ),
                "fields": [
                    r"loss: (?P<loss>[-\w.+]+)",
                    r"per step time: (?P<batch_cost>[\d.]+) ms",
                ],
                "scale": {"batch_cost": 0.001},
            }
        },
        {
            "line": 59,
            "epoch": 2,
            "epochs": 2,
            "step": 4,
            "steps": 4,
            "loss": None,
            "batch_cost": 12.834337,
        },
        None,
    ),
}


@pytest.mark.parametrize("name", OTHERS)
def test_other_suites_are_only_other_tables(samples, name):
    table, step, evaluation = OTHERS[name]
    found = scan((samples / "logs" / name).read_bytes(), table)
    assert found["last_step"] == step
    assert found["evaluation"] == evaluation
    assert parser.fraction(found["last_step"], table) == 1.0


def test_a_nan_loss_is_flagged_where_it_began(samples):
    table, _step, _evaluation = OTHERS["mindocr_crnn_msrun_2x1/node1/worker_0.log"]
    found = scan(
        (samples / "logs" / "mindocr_crnn_msrun_2x1/node1/worker_0.log").read_bytes(), table
    )
    assert found["nan"] == {"epoch": 1, "step": 2, "line": 52, "loss": "nan"}
    json.dumps(found, allow_nan=False)


@pytest.mark.parametrize(
    "name, line, kind, cause, peer",
    [
        ("node1/workerlog.0", 12, "gloo::TimeoutException", "connection_lost", 3),
        ("node1/workerlog.1", 12, "gloo::TimeoutException", "connection_lost", 2),
        ("node2/workerlog.0", 11, "gloo::TimeoutException", "connection_lost", 3),
        ("node2/workerlog.1", 14, "ValueError", "python_exception", None),
    ],
)
def test_first_errors_of_the_real_failure(samples, name, line, kind, cause, peer):
    error = first_error((samples / "logs" / "failure_rank3_raises_2x2" / name).read_text())
    assert (error["line"], error["kind"], error["cause"], error["peer"]) == (
        line,
        kind,
        cause,
        peer,
    )
    assert error["grade"] == ("primary" if kind == "ValueError" else "secondary")
    if kind == "ValueError":
        assert (error["text"], error["file"], error["file_line"]) == (
            "image 000000012.jpg is truncated",
            "/srv/fail.py",
            10,
        )
        assert error["context"][0].startswith("Traceback")


def test_the_launchers_word_about_its_child(samples):
    found = scan((samples / "logs" / "failure_rank3_raises_2x2/node2/launch.out").read_bytes())
    assert found["containers"] == [
        {
            "local_rank": 0,
            "rank": None,
            "pid": None,
            "code": -6,
            "first": False,
            "log": "/srv/log/workerlog.0",
        }
    ]


def test_what_ended_the_loaders_thread_explains_the_end_of_the_rank(samples, paddledet):
    """A bad image, Paddle 2.6.2: the thread dies, steps go on while data is left, then a message
    that names no cause, or a hang and SIGTERM.
    """
    folder = samples / "logs" / "paddle262_failure_badimage_worker_2x1"
    error = scan((folder / "node1" / "workerlog.0").read_bytes(), paddledet)["first_error"]
    assert (error["kind"], error["text"], error["line"]) == (
        "AttributeError",
        "'bytes' object has no attribute 'shape'",
        64,
    )
    assert (error["thread"], error["survived"], error["file_line"]) == (True, False, 139)
    folder = samples / "logs" / "paddle262_failure_badimage_2x1"
    error = scan((folder / "node1" / "workerlog.0").read_bytes(), paddledet)["first_error"]
    assert (error["kind"], error["line"], error["thread"], error["survived"]) == (
        "AttributeError",
        53,
        True,
        True,
    )


def test_the_real_coco_evaluation(samples, paddledet):
    found = scan(
        (samples / "logs" / "paddle262_ok_2x1" / "node1" / "workerlog.0").read_bytes(), paddledet
    )
    assert found["evaluation"] == {
        "epoch": 0,
        "step": 10,
        "line": 45,
        "ap": 0.0,
        "ap50": 0.0,
        "ap75": 0.0,
        "ar": 0.0,
        "samples": 24,
        "fps": 7.780950759928039,
        "best_of": "bbox",
        "best_ap": 0.0,
    }
    assert [s["path"] for s in found["saved"]] == ["output/ppyoloe_crn_s_300e_coco"] * 2


# -- steps, evaluations, checkpoints
# -------------------------------------------------------------------------------


def test_a_whole_coco_evaluation(paddledet):
    coco = (
        " Average Precision  (AP) @[ IoU=0.50:0.95 | area=   all | maxDets=100 ] = %.3f\n"
        " Average Precision  (AP) @[ IoU=0.50      | area=   all | maxDets=100 ] = 0.500\n"
        " Average Precision  (AP) @[ IoU=0.75      | area=   all | maxDets=100 ] = -1.000\n"
        " Average Precision  (AP) @[ IoU=0.50:0.95 | area= small | maxDets=100 ] = 0.111\n"
        " Average Recall     (AR) @[ IoU=0.50:0.95 | area=   all | maxDets=  1 ] = 0.222\n"
        " Average Recall     (AR) @[ IoU=0.50:0.95 | area=   all | maxDets=100 ] = 0.333\n"
        "[11/20 09:31:00] ppdet.engine INFO: Total sample number: 16, average FPS: 12.5\n"
        "[11/20 09:31:00] ppdet.engine.callbacks INFO: Best test bbox ap is 0.123.\n"
    )
    found = scan(STEP % (0, 7, "1.5") + coco % 0.123 + STEP % (1, 7, "1.4") + coco % 0.1, paddledet)
    assert found["evaluation"] == {
        "epoch": 1,
        "step": 7,
        "line": 11,
        "ap": 0.1,
        "ap50": 0.5,
        "ap75": -1.0,
        "ar": 0.333,
        "samples": 16,
        "fps": 12.5,
        "best_of": "bbox",
        "best_ap": 0.123,
    }


def test_losses_in_any_order_days_in_eta_and_memory(paddledet):
    line = STEP.replace("loss: %s loss_cls: 13.7 ", "loss_xy: 1.0 loss_wh: 2.0 loss: %s ") % (
        3,
        12,
        "7.25",
    )
    step = scan(line, paddledet)["last_step"]
    assert (step["loss"], step["eta"], step["memory_mb"]) == (7.25, 86410, 800)


def test_an_epochs_mean_is_no_step_where_the_log_has_steps():
    table = {
        "step": {
            "line": [
                r"step (?P<step>\d+) loss (?P<loss>[\d.]+)",
                r"epoch (?P<epoch>\d+) mean (?P<loss>[\d.]+)",
            ]
        }
    }
    assert scan("step 1 loss 3\nstep 2 loss 1\nepoch 1 mean 2\n", table)["last_step"]["loss"] == 1.0
    assert scan("epoch 1 mean 2\nepoch 2 mean 1\n", table)["last_step"]["loss"] == 1.0


@pytest.mark.parametrize("shown", ["nan", "inf", "-inf"])
def test_a_loss_that_is_no_number(paddledet, shown):
    found = scan(STEP % (0, 1, "2.0") + STEP % (0, 2, shown) + STEP % (0, 3, "nan"), paddledet)
    assert found["nan"] == {"epoch": 0, "step": 2, "line": 2, "loss": shown}
    assert found["last_step"]["loss"] is None


@pytest.mark.parametrize("shown", ["1e305", "9e999", "-9e999"])
def test_a_number_that_no_answer_can_hold_is_left_out(shown):
    table = {
        "step": {
            "line": r"step (?P<step>\d+) loss: (?P<loss>\S+) speed: (?P<ips>\S+)",
            "scale": {"ips": 1e9},
        }
    }
    found = scan(f"step 1 loss: {shown} speed: 1e300\n", table)["last_step"]
    assert (found["loss"], found["ips"]) == (None, None)


def test_only_the_last_checkpoints_are_kept(paddledet):
    found = scan(
        "".join(
            f"[11/20 09:30:32] ppdet.utils.checkpoint INFO: Save checkpoint: out/{n}\n"
            for n in range(30)
        ),
        paddledet,
    )
    assert (found["saved_count"], len(found["saved"]), found["saved"][-1]["path"]) == (
        30,
        20,
        "out/29",
    )


def test_a_best_result_that_is_said_again_starts_no_evaluation():
    table = {
        "evaluation": {
            "lines": [r"cur metric, acc: (?P<acc>[\d.]+)", r"best metric, acc: (?P<best>[\d.]+)"]
        }
    }
    found = scan("cur metric, acc: 0.5\nbest metric, acc: 0.7\nbest metric, acc: 0.7\n", table)
    assert (found["evaluation"]["acc"], found["evaluation"]["best"]) == (0.5, 0.7)
    assert scan("cur metric, acc: 0.5\ncur metric, acc: 0.6\n", table)["evaluation"] == {
        "line": 2,
        "acc": 0.6,
    }


@pytest.mark.parametrize("shown", ["nan", "nanxxx", "infxxx", "inf"])
def test_every_suites_way_to_print_no_number(shown):
    table = {"step": {"line": r"step (?P<step>\d+)", "fields": [r"loss: (?P<loss>nan|inf|[\d.]+)"]}}
    assert scan(f"step 1 loss: 0.5\nstep 2 loss: {shown}\n", table)["nan"]["line"] == 2


@pytest.mark.parametrize(
    "step, table, epochs, expected",
    [
        (None, {}, 2, None),
        (
            {"epoch": 0, "step": 0, "steps": 8},
            {"step": {"first": {"epoch": 0, "step": 0}}},
            2,
            1 / 16,
        ),
        ({"epoch": 1, "step": 7, "steps": 8}, {"step": {"first": {"epoch": 0, "step": 0}}}, 2, 1.0),
        (
            {"epoch": 1, "step": 7, "steps": 8},
            {"step": {"first": {"epoch": 0, "step": 0}}},
            None,
            None,
        ),
        ({"epoch": 9, "step": 7, "steps": 8}, {}, 2, 1.0),
        ({"global_step": 4, "steps": 4, "epochs": 2, "epoch": 1}, {}, None, 0.5),
        ({"global_step": 3, "total_steps": 12}, {}, None, 0.25),
        ({"loss": 1.0}, {}, 2, None),
        ({"loss": 1.0, "steps": 4}, {}, 2, None),
        ({"epoch": 1, "step": 1}, {}, 2, None),
        ({"epoch": 1, "step": 1, "steps": 4}, None, 2, 0.125),
        ({"global_step": 2, "steps": 4}, None, 2, 0.25),
        # a resumed PaddleOCR: epoch 4 of 4, its steps counted from 0 again
        ({"global_step": 8, "steps": 8, "epochs": 4, "epoch": 4}, {}, None, 1.0),
    ],
)
def test_fraction_done(step, table, epochs, expected):
    assert parser.fraction(step, table, epochs) == expected


@pytest.mark.parametrize(
    "table, word",
    [
        ({"step": {"line": "("}}, "logs.step.line"),
        ({"step": {"fields": [3]}}, "logs.step.fields"),
        ({"saved": {"lines": 3}}, "logs.saved.lines"),
        ({"evaluation": []}, None),
        ({"step": "x"}, "logs"),
        (["x"], "logs"),
    ],
)
def test_a_table_that_cannot_be_used_is_named(table, word):
    if word is None:
        parser.Table(table)
    else:
        with pytest.raises(parser.TableError, match=word):
            parser.Table(table)


def test_lines_of_no_interest_are_not_read(paddledet):
    gate = parser.Table(paddledet).gate
    assert (
        gate.search(b"an Epoch: [3] here")
        and gate.search(b"x Traceback (most recent call last):")
        and not gate.search(b"Epoch 3, mAP 4")
    )
    table = {
        "step": {"has": "step ", "line": "step"},
        "saved": {},
        "evaluation": {"has": ["mAP("], "lines": ["x"]},
    }
    gate = parser.Table(table).gate
    assert gate.search(b"step 3") and gate.search(b"the mAP(0.5)") and not gate.search(b"steps")
    assert not gate.search(b"s") and parser.Table().gate.search(b"Traceback (most recent")


def test_only_lines_of_interest_are_looked_at(paddledet, monkeypatch):
    seen = []
    real = parser.LogScan._line
    monkeypatch.setattr(
        parser.LogScan, "_line", lambda self, raw: seen.append(raw) or real(self, raw)
    )
    found = scan("noise\n" * 1000 + STEP % (0, 1, "2.0") + "noise\n" * 1000, paddledet)
    assert (len(seen), found["lines"], found["last_step"]["line"]) == (1, 2001, 1001)


def test_values_keep_their_kind():
    table = {
        "step": {"line": r"s (?P<step>\d+)( of (?P<steps>\d+))?( eta (?P<eta>\S+))? (?P<note>\w+)"},
        "saved": {"lines": [r"saved (?P<path>\S+)"]},
    }
    step = scan("s 3 eta 01:30 4\n", table)["last_step"]
    assert step == {"line": 1, "step": 3, "eta": 90, "note": 4.0}
    assert (type(step["step"]), type(step["note"])) == (int, float)
    assert scan("s 3 eta soon x\n", table)["last_step"] == {
        "line": 1,
        "step": 3,
        "eta": None,
        "note": "x",
    }
    assert scan("saved 1234\n", table)["saved"] == [{"line": 1, "path": "1234"}]
    assert scan("s " + "9" * 400 + " x\n", table)["last_step"]["step"] == int("9" * 400)


def test_nan_in_another_word_and_a_line_without_its_time_stamp(paddledet):
    line = STEP % (0, 1, "2.0")
    assert scan(line.replace("loss_cls", "banana"), paddledet)["nan"] is None
    assert scan((STEP % (0, 1, "nan"))[17:], paddledet)["nan"]["loss"] == "nan"


def test_an_empty_piece_at_the_end_changes_nothing():
    found = parser.LogScan(parser.Table())
    found.feed(b"a\n")
    found.feed(b"")
    assert found.finish()["lines"] == 1


def test_a_table_without_has_is_slower_and_finds_the_same(paddledet):
    table = json.loads(json.dumps(paddledet))
    del table["step"]["has"]
    text = "noise\n" + STEP % (0, 1, "2.0") + TRACEBACK + "ValueError: x\n"
    assert scan(text, table) == scan(text, paddledet)


# -- odd bytes
# --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("piece", [1, 2, 7, 64, 1 << 20])
def test_pieces_of_any_size_find_the_same(paddledet, piece):
    text = (
        STEP % (0, 1, "2.0") + "plain\r\n" + TRACEBACK + "ValueError: x\r\n" + "last without an end"
    ).encode()
    found = scan(text, paddledet, piece)
    assert found == scan(text, paddledet)
    assert found["lines"] == 9
    assert (found["first_error"]["text"], found["first_error"]["line"]) == ("x", 8)
    assert found["last_step"]["line"] == 1


@pytest.mark.parametrize(
    "raw, lines",
    [
        (b"", 0),
        (b"\n", 1),
        (b"a", 1),
        (b"a\n", 1),
        (b"a\nb", 2),
        (b"\r", 1),
        (b"\0", 1),
        (b"\0\n\0", 2),
        (b"\xff\xfe\n\xff", 2),
        (b"a\r\n", 1),
    ],
)
def test_lines_and_digest_of_small_files(raw, lines):
    found = scan(raw)
    assert (found["bytes"], found["lines"], found["sha256"]) == (
        len(raw),
        lines,
        hashlib.sha256(raw).hexdigest(),
    )


def test_an_error_in_an_unended_last_line():
    error = first_error(TRACEBACK + "ValueError: image is truncated")
    assert (error["text"], error["line"]) == ("image is truncated", 6)


def test_no_utf8_nul_and_crlf_do_not_hide_an_error():
    raw = (
        b"\xff\xfe\x00\x00noise\r\n\0\0\0\0"
        + TRACEBACK.replace("\n", "\r\n").encode()
        + b"Value\0Error: \xe5\x9b\xbe \xff broken\r\n"
    )
    error = scan(raw)["first_error"]
    assert (error["kind"], error["text"], error["line"]) == ("ValueError", "图 � broken", 7)


def test_a_hole_of_nuls_before_the_error():
    error = scan(b"\0" * (3 << 20) + TRACEBACK.encode() + b"ValueError: x\n", piece=65536)[
        "first_error"
    ]
    assert (error["kind"], error["line"]) == ("ValueError", 6)


def test_a_progress_bar_without_line_ends_does_not_hide_the_error():
    bar = b"".join(b"\r%3d%%|#####     | %d/900 [00:01<00:09]" % (n, n) for n in range(2000))
    assert len(bar) > 4 * parser.MAX_LINE
    for piece in (1000, 1 << 20):
        error = scan(b"start\n" + bar + TRACEBACK.encode() + b"ValueError: x\n", piece=piece)[
            "first_error"
        ]
        assert (error["kind"], error["line"], error["handled"]) == ("ValueError", 7, False)


def test_a_long_line_is_cut_for_parsing_only():
    text = "x" * (3 * parser.MAX_LINE)
    found = scan("a\n" + TRACEBACK + "ValueError: " + text + "\nb\n", piece=1000)
    assert found["lines"] == 8
    assert found["bytes"] == 2 + len(TRACEBACK) + 12 + len(text) + 3
    assert found["first_error"]["kind"] == "ValueError"
    assert len(found["first_error"]["text"]) == parser.MAX_LINE - len("ValueError: ")


def test_a_line_of_10_mb_and_200_mb_of_log_in_bounded_memory(paddledet):
    line = b"A" * (10 << 20) + b"\n"
    noise = b"I1120 09:28:21.905934   153 dygraph_functions.cc:123772] type promotion\n" * 4000
    step = (STEP % (0, 1, "2.0")).encode()
    found = parser.LogScan(parser.Table(paddledet), digest=False)
    tracemalloc.start()
    began = time.monotonic()
    try:
        for _ in range(10):
            for begin in range(0, len(line), parser.CHUNK):
                found.feed(line[begin : begin + parser.CHUNK])
            found.feed(step)
        for _ in range(10):
            found.feed(noise)
        for _ in range(100):
            found.feed(b"B" * parser.CHUNK)  # one line that never ends
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    result = found.finish()
    assert result["bytes"] > 200 << 20
    assert (result["lines"], result["steps"], result["last_step"]["line"]) == (
        10 + 10 + 40000 + 1,
        10,
        20,
    )
    assert peak < 8 << 20, f"{peak >> 20} MiB"
    assert time.monotonic() - began < 60


def test_a_flood_of_errors_stays_bounded():
    found = parser.LogScan(parser.Table())
    block = (
        "2026 ERROR: When parsing line 7, error happened with msg: " + TRACEBACK + "KeyError: 'a'\n"
    ).encode()
    for _ in range(3000):
        found.feed(block)
    found.feed(TRACEBACK.encode() + b"MemoryError\n")
    assert len(found.errors.errors) <= error_scanner.KEEP
    result = found.finish()
    assert result["errors"] == 3001
    assert (result["first_error"]["kind"], result["first_error"]["cause"]) == (
        "MemoryError",
        "out_of_memory",
    )


# -- first errors
# --------------------------------------------------------------------------------------------------

RULE = "-" * 38 + "\n"
CXX = "\n\n" + RULE + "C++ Traceback (most recent call last):\n" + RULE + "0   paddle::f()\n\n"
SUMMARY = "----------------------\nError Message Summary:\n----------------------\n"


@pytest.mark.parametrize(
    "text, kind, said, cause, grade",
    [
        (TRACEBACK + "KeyError: 'bbox'\n", "KeyError", "'bbox'", "python_exception", "primary"),
        (
            TRACEBACK + "mypkg.BadSample: no boxes\n",
            "mypkg.BadSample",
            "no boxes",
            "python_exception",
            "primary",
        ),
        (TRACEBACK + "KeyboardInterrupt\n", "KeyboardInterrupt", "", "terminated", "secondary"),
        (TRACEBACK + "MemoryError\n", "MemoryError", "", "out_of_memory", "primary"),
        (
            TRACEBACK + "ModuleNotFoundError: No module named 'lap'\n",
            "ModuleNotFoundError",
            "No module named 'lap'",
            "import_error",
            "primary",
        ),
        (
            TRACEBACK + "OSError: [Errno 28] No space left on device\n",
            "OSError",
            "[Errno 28] No space left on device",
            "disk_full",
            "primary",
        ),
        (
            TRACEBACK + "OSError: [Errno 98] Address already in use\n",
            "OSError",
            "[Errno 98] Address already in use",
            "port_in_use",
            "primary",
        ),
        (
            TRACEBACK + "PermissionError: [Errno 13] Permission denied: 'x'\n",
            "PermissionError",
            "[Errno 13] Permission denied: 'x'",
            "permission",
            "primary",
        ),
        (
            TRACEBACK + "FileNotFoundError: [Errno 2] No such file or directory: 'a.jpg'\n",
            "FileNotFoundError",
            "[Errno 2] No such file or directory: 'a.jpg'",
            "data_missing",
            "primary",
        ),
        (
            TRACEBACK + "_pickle.UnpicklingError: pickle data was truncated\n",
            "_pickle.UnpicklingError",
            "pickle data was truncated",
            "checkpoint_damaged",
            "primary",
        ),
        (
            TRACEBACK + "ConnectionResetError: [Errno 104] Connection reset by peer\n",
            "ConnectionResetError",
            "[Errno 104] Connection reset by peer",
            "connection_lost",
            "secondary",
        ),
        (
            TRACEBACK + "RuntimeError: NCCL error(5), remote process exited\n",
            "RuntimeError",
            "NCCL error(5), remote process exited",
            "connection_lost",
            "secondary",
        ),
        (
            (
                "terminate called after throwing an instance of 'gloo::IoException'\n  what(): "
                " [pair.cc:799] connect [127.0.1.1]:3: Connection refused\n"
            ),
            "gloo::IoException",
            "[pair.cc:799] connect [127.0.1.1]:3: Connection refused",
            "loopback_address",
            "shared",
        ),
        (
            (
                "terminate called after throwing an instance of 'gloo::IoException'\n  what(): "
                " [pair.cc:534] Connection closed by peer [198.51.100.12]:3\n"
            ),
            "gloo::IoException",
            "[pair.cc:534] Connection closed by peer [198.51.100.12]:3",
            "connection_lost",
            "secondary",
        ),
        (
            (
                "terminate called after throwing an instance of 'std::bad_alloc'\n  what(): "
                " std::bad_alloc\n"
            ),
            "std::bad_alloc",
            "std::bad_alloc",
            "out_of_memory",
            "primary",
        ),
        (
            "terminate called after throwing an instance of 'my::Bad'\n  what():  odd\n",
            "my::Bad",
            "odd",
            "cpp_exception",
            "primary",
        ),
        (
            CXX
            + SUMMARY
            + "FatalError: `Process abort signal` is detected by the operating system.\n",
            "FatalError",
            "`Process abort signal` is detected by the operating system.",
            "aborted",
            "secondary",
        ),
        (
            CXX
            + SUMMARY
            + "FatalError: `Termination signal` is detected by the operating system.\n",
            "FatalError",
            "`Termination signal` is detected by the operating system.",
            "terminated",
            "secondary",
        ),
        (
            CXX
            + SUMMARY
            + "FatalError: `Segmentation fault` is detected by the operating system.\n",
            "FatalError",
            "`Segmentation fault` is detected by the operating system.",
            "segfault",
            "primary",
        ),
        (
            CXX
            + SUMMARY
            + "FatalError: `Access to an undefined portion of a memory object` is detected by the"
            " operating system.\n",
            "FatalError",
            (
                "`Access to an undefined portion of a memory object` is detected by the operating"
                " system."
            ),
            "bus_error",
            "primary",
        ),
        (
            CXX + SUMMARY + "ResourceExhaustedError: \n\nOut of memory error on GPU 0.\n",
            "ResourceExhaustedError",
            "Out of memory error on GPU 0.",
            "device_out_of_memory",
            "primary",
        ),
        ("Killed\n", "Killed", "", "killed", "primary"),
        (
            "run.sh: line 3:  4711 Killed                  python train.py\n",
            "Killed",
            "python train.py",
            "killed",
            "primary",
        ),
        (
            (
                "Fatal Python error: Segmentation fault\n\nCurrent thread 0x1 (most recent call"
                " first):\n"
            ),
            "Fatal Python error",
            "Segmentation fault",
            "segfault",
            "primary",
        ),
        (
            (
                "ERROR: Unexpected BUS error encountered in DataLoader worker. This might be caused"
                " by insufficient shared memory (shm)\n"
            ),
            "DataLoader",
            (
                "Unexpected BUS error encountered in DataLoader worker. This might be caused by"
                " insufficient shared memory (shm)"
            ),
            "bus_error",
            "primary",
        ),
        (
            "python: can't open file '/srv/tools/train.py': [Errno 2] No such file or directory\n",
            "python",
            "can't open file '/srv/tools/train.py': [Errno 2] No such file or directory",
            "data_missing",
            "primary",
        ),
        (
            "/usr/bin/python3: No module named paddle\n",
            "python",
            "No module named paddle",
            "import_error",
            "primary",
        ),
        (
            "usage: train.py [-h]\ntrain.py: error: unrecognized arguments: --bad\n",
            "usage error",
            "unrecognized arguments: --bad",
            "bad_argument",
            "primary",
        ),
        (
            "node1:7:9 [0] misc/socket.cc:538 NCCL WARN Net : Connection closed by remote peer\n",
            "NCCL WARN",
            "Net : Connection closed by remote peer",
            "connection_lost",
            "secondary",
        ),
        (
            TRACEBACK
            + "RuntimeError: (PreconditionNotMet) There are NAN or INF (num_nan=1) in x.\n",
            "RuntimeError",
            "(PreconditionNotMet) There are NAN or INF (num_nan=1) in x.",
            "nan",
            "primary",
        ),
        (
            TRACEBACK + "urllib.error.URLError: <urlopen error [Errno -3]>\n",
            "urllib.error.URLError",
            "<urlopen error [Errno -3]>",
            "download_failed",
            "primary",
        ),
        (
            '  File "/srv/train.py", line 3\n    x = = 1\n        ^\nSyntaxError: invalid syntax\n',
            "SyntaxError",
            "invalid syntax",
            "python_exception",
            "primary",
        ),
    ],
)
def test_what_kind_of_error_it_is(text, kind, said, cause, grade):
    error = first_error("noise\n" + text + "after\n")
    assert (error["kind"], error["text"], error["cause"], error["grade"]) == (
        kind,
        said,
        cause,
        grade,
    )
    assert error["remedy"] and error["source"]


@pytest.mark.parametrize(
    "text",
    [
        "",
        "all is well\n",
        "list index out of range\n",
        "ppocr INFO: error rate: 0.1\n",
        CXX,
        "loss: nan\n",
        "Killed 3 birds\n",
    ],
)
def test_what_is_no_error(text):
    assert first_error(text) is None


def test_the_innermost_frame_and_the_lines_around():
    error = first_error(TRACEBACK + "ValueError: x\n  [Hint: y]\n------\n\nmore\n" + "noise\n" * 20)
    assert (error["file"], error["file_line"], error["line"]) == ("/srv/b.py", 7, 6)
    assert (
        error["context"]
        == (TRACEBACK + "ValueError: x\n  [Hint: y]\nmore\nnoise\nnoise\nnoise\nnoise").splitlines()
    )
    assert (
        max(map(len, first_error(TRACEBACK + "ValueError: " + "x" * 3000)["context"]))
        == error_scanner.CONTEXT_CHARS
    )
    assert len(first_error("Killed\n" + "noise\n" * 8)["context"]) == 9


def test_what_stands_far_below_is_not_around():
    assert (
        "late" not in first_error(TRACEBACK + "ValueError: x\n" + "\n" * 11 + "late\n")["context"]
    )
    assert first_error("a\n" + TRACEBACK)["context"] == TRACEBACK.splitlines()


def test_a_summary_right_below_an_exception():
    error = first_error(TRACEBACK + "OSError:\n" + SUMMARY + "NotFoundError: no such operator\n")
    assert (error["kind"], error["text"]) == ("OSError", "NotFoundError: no such operator")


def test_frames_without_end_are_given_up():
    error = first_error(
        "Traceback (most recent call last):\n"
        + '  File "/srv/a.py", line 3, in f\n' * 2 * error_scanner.MAX_TRACEBACK
        + "ValueError: x\n"
    )
    assert error["kind"] == "Traceback"


@pytest.mark.parametrize(
    "line, kind",
    [
        ("BadSample: no boxes", "BadSample"),
        ("my.oops: no boxes", "my.oops"),
        ("Model: crnn", None),
        ("BadSample", None),
    ],
)
def test_what_can_be_the_last_line_of_a_traceback(paddledet, line, kind):
    found = scan(TRACEBACK + line + "\n" + STEP % (0, 1, "1.0") + "ValueError: later\n", paddledet)[
        "first_error"
    ]
    assert (found["kind"], found["survived"]) == ((kind, True) if kind else ("ValueError", False))


def test_a_word_alone_is_no_exception():
    assert first_error(TRACEBACK + "done\n")["kind"] == "Traceback"
    assert first_error(TRACEBACK + "Oops: a\nModel: b\n")["kind"] == "Oops"


def test_frames_without_a_header_are_no_traceback():
    assert first_error('  File "a.py", line 3, in f\nValueError: x\n') is None


def test_the_warning_before_the_end_and_the_end_are_one_error():
    text = (
        "W1120 x] raises a std::exception: a::A\nterminate called after throwing an instance of"
        " 'a::A'\n  what():  said\n"
    )
    found = scan(text + "Killed\n")
    assert (
        found["first_error"]["kind"],
        found["first_error"]["text"],
        found["first_error"]["line"],
        found["errors"],
    ) == (
        "a::A",
        "said",
        2,
        2,
    )
    assert scan("W1120 x] raises a std::exception: a::A\nKilled\n")["errors"] == 2
    assert scan(text[text.index("terminate") :] * 2)["errors"] == 2


def test_a_header_counts_for_the_traceback_that_follows_it():
    error = first_error("Exception ignored in: x\n" + "noise\n" * 5 + TRACEBACK + "ValueError: x\n")
    assert error["handled"] is False
    error = first_error("Exception in thread T:\n" + "noise\n" * 5 + TRACEBACK + "ValueError: x\n")
    assert error["thread"] is False


def test_a_summary_without_a_kind_or_without_anything():
    error = first_error(SUMMARY + "something odd\n")
    assert (error["kind"], error["text"]) == ("Error Message Summary", "something odd")
    assert first_error("Error Message Summary:\n" + "-----\n" * 20 + "FatalError: x\n") is None


def test_the_summary_after_an_exception_is_a_second_error(samples):
    found = scan((samples / "logs" / "failure_rank3_raises_2x2/node1/workerlog.0").read_bytes())
    assert found["errors"] == 2
    bare = scan(
        "terminate called after throwing an instance of 'a::A'\n"
        + CXX
        + SUMMARY
        + "FatalError: `Process abort signal` is x\n"
    )
    assert (bare["first_error"]["kind"], bare["first_error"]["text"], bare["errors"]) == (
        "a::A",
        "",
        2,
    )


def test_a_message_that_never_came_is_not_taken_from_the_next_error():
    found = scan(SUMMARY + "ResourceExhaustedError:\n" + TRACEBACK + "ValueError: x\nnoise\n")
    assert (found["first_error"]["kind"], found["errors"]) == ("ResourceExhaustedError", 2)
    assert first_error(SUMMARY + "FatalError:\n" + TRACEBACK + "ValueError: x\nnoise\n")[
        "kind"
    ] in ("FatalError", "ValueError")
    scanner = error_scanner.ErrorScan()
    for number, line in enumerate(
        (SUMMARY + "FatalError:\n" + TRACEBACK + "ValueError: x\nnoise\n").splitlines(), 1
    ):
        scanner.line(number, line)
    assert scanner.errors[1]["text"] == "x"


def test_the_launchers_words_are_bounded():
    assert (
        len(scan("Container rank 0 status failed cmd ['a'] code -6 log x\n" * 40)["containers"])
        == error_scanner.KEEP
    )


def test_a_traceback_that_was_cut_short():
    error = first_error("a\n" + TRACEBACK)
    assert (error["kind"], error["text"], error["line"]) == (
        "Traceback",
        'cut short after File "/srv/b.py", line 7',
        2,
    )
    assert error["cause"] == "python_exception"


def test_a_traceback_cut_short_by_the_signal_that_ended_it():
    error = first_error(
        TRACEBACK[:60]
        + "\n"
        + CXX
        + SUMMARY
        + "FatalError: `Termination signal` is detected by the operating system.\n"
    )
    assert (error["kind"], error["grade"]) == ("Traceback", "primary")


def test_lines_of_others_between_those_of_a_traceback():
    lines = (TRACEBACK + "ValueError: x\n").splitlines(keepends=True)
    for gap in range(1, 6):
        mixed = (
            lines[:gap]
            + [
                "[11/20 09:30:27] ppdet INFO: Epoch 3\n",
                "index created!\n",
                "Warning: numba\n",
                "Model: crnn\n",
            ]
            + lines[gap:]
        )
        error = first_error("".join(mixed))
        assert (error["kind"], error["text"], error["file_line"]) == ("ValueError", "x", 7), gap


def test_steps_of_the_trainer_between_the_lines_of_a_loaders_traceback(paddledet):
    lines = (TRACEBACK + "ValueError: x\n").splitlines(keepends=True)
    found = scan("".join(lines[:3]) + STEP % (0, 1, "1.0") + "".join(lines[3:]), paddledet)
    assert (found["first_error"]["kind"], found["first_error"]["survived"]) == ("ValueError", False)


def test_an_exception_class_without_the_usual_ending():
    assert first_error(TRACEBACK + "BadSample: no boxes\n")["kind"] == "BadSample"
    assert first_error(TRACEBACK + "Oops: no boxes\n")["text"] == "no boxes"


def test_a_chain_gives_its_last_part_and_tells_the_first():
    error = first_error(
        TRACEBACK
        + "_queue.Empty\n\nDuring handling of the above exception, another exception occurred:\n\n"
        + TRACEBACK
        + "RuntimeError: DataLoader 1 workers exit unexpectedly\n"
    )
    assert (error["kind"], error["root"], error["line"], error["cause"]) == (
        "RuntimeError",
        "_queue.Empty: ",
        15,
        "worker_died",
    )
    chain = "\n\nDuring handling of the above exception, another exception occurred:\n\n"
    assert (
        first_error(
            TRACEBACK
            + "KeyError: 1"
            + chain
            + TRACEBACK
            + "KeyError: 2"
            + chain
            + TRACEBACK
            + "ValueError: 3\n"
        )["root"]
        == "KeyError: 1"
    )
    # PaddleSeg wraps whatever fails
    lost = (
        "requests.exceptions.ConnectionError: HTTPSConnectionPool(host='weights.example.org',"
        " port=443)"
    )
    error = first_error(
        TRACEBACK + lost + chain + TRACEBACK + "RuntimeError: Tried to create a STDC1 object\n"
    )
    assert (error["cause"], error["text"]) == (
        "download_failed",
        f"Tried to create a STDC1 object [after {lost}]",
    )
    assert first_error(TRACEBACK + "KeyError: 1" + chain + TRACEBACK)["text"] == "1"
    assert (
        first_error(TRACEBACK + "KeyError: 1" + chain + "noise\n" + TRACEBACK + "ValueError: 2\n")[
            "root"
        ]
        is None
    )
    assert (
        first_error(
            TRACEBACK + "ValueError: bad:\n" + "noise\n" * 30 + TRACEBACK + "KeyError: 2\n"
        )["root"]
        is None
    )
    assert (
        scan(
            TRACEBACK + "KeyError: 1\n\nThe above exception was the direct cause of the following"
            " exception:\n\n" + TRACEBACK + "ValueError: b\n"
        )["first_error"]["root"]
        == "KeyError: 1"
    )


def test_a_loaders_exception_inside_that_of_the_trainer():
    text = (
        TRACEBACK
        + "ValueError: DataLoader worker(0) caught ValueError with message:\n"
        + TRACEBACK
        + "ValueError: image 7 is truncated\n"
    )
    error = first_error(text)
    assert (error["text"], error["line"]) == ("image 7 is truncated", 12)


def test_paddles_summary_completes_an_empty_python_message():
    error = first_error(
        TRACEBACK
        + "OSError: \n"
        + CXX
        + SUMMARY
        + "ResourceExhaustedError: \n\nOut of memory error on GPU 0.\n"
    )
    assert (error["kind"], error["text"]) == (
        "OSError",
        "ResourceExhaustedError: Out of memory error on GPU 0.",
    )
    assert (error["cause"], error["line"]) == ("device_out_of_memory", 6)


def test_what_training_went_on_after_is_not_what_ended_it(paddledet):
    text = (
        TRACEBACK
        + "ValueError: skipped image\n"
        + STEP % (0, 1, "1.0")
        + "terminate called after throwing an instance of 'gloo::IoException'\n  what(): "
        " Connection closed by peer\n"
    )
    found = scan(text, paddledet)
    assert (found["first_error"]["kind"], found["first_error"]["grade"]) == (
        "gloo::IoException",
        "secondary",
    )
    only = scan(
        TRACEBACK
        + "ValueError: skipped image\n"
        + STEP % (0, 1, "1.0")
        + TRACEBACK
        + "ValueError: 2\n"
        + STEP % (0, 2, "1.0"),
        paddledet,
    )["first_error"]
    assert (only["text"], only["survived"]) == ("skipped image", True)


def test_a_step_between_the_parts_of_a_chain(paddledet):
    chain = "\nDuring handling of the above exception, another exception occurred:\n"
    text = (
        TRACEBACK
        + "KeyError: 1\n"
        + chain
        + STEP % (0, 1, "1.0")
        + "\n"
        + TRACEBACK
        + "ValueError: 2\n"
    )
    assert scan(text, paddledet)["first_error"]["kind"] == "ValueError"
    torn = (
        TRACEBACK
        + "KeyError: 1\n"
        + chain
        + "\nTraceback (most recent call last):\n"
        + STEP % (0, 1, "1.0")
    )
    assert scan(torn, paddledet)["first_error"]["kind"] == "Traceback"


def test_with_only_passing_errors_the_one_of_its_own_comes_first(paddledet):
    warned = (
        "node1:7:9 [0] misc/socket.cc:538 NCCL WARN Net : Connection closed by remote peer\n"
        + STEP % (0, 1, "1.0")
    )
    handled = "ppocr ERROR: error happened with msg: " + TRACEBACK + "KeyError: 'a'\n"
    assert scan(warned + handled, paddledet)["first_error"]["kind"] == "KeyError"
    assert scan(warned, paddledet)["first_error"]["cause"] == "connection_lost"


def test_the_first_of_many_errors_is_not_pushed_out_by_handled_ones():
    handled = "ppocr ERROR: error happened with msg: " + TRACEBACK + "KeyError: 'a'\n"
    assert first_error(TRACEBACK + "ValueError: x\n" + handled * 40)["kind"] == "ValueError"


def test_a_dead_worker_without_its_own_message_still_beats_a_lost_peer():
    gloo = (
        "terminate called after throwing an instance of 'gloo::IoException'\n  what():  Connection"
        " closed by peer\n"
    )
    assert (
        first_error(gloo + TRACEBACK + "RuntimeError: DataLoader 1 workers exit unexpectedly\n")[
            "cause"
        ]
        == "worker_died"
    )


@pytest.mark.parametrize("before", ["", TRACEBACK + "KeyError: 'a'\n\n"])
def test_a_dead_thread_is_remembered_over_steps(paddledet, before):
    dead = before + "Exception in thread Thread-1 (f):\n" + TRACEBACK + "ValueError: bad image\n"
    term = CXX + SUMMARY + "FatalError: `Termination signal` is detected by the operating system.\n"
    error = scan(dead + STEP % (0, 1, "1.0") + term, paddledet)["first_error"]
    assert (error["text"], error["thread"], error["survived"]) == ("bad image", True, True)
    error = scan(dead + STEP % (0, 1, "1.0") + TRACEBACK + "KeyError: 'b'\n", paddledet)[
        "first_error"
    ]
    assert (error["text"], error["thread"]) == ("'b'", False)
    nested = (
        dead[: -len("bad image\n")]
        + "DataLoader worker(0) caught ValueError with message:\n"
        + TRACEBACK
        + "ValueError: bad image\n"
    )
    two = dead + STEP % (0, 1, "1.0") + dead.replace("bad image", "second") + STEP % (0, 2, "1.0")
    assert scan(two + term, paddledet)["first_error"]["text"] == "bad image"
    assert scan(nested + STEP % (0, 1, "1.0") + term, paddledet)["first_error"]["thread"] is True


@pytest.mark.parametrize(
    "head",
    [
        "ppocr ERROR: error happened with msg: ",
        "Exception ignored in: <function f>\n",
        "--- Logging error ---\n",
    ],
)
def test_what_was_handled_yields_to_what_was_not(head):
    error = first_error(head + TRACEBACK + "KeyError: 'a'\n" + TRACEBACK + "ValueError: fatal\n")
    assert (error["text"], error["handled"]) == ("fatal", False)
    assert first_error(head + TRACEBACK + "KeyError: 'a'\n")["handled"] is True


def test_an_error_of_its_own_beats_a_lost_connection_before_it():
    """A main thread that lost a connection had handled what it raised before."""
    gloo = (
        "terminate called after throwing an instance of 'gloo::IoException'\n  what():  Connection"
        " closed by peer\n"
    )
    assert first_error(gloo + TRACEBACK + "ValueError: x\n")["kind"] == "ValueError"
    assert first_error(TRACEBACK + "ValueError: x\n" + gloo)["kind"] == "gloo::IoException"


def test_the_signal_and_who_sent_it():
    text = (
        CXX
        + SUMMARY
        + "FatalError: `Termination signal` is detected by the operating system.\n  [TimeInfo: ***"
        " Aborted at 1643017179 (unix time) try x ***]\n  [SignalInfo: *** SIGTERM"
        " (@0x1f400001780) received by PID 6061 (TID 0x7f451f2d9740) from PID 6016 ***]\n"
    )
    error = first_error(text)
    assert (error["time"], error["signal"], error["sender"]) == (1643017179, "SIGTERM", 6016)


def test_every_literal_of_the_gate_lets_its_event_through(samples):
    """A scanner that reads every line must find what the gated one finds."""
    everything = {"step": {"line": "^never$"}}
    for path in sorted((samples / "logs").glob("*/*/*")):
        raw = path.read_bytes()
        assert scan(raw, everything) == scan(raw), path


def test_every_cause_can_be_looked_up():
    for entry in failure_catalogue.CATALOGUE:
        assert entry["grade"] in ("primary", "shared", "secondary")
        assert failure_catalogue.entry_of(entry["cause"])["remedy"] == entry["remedy"]
    assert failure_catalogue.entry_of("no such cause")["cause"] == "unknown"


# -- the live view
# -------------------------------------------------------------------------------------------------


def test_tail_reads_only_the_end(tmp_path, paddledet, monkeypatch):
    path = tmp_path / "workerlog.0"
    path.write_text("x" * 79 + "\n" + ("noise " * 13 + "\n") * 40000 + STEP % (3, 2, "1.25"))
    read = []
    real = os.read
    monkeypatch.setattr(parser.os, "read", lambda fd, size: read.append(size) or real(fd, size))
    found = parser.tail_status(str(path), paddledet)
    assert sum(read) <= parser.TAIL
    assert (
        found["last_step"]["loss"],
        found["last_step"]["line"],
        found["lines"],
        found["sha256"],
    ) == (1.25, None, None, None)
    assert (found["bytes"], found["mtime"], found["whole"]) == (
        path.stat().st_size,
        path.stat().st_mtime,
        False,
    )


def test_tail_looks_further_back_for_a_step_but_not_for_ever(tmp_path, paddledet):
    path = tmp_path / "workerlog.0"
    path.write_text(STEP % (3, 2, "1.25") + ("noise " * 13 + "\n") * 5000)
    before = len(os.listdir("/proc/self/fd"))
    assert parser.tail_status(str(path), paddledet)["last_step"]["loss"] == 1.25
    assert len(os.listdir("/proc/self/fd")) == before
    path.write_text(STEP % (3, 2, "1.25") + ("noise " * 13 + "\n") * 20000)
    assert parser.tail_status(str(path), paddledet)["last_step"] is None


def test_tail_does_not_take_half_a_line(tmp_path, paddledet):
    path = tmp_path / "workerlog.0"
    line = STEP % (3, 2, "1.25")
    path.write_text("y" * 500 + line + "noise\n")
    found = parser.tail_status(str(path), paddledet, max_bytes=len(line) + 6)
    assert found["whole"] is True or found["last_step"] is None


def test_tail_of_a_short_log_reads_it_once_and_leaves_the_descriptor_open(
    tmp_path, paddledet, monkeypatch
):
    path = tmp_path / "workerlog.0"
    path.write_text("noise\n" + TRACEBACK + "ValueError: x\n")
    read = []
    real = os.read
    monkeypatch.setattr(parser.os, "read", lambda fd, size: read.append(size) or real(fd, size))
    descriptor = os.open(path, os.O_RDONLY)
    try:
        found = parser.tail_status(descriptor, parser.Table(paddledet))
        assert os.fstat(descriptor).st_size == found["bytes"]
    finally:
        os.close(descriptor)
    assert len(read) == 1
    assert (found["first_error"]["kind"], found["first_error"]["line"], found["whole"]) == (
        "ValueError",
        None,
        True,
    )
    path.write_text("noise\n" * 50000)
    read.clear()
    assert parser.tail_status(str(path), {})["last_step"] is None
    assert len(read) == 1


def test_tail_of_a_device_or_a_pipe_is_refused(tmp_path, paddledet):
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(OSError, match="regular"):
        parser.tail_status(str(tmp_path / "pipe"), paddledet)


def test_a_growing_log_has_an_end(tmp_path):
    path = tmp_path / "log"
    path.write_bytes(b"one\ntwo\n")
    descriptor = os.open(path, os.O_RDONLY)
    real, grown = os.read, []

    def read(fd, size):
        with open(path, "ab") as handle:
            handle.write(b"more\n" * 1000)
        grown.append(1)
        assert len(grown) < 50
        return real(fd, min(size, 4))

    try:
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(parser.os, "read", read)
            found = parser.scan(descriptor, parser.Table())
    finally:
        os.close(descriptor)
    assert (found["bytes"], found["sha256"]) == (8, hashlib.sha256(b"one\ntwo\n").hexdigest())


def test_a_log_that_is_cut_while_it_is_read(tmp_path):
    path = tmp_path / "log"
    path.write_bytes(b"one\n" * 1000)
    descriptor = os.open(path, os.O_RDONLY)
    real = os.read

    def read(fd, size):
        os.truncate(path, 8)
        return real(fd, size)

    try:
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(parser.os, "read", read)
            assert parser.scan(descriptor, parser.Table())["bytes"] == 8
    finally:
        os.close(descriptor)


# -- showing
# --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "raw, shown",
    [
        ("plain 图像 é ok", "plain 图像 é ok"),
        ("\x1b[31mred\x1b[0m", "\\x1b[31mred\\x1b[0m"),
        ("a\u202eb\u2066c\u200b", "a\\u202eb\\u2066c\\u200b"),
        ("a\nb\tc\rd\0", "a\\nb\\tc\\rd\\x00"),
        ("\ud800 \x7f \x9b", "\\ud800 \\x7f \\x9b"),
        ("\u2028 \U000e0041", "\\u2028 \\U000e0041"),
        ("全角\u3000空", "全角\u3000空"),
    ],
)
def test_what_a_terminal_would_obey_is_escaped(raw, shown):
    assert printable(raw) == shown


def test_newlines_can_stay_and_length_is_cut():
    assert printable("a\n\tb\x1b", newlines=True) == "a\n\tb\\x1b"
    assert printable("x" * 5000, limit=100) == "x" * 97 + "..."


# Made of pieces so that no file holds the shape of a token.
TOKENS = [
    "gh" + "p_" + "A1" * 18,
    "AKI" + "A" + "B2" * 8,
    "glp" + "at-" + "c3" * 10,
    "xox" + "b-" + "1234567890-abc",
    "hf" + "_" + "Zz9" * 11,
    "s" + "k-" + "proj" * 6,
    "AIz" + "a" + "k" * 35,
    "ey" + "J" + "a" * 12 + "." + "ey" + "J" + "b" * 12 + ".sig",
    "-----BEGIN " + "RSA PRIVATE KEY-----\nabc\n-----END " + "RSA PRIVATE KEY-----",
    "-----BEGIN " + "PRIVATE KEY-----\nabcdef",
]


@pytest.mark.parametrize("token", TOKENS)
def test_token_shapes_are_masked(token):
    assert mask(f"before {token} after") in (f"before {MASK} after", f"before {MASK}")


@pytest.mark.parametrize(
    "raw, shown",
    [
        ("WANDB_API_KEY=abc123 next", f"WANDB_API_KEY={MASK} next"),
        (
            "{'AWS_SECRET_ACCESS_KEY': 'abc/12 3', 'PWD': '/x'}",
            f"{{'AWS_SECRET_ACCESS_KEY': '{MASK}', 'PWD': '/x'}}",
        ),
        ('"password": "p w"', f'"password": "{MASK}"'),
        ("Authorization: Bearer abcdefghijkl", f"Authorization: Bearer {MASK}"),
        ("authorization: Basic dXNlcjpwYXNz", f"authorization: Basic {MASK}"),
        ("https://me:hunter2@host/x", f"https://{MASK}@host/x"),
        (
            "t.py --password hunter2 --api-key abc -b 2",
            f"t.py --password {MASK} --api-key {MASK} -b 2",
        ),
        ("t.py --password --lr 0.1 --tokenizer bpe", "t.py --password --lr 0.1 --tokenizer bpe"),
        ("num_tokens: 1000, tokenizer: bpe", "num_tokens: 1000, tokenizer: bpe"),
        ("KeyError: 'password'", "KeyError: 'password'"),
        ("Basic information: 12345678901234", "Basic information: 12345678901234"),
    ],
)
def test_assigned_secrets_are_masked_and_other_text_is_not(raw, shown):
    assert mask(raw) == shown


def test_given_names_and_values_are_masked():
    assert (
        mask(
            "MY_LOGIN=joe; logged in as s3cretvalue",
            names=["MY_LOGIN"],
            values=["s3cretvalue", "ab"],
        )
        == f"MY_LOGIN={MASK}; logged in as {MASK}"
    )
    assert mask("a tab", values=["ab"]) == "a tab"
    assert printable(5) == "5"
    assert mask("NOT_MY_LOGIN=joe", names=["MY_LOGIN"]) == "NOT_MY_LOGIN=joe"


def test_a_cut_cannot_show_half_a_token():
    token = "gh" + "p_" + "A1" * 18
    assert "A1" not in printable("x" * 80 + " " + token, limit=100)


def test_masking_hostile_lines_takes_no_time():
    began = time.monotonic()
    for text in (
        "a" * 8192,
        "a." * 4096,
        "token" * 1600,
        "-----BEGIN " * 700,
        "password=" * 900,
        "'" * 8192,
        "http://" * 1000,
    ):
        mask(text, names=["X"])
    assert time.monotonic() - began < 2


def test_everything_in_a_result_is_made_safe():
    data = {"a\x1b": ["\x1b", 1, 1.5, None, True, {"k": ("\u202e",)}]}
    assert printable_data(data) == {"a\\x1b": ["\\x1b", 1, 1.5, None, True, {"k": ["\\u202e"]}]}


FUNCTION = TRACEBACK.replace(", in <module>", ", in load")
RECORD = "[2026/11/20 21:36:05] ppocr INFO: 32 batches\n"
CRASH = "terminate called after throwing an instance of 'std::bad_alloc'\n"
SHM = "ERROR: Unexpected BUS error encountered in DataLoader worker. Look at shm.\n"
DIED = TRACEBACK + "RuntimeError: DataLoader 1 workers exit unexpectedly\n"


@pytest.mark.parametrize(
    "log, kind, passed",
    [
        # a traceback that begins below the script was printed by a handler
        (FUNCTION + "KeyError: 'a'\n", "KeyError", True),
        (FUNCTION + "KeyError: 'a'\n" + DIED, "RuntimeError", False),
        (TRACEBACK.replace("/srv/a", "/e/site-packages/a") + "KeyError: 'a'\n", "KeyError", True),
        (TRACEBACK.replace("/srv/a.py", "<frozen runpy>") + "KeyError: 'a'\n", "KeyError", False),
        # a logging handler's record after it: the main thread went on
        (TRACEBACK + "KeyError: 'a'\n" + RECORD, "KeyError", True),
        (TRACEBACK + "KeyError: 'a'\n" + "[INFO] PS(1,7f,python):2026 x]\n", "KeyError", False),
        # the last one counts
        (TRACEBACK + "KeyError: 'a'\n" + TRACEBACK + "ValueError: x\n", "ValueError", False),
        # a crash after it, but not while the interpreter ends
        (TRACEBACK + "KeyError: 'a'\n" + "line\n" * 20 + CRASH, "std::bad_alloc", False),
        (TRACEBACK + "KeyError: 'a'\n" + CRASH, "KeyError", False),
        # a loader's worker, with and without its parent's report
        (SHM, "DataLoader", True),
        (SHM + DIED, "DataLoader", False),
    ],
)
def test_what_a_process_handled_did_not_end_it(log, kind, passed):
    error = first_error(log)
    assert (error["kind"], error["handled"] or error["survived"]) == (kind, passed)


def test_a_record_far_below_an_exception_is_seen(paddledet):
    found = scan("x\n" * 9 + TRACEBACK + "KeyError: 'a'\n" + "x\n" * 5000 + RECORD, paddledet)
    assert found["first_error"]["survived"] is True
