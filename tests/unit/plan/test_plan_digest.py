# SPDX-License-Identifier: Apache-2.0
"""The plans of the shipped jobs keep their bytes: a node, a record or a proof may hold them."""

from __future__ import annotations

import copy

import pytest
from ansible_collections.trainyard.cluster.plugins.module_utils.plan import compiler
from ansible_collections.trainyard.cluster.plugins.plugin_utils.config import job as jobs
from ansible_collections.trainyard.cluster.plugins.plugin_utils.inputs import describe
from core_support import CODE, DATA, ENVIRONMENT, ROOT, compiled, gang

CONFIGS = ROOT / "playbooks" / "configs"
ACCELERATORS = {"mpirun": "ascend", "rank_table": "ascend"}
POINT = {
    "attempt": 1,
    "name": "3",
    "stem": "ppyoloe_crn_s_300e_coco/3",
    "digest": "b" * 64,
    "epoch": 4,
    "step": None,
    "lr": 0.01,
    "note": None,
}
# {(job, nodes, resumed): the first digits of the digest}.
DIGESTS = {
    ("crnn_chinese", 1, False): "1a1d1038c4d14bcd",
    ("crnn_chinese", 4, False): "4196293983ad9b9c",
    ("crnn_chinese", 4, True): "88d005a8d8f689c8",
    ("mindocr_crnn", 1, False): "833ea16c4e9b5faf",
    ("mindocr_crnn", 4, False): "b9800f2ead7047fc",
    ("mindocr_crnn", 4, True): "aeb1ae5665a5087b",
    ("mindocr_dbnet", 1, False): "56ef66f6f8423763",
    ("mindocr_dbnet", 4, False): "630affea036baa67",
    ("mindocr_dbnet", 4, True): "4763cd4ac3928107",
    ("ocrnet_hrnetw18", 1, False): "2ae611a88232d486",
    ("ocrnet_hrnetw18", 4, False): "eddb4c9ccc83a9cb",
    ("ocrnet_hrnetw18", 4, True): "ac37c97581a5d8af",
    ("pp_liteseg", 1, False): "b8721c51f6761533",
    ("pp_liteseg", 4, False): "2c9f990a72c16786",
    ("pp_liteseg", 4, True): "f36be6ab1377fa11",
    ("ppyoloe", 1, False): "491c901a6057706f",
    ("ppyoloe", 4, False): "cff661a3e2ee3e7a",
    ("ppyoloe", 4, True): "1cde6cd087a58a68",
    ("ppyoloe_l_objects365", 1, False): "cb26b8ae5768c481",
    ("ppyoloe_l_objects365", 4, False): "7c8a9d205feb4687",
    ("ppyoloe_l_objects365", 4, True): "e0f3e5cf7425ace4",
    ("ppyoloe_m_objects365", 1, False): "246ebb6baf0d239b",
    ("ppyoloe_m_objects365", 4, False): "dced61546cef28e8",
    ("ppyoloe_m_objects365", 4, True): "e089cbc30f6ea739",
    ("ppyoloe_s_objects365", 1, False): "cf8280119a43d36e",
    ("ppyoloe_s_objects365", 4, False): "5a2fdc9fcb60f737",
    ("ppyoloe_s_objects365", 4, True): "1d3637b88580b2b9",
    ("ppyoloe_x_objects365", 1, False): "63a674b25491d5a1",
    ("ppyoloe_x_objects365", 4, False): "56323115d631ca84",
    ("ppyoloe_x_objects365", 4, True): "0b882e5b97f61258",
    ("rec_mv3_none_bilstm_ctc", 1, False): "e7f4f8a552d1223b",
    ("rec_mv3_none_bilstm_ctc", 4, False): "298134d963601c13",
    ("rec_mv3_none_bilstm_ctc", 4, True): "4788a62bc3d3da79",
    ("segformer_b0", 1, False): "f508e53991d08042",
    ("segformer_b0", 4, False): "3ce5646e22e003e7",
    ("segformer_b0", 4, True): "e303b4984f462eed",
    ("segformer_b0_35k", 1, False): "13ba7a6cbf275cdc",
    ("segformer_b0_35k", 4, False): "dd20960b0eca4a5d",
    ("segformer_b0_35k", 4, True): "6f4bb61b3809f546",
    ("slanet", 1, False): "d0a23a1eef5539ab",
    ("slanet", 4, False): "c49621d06529675c",
    ("slanet", 4, True): "56049cf2616730df",
    ("svtr_distillation", 1, False): "dfbf4eb309cacffa",
    ("svtr_distillation", 4, False): "be134bec02f40692",
    ("svtr_distillation", 4, True): "84ac6e2d885a49d0",
}


