# SPDX-License-Identifier: Apache-2.0
"""The jobs in playbooks/configs/ fit the schema, match the published table row by row, and give the
command of the upstream documentation word by word.
"""

from __future__ import annotations

import functools
import re

import pytest
from ansible_collections.trainyard.cluster.plugins.module_utils.plan import scaling
from ansible_collections.trainyard.cluster.plugins.module_utils.suites import suite_table
from ansible_collections.trainyard.cluster.plugins.plugin_utils.config import job as jobs
from ansible_collections.trainyard.cluster.plugins.plugin_utils.suites import suite_file
from core_support import ROOT

CONFIGS = ROOT / "playbooks" / "configs"

# The published results of the upstream documentation as the contract lists them: job, model,
# config, data, machines, one machine, many, speed-up, note.
TABLE = [
    ("crnn_chinese", "CRNN", "rec_chinese_lite_train_v2.0.yml", "260k Chinese", "2x8 P40", "2.50 d / 66.7 %", "1.67 d / 67.0 %", 1.5, None),
    ("slanet", "SLANet", "SLANet.yml", "PubTabNet", "3x8 V100", "49.8 h / 76.2 %", "19.75 h / 74.77 %", 2.52, "A9"),
    ("svtr_distillation", "SVTR", "ch_PP-OCRv3_rec_distillation.yml", "PP-OCRv3_rec", "4x8 V100", "10 d / -", "2.84 d / 74.0 %", 3.5, None),
    ("ocrnet_hrnetw18", "OCRNet HRNet_w18", "ocrnet_hrnetw18_cityscapes_1024x512_160k.yml", "Cityscapes", "3x8 V100", "8.9 h / 80.91 %",
     "5.33 h / 80.13 %", 1.88, "its own times give 1.67"),
    ("segformer_b0", "SegFormer_B0", "segformer_b0_cityscapes_1024x1024_160k.yml", "Cityscapes", "3x8 V100", "5.61 h / 76.73 %",
     "2.6 h / 75.86 %", 2.15, None),
    ("segformer_b0_35k", "SegFormer_B0*", "segformer_b0_cityscapes_1024x1024_160k.yml", "Cityscapes", "3x8 V100", "5.61 h / 76.73 %",
     "3.5 h / 76.48 %", 1.60, "B6"),
    ("pp_liteseg", "PP-LiteSeg-T STDC1", "pp_liteseg_stdc1_cityscapes_1024x512_scale0.5_160k.yml", "Cityscapes", "4x8 V100",
     "7.58 h / 73.05 %", "2.5 h / 72.43 %", 3.03, None),
    ("ppyoloe_s_objects365", "PP-YOLOE-s", "ppyoloe_crn_s_300e_coco.yml", "Objects365", "3x8 V100", "301 h / -", "162 h / 17.7 %", 1.85, "C6"),
    ("ppyoloe_l_objects365", "PP-YOLOE-l", "ppyoloe_crn_l_300e_coco.yml", "Objects365", "3x8 V100", "401 h / -", "178 h / 30.3 %", 2.25, "C6"),
    ("ppyoloe", "PP-YOLOE-s", "ppyoloe_crn_s_300e_coco.yml", "COCO", "4x8 V100", "39 h / 42.7 %", "13 h / 42.1 %", 3.0, "C6"),
    ("ppyoloe_m_objects365", "PP-YOLOE-m", "ppyoloe_crn_m_300e_coco.yml", "Objects365", "4x8 V100", "337 h / -", "112 h / 24.6 %", 3.0, "C6"),
    ("ppyoloe_x_objects365", "PP-YOLOE-x", "ppyoloe_crn_x_300e_coco.yml", "Objects365", "4x8 V100", "464 h / -", "125 h / 32.1 %", 3.4,
     "its own times give 3.71"),
]  # fmt: skip
# Jobs of the upstream documentation that have no published row.
OTHERS = {
    "rec_mv3_none_bilstm_ctc": ("paddleocr", "paddle", "configs/rec/rec_mv3_none_bilstm_ctc.yml"),
    "mindocr_dbnet": ("mindocr", "mpirun", "configs/det/dbnet/db_r50_icdar15.yaml"),
    "mindocr_crnn": ("mindocr", "rank_table", "configs/rec/crnn/crnn_resnet34_ch.yaml"),
}
NAMES = [row[0] for row in TABLE] + sorted(OTHERS)
# Rows whose speed-up does not follow from their own times, and what does.
INCONSISTENT = {"ocrnet_hrnetw18": 1.67, "ppyoloe_x_objects365": 3.71}
# The rows for which the upstream documentation says what was changed for many machines, and the
# words that the job adds there.
CHANGED = {
    "slanet": ({"Optimizer.lr.values": [0.002, 0.0002, 0.0001]}, []),
    "segformer_b0": ({}, ["--iters", "26667"]),
    "segformer_b0_35k": ({}, ["--iters", "35000"]),
}


@functools.lru_cache(maxsize=None)
def read(name):
    """Return a shipped job as the product reads it."""
    job, problems = jobs.read_job(str(CONFIGS / (name + ".yml")), f"playbooks/configs/{name}.yml")
    assert not problems, [str(problem) for problem in problems]
    return job


@functools.lru_cache(maxsize=None)
def table_of(suite):
    """Return a suite's table."""
    return suite_file.load(suite)


def effective(job):
    """Return the job's config as upstream has it, as far as the advice reads it: the values that
    the job carries with their commit.
    """
    table, values, upstream = table_of(job["suite"]), {}, job["upstream"]
    keys = dict(table["config_keys"])
    keys["learning_rate"] = job["document"]["learning_rate"].get("key") or keys["learning_rate"]
    known = {
        "batch": "per_card_batch",
        "learning_rate": "learning_rate",
        "epochs": "epochs",
        "iterations": "iterations",
    }
    given = {keys[name]: upstream[mine] for name, mine in known.items() if mine in upstream}
    # The suite's table has a key for each value that the job sets.
    assert None not in given
    return table, suite_table.apply_overrides(values, given)


def test_there_is_a_job_for_every_row_and_no_other():
    assert jobs.shipped_jobs(str(CONFIGS)) == sorted(NAMES)


@pytest.mark.parametrize("name", NAMES)
def test_a_job_fits_its_schema_and_its_suite(name):
    job = read(name)
    table = table_of(job["suite"])
    assert (
        job["launcher"] in table["launchers"]
        and job["config"].startswith("configs/")
        and job["source"]
    )
    # the user's one command, and -e nodes=1, take whatever the site has
    assert (job["nodes"], job["devices"]) == ("all", "all")


@pytest.mark.parametrize("name, line, missing", [
    ("ppyoloe", "  source: configs/ppyoloe/README.md\n", "source"), ("ppyoloe", "  cards: 8\n", "cards"),
    ("ppyoloe", "upstream:\n  commit: 666f597fd00d\n  per_card_batch: 8\n", "per_card_batch"),
    ("ppyoloe", "  learning_rate: 0.01\n", "learning_rate"),
    ("slanet", "factor: 3, ", "factor"), ("slanet", ", accuracy: 73.42 %", "accuracy"),
])  # fmt: skip
def test_a_rule_without_what_it_starts_from_is_refused_in_words(name, line, missing, tmp_path):
    """The formula of upstream needs a batch, a rate, cards and a source. The result of the default
    needs its factor and its figure.
    """
    text = (CONFIGS / (name + ".yml")).read_text(encoding="utf-8")
    path = tmp_path / "mine.yml"
    rest = "upstream:\n  commit: 666f597fd00d\n" if line.startswith("upstream") else ""
    assert text.count(line) == 1
    path.write_text(text.replace(line, rest), encoding="utf-8")
    job, problems = jobs.read_job(str(path), "mine.yml")
    place = "upstream" if name == "ppyoloe" else "document.learning_rate.default"
    assert job is None and any(
        re.fullmatch(
            rf"mine\.yml:\d+ {re.escape(place)}: the key '{missing}' is missing", str(problem)
        )
        for problem in problems
    ), [str(problem) for problem in problems]
    if name == "ppyoloe" and missing in ("per_card_batch", "learning_rate"):
        # it is the rule that needs them
        path.write_text(
            text.replace(line, rest).replace("rule: linear\n", "rule: unstated\n"), encoding="utf-8"
        )
        assert jobs.read_job(str(path), "mine.yml")[1] == []
        path.write_text(
            text.replace(line, rest).replace("  cards: 8\n  rule: linear\n", ""), encoding="utf-8"
        )
        assert jobs.read_job(str(path), "mine.yml")[1] == []


@pytest.mark.parametrize("row", TABLE, ids=[row[0] for row in TABLE])
def test_a_job_carries_its_published_row(row):
    name, model, config, data, machines, one_machine, many, speed_up, note = row
    job = read(name)
    assert job["config"].rsplit("/", 1)[1] == config
    assert len(job["published"]) == 1
    found = dict(job["published"][0])
    said = found.pop("note", None)
    assert said == note or (note is None and name == "crnn_chinese" and "3x8" in said)
    assert found == {
        "model": model,
        "data": data,
        "machines": machines,
        "one_machine": one_machine,
        "many": many,
        "speed_up": speed_up,
    }
    document = job["document"]
    assert "%dx%d %s" % (document["machines"], document["devices"], document["card"]) == machines


@pytest.mark.parametrize("name", [row[0] for row in TABLE])
def test_speed_ups_follow_from_their_own_times_but_two(name):
    (row,) = read(name)["published"]
    hours = [
        float(number) * (24 if unit == "d" else 1)
        for number, unit in (
            re.match(r"([\d.]+) ([dh]) /", row[k]).groups() for k in ("one_machine", "many")
        )
    ]
    own = hours[0] / hours[1]
    if name in INCONSISTENT:
        assert (
            round(own, 2) == INCONSISTENT[name] and row["note"] == f"its own times give {own:.2f}"
        )
    else:
        # as exact as the row's own last digit
        assert abs(own - row["speed_up"]) <= (
            0.05 if round(row["speed_up"], 1) == row["speed_up"] else 0.01
        )