def values_of(job, table):
    """Return the merged config of a job, as far as the advice reads it."""
    known, upstream = table["config_keys"], job.get("upstream") or {}
    values = {
        "batch": upstream.get("per_card_batch", 8),
        "learning_rate": upstream.get("learning_rate", 0.01),
        "epochs": 300,
        "iterations": upstream.get("iterations"),
    }
    merged = {}
    for name, value in values.items():
        key = known.get(name)
        if not key or value is None:
            continue
        *above, last = key.split(".")
        folder = merged
        for part in above:
            folder = folder.setdefault(part, {})
        folder[last] = value
    return merged


def plan_of(name, count, resumed):
    """Return the plan of a shipped job on this many nodes of eight devices."""
    job, problems = jobs.read_job(str(CONFIGS / f"{name}.yml"), f"playbooks/configs/{name}.yml")
    assert not problems
    table = jobs.load_suite(job["suite"])
    accelerator = ACCELERATORS.get(job["launcher"], "gpu")
    params = {
        "job": job,
        "suite": table,
        "nodes": count,
        "devices": 8,
        "overrides": {},
        "accelerator": accelerator,
    }
    chosen = describe.settle_options(params, values_of(job, table))
    given = gang(count, 8, accelerator)
    given["job"] = copy.deepcopy(job)
    for number, fact in enumerate(given["facts"].values(), 1):
        fact["device_ips"] = {str(device): f"10.9.{number}.{device}" for device in range(8)}
    given["inputs"] = {
        "suite": table,
        "script": table["scripts"][0],
        "code": {"digest": CODE, "commit": None, "dirty": False},
        "data": {"coco": DATA},
        "weights": {"pretrain_weights": {"digest": "a" * 64, "file": "x.pdparams", "url": "u"}},
        "environment": {"package": "paddlepaddle-gpu", "version": "2.6.2", "digest": ENVIRONMENT},
        "config": {"files": [job["config"]], "epochs": 300},
        "overrides": chosen["overrides"],
        "arguments": chosen["arguments"],
        "advice": chosen["advice"],
        "resume": POINT if resumed else None,
    }
    return compiler.compile_plan(**given)


def older_plan(name, count, resumed):
    """Return a plan as it was before `settings` was a key."""
    plan = {key: value for key, value in plan_of(name, count, resumed).items() if key != "settings"}
    if resumed:
        plan["resume"]["unresumed"] = compiler.sha256(older_plan(name, count, False))
    return plan


@pytest.mark.parametrize("name, count, resumed", sorted(DIGESTS))
def test_a_plan_keeps_its_bytes(name, count, resumed):
    assert compiler.sha256(older_plan(name, count, resumed))[:16] == DIGESTS[name, count, resumed]


def test_a_plan_has_the_numbers_that_the_training_uses():
    config = {"files": [], "epochs": 300, "batch": 8, "learning_rate": 0.01, "iterations": None}
    assert compiled(count=2, devices=4, config=config)["settings"] == {
        "batch_per_card": 8,
        "batch_total": 64,
        "learning_rate": 0.01,
        "iterations": None,
    }


def test_every_shipped_job_is_compared():
    assert {name for name, _count, _resumed in DIGESTS} == set(jobs.shipped_jobs(str(CONFIGS)))