@pytest.mark.parametrize("name", sorted(OTHERS))
def test_the_documents_examples(name):
    job = read(name)
    assert (
        (job["suite"], job["launcher"], job["config"]) == OTHERS[name]
        and job["published"] == []
        and job["arguments"] == []
    )


@pytest.mark.parametrize("name", NAMES)
def test_arguments_are_the_documents(name):
    job = read(name)
    stem = job["config"].rsplit("/", 1)[1].rsplit(".", 1)[0]
    words = {
        "paddleseg": [
            "--save_dir",
            "output/" + stem,
            "--save_interval",
            "1000",
            "--num_workers",
            "3",
            "--do_eval",
            "--use_vdl",
        ],
        "paddledetection": ["--eval"],
    }
    assert job["arguments"] == words.get(job["suite"], [])
    assert job["launcher"] == {
        "paddleseg": "paddle",
        "paddleocr": "paddle",
        "paddledetection": "fleetrun",
    }.get(job["suite"], job["launcher"])


@pytest.mark.parametrize("name", [name for name in NAMES if "objects365" in name])
def test_objects365_is_read_where_the_config_says_coco(name):
    """Contract C5: COCO's config with another data path. The training reads only Objects365's
    files, and the head has its 365 classes.
    """
    job, table = read(name), table_of("paddledetection")
    coco = {
        "num_classes": 80,
        "TrainDataset": {"name": "COCODataSet", "dataset_dir": "dataset/coco", "image_dir": "train2017", "anno_path": "annotations/instances_train2017.json"},
        "EvalDataset": {"name": "COCODataSet", "dataset_dir": "dataset/coco", "image_dir": "val2017", "anno_path": "annotations/instances_val2017.json"},
    }  # fmt: skip
    config = suite_table.apply_overrides(coco, job["overrides"])
    site = {"coco": "/data/coco", "objects365": "/data/objects365"}
    wanted, problems = suite_table.find_data(
        table, config, job["arguments"], site, exists=lambda path: True
    )
    assert (wanted, problems) == (["objects365"], []) and config["num_classes"] == 365
    assert {path for _key, path in suite_table.data_paths(table, config, job["arguments"])} == {
        "dataset/objects365", "dataset/objects365/train", "dataset/objects365/annotations/zhiyuan_objv2_train.json",
        "dataset/objects365/val", "dataset/objects365/annotations/zhiyuan_objv2_val.json",
    }  # fmt: skip
    assert config["TrainDataset"]["name"] == "COCODataSet"


@pytest.mark.parametrize("name", NAMES)
def test_scaling_changes_what_the_documents_say_and_nothing_on_one_machine(name):
    """`-e nodes=1` gives the single-machine form. On its own number of machines, a job adds exactly
    the settings of its published row.
    """
    job = read(name)
    table, config = effective(job)
    document = job["document"]
    alone = scaling.advise(job, table, config, job["overrides"], 1, document["devices"])
    assert scaling.apply(alone)[:2] == ({}, [])
    many = scaling.advise(
        job, table, config, job["overrides"], document["machines"], document["devices"]
    )
    assert scaling.apply(many)[:2] == CHANGED.get(name, ({}, []))
    text = "\n".join(scaling.lines(many))
    assert "unknown" not in text and "left alone" not in text
    assert document["per_card_batch"]["value"] == job["upstream"]["per_card_batch"]


def test_pp_yoloe_shows_the_documents_rule_and_upstreams():
    """Contract C6."""
    job = read("ppyoloe")
    table, config = effective(job)
    text = "\n".join(scaling.lines(scaling.advise(job, table, config, {}, 4, 8)))
    kept, upstreams = [line for line in text.splitlines() if "learning rate: " in line][:2]
    assert "learning rate: 0.01, unchanged" in kept and "(C6)" in kept
    assert "learning rate: 0.04 " in upstreams
    assert "(configs/ppyoloe/README.md): LearningRate.base_lr=0.04" in text


@pytest.mark.parametrize("name", NAMES)
def test_the_page_of_published_results_agrees_with_the_jobs(name):
    """docs/published.md has one row per job, with every figure and setting of the job file."""
    job = read(name)
    page = (ROOT / "docs" / "published.md").read_text(encoding="utf-8")
    rows = [
        [cell.strip() for cell in line.strip("|").split("|")]
        for line in page.splitlines()
        if line.startswith(f"| `{name}` |")
    ]
    results, settings = (
        [row for row in rows if len(row) == 8],
        [row for row in rows if len(row) == 7],
    )
    batch, rate = str(job["document"]["per_card_batch"]["value"]), job["upstream"]["learning_rate"]
    assert [row[1:5] for row in settings] == [
        [job["launcher"], job["config"], batch, scaling._text(rate)]
    ]
    assert ("applied by the job" in settings[0][6]) == (job["scaling"] == "apply")
    shown = [[row[1].replace("\\*", "*")] + row[2:6] + [float(row[6]), row[7]] for row in results]
    keys = ("model", "data", "machines", "one_machine", "many", "speed_up", "note")
    assert shown == [[row.get(key, "") for key in keys] for row in job["published"]]
