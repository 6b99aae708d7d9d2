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
    ("crnn_chinese", 1, False): "1f37300acd6d2018",
    ("crnn_chinese", 4, False): "fa803ffd93dbbf88",
    ("crnn_chinese", 4, True): "49faa77b8eb2e1b3",
    ("mindocr_crnn", 1, False): "4ec84c095d6edc7f",
    ("mindocr_crnn", 4, False): "7927b458f9e73790",
    ("mindocr_crnn", 4, True): "07fc649ef2f0bc9b",
    ("mindocr_dbnet", 1, False): "4d736448760e9366",
    ("mindocr_dbnet", 4, False): "f05587c87f6e44b6",
    ("mindocr_dbnet", 4, True): "3e2825fa3ad9bd15",
    ("ocrnet_hrnetw18", 1, False): "c57d3d4fcc7db9f3",
    ("ocrnet_hrnetw18", 4, False): "eb3f5a25961dae5b",
    ("ocrnet_hrnetw18", 4, True): "30c4c33c2867857d",
    ("pp_liteseg", 1, False): "9c5c00a3ed718d75",
    ("pp_liteseg", 4, False): "2788a526c0d893b6",
    ("pp_liteseg", 4, True): "9ad19c78ed43a897",
    ("ppyoloe", 1, False): "4d3a45c3d5103515",
    ("ppyoloe", 4, False): "81d5018b700451f5",
    ("ppyoloe", 4, True): "a8d6fbe394d9d08c",
    ("ppyoloe_l_objects365", 1, False): "e26e89e934c0775e",
    ("ppyoloe_l_objects365", 4, False): "3f4c729e6b3aebb4",
    ("ppyoloe_l_objects365", 4, True): "ca1887bf55027597",
    ("ppyoloe_m_objects365", 1, False): "8597e3ff4b972cd9",
    ("ppyoloe_m_objects365", 4, False): "065f0ca6f20239f9",
    ("ppyoloe_m_objects365", 4, True): "b3b718e0fa57093e",
    ("ppyoloe_s_objects365", 1, False): "d4df13b514333d09",
    ("ppyoloe_s_objects365", 4, False): "5ef9f834d795cc75",
    ("ppyoloe_s_objects365", 4, True): "b1e993bfbb34daec",
    ("ppyoloe_x_objects365", 1, False): "1e03cacdacf55ca6",
    ("ppyoloe_x_objects365", 4, False): "4fbbe4b6f53d55b0",
    ("ppyoloe_x_objects365", 4, True): "85ee6026b4fac2e9",
    ("rec_mv3_none_bilstm_ctc", 1, False): "d79a380e9f257b22",
    ("rec_mv3_none_bilstm_ctc", 4, False): "892d8d878a776c05",
    ("rec_mv3_none_bilstm_ctc", 4, True): "cfea018152d0d91e",
    ("segformer_b0", 1, False): "e19754d13429517c",
    ("segformer_b0", 4, False): "71f8efaec5a09b75",
    ("segformer_b0", 4, True): "15a76c81afe6950a",
    ("segformer_b0_35k", 1, False): "436e2f5e267c9290",
    ("segformer_b0_35k", 4, False): "c1c6921977af99ce",
    ("segformer_b0_35k", 4, True): "cc98006e6571ff90",
    ("slanet", 1, False): "483ac5722a599ef7",
    ("slanet", 4, False): "fcebbf0b918ed74f",
    ("slanet", 4, True): "95f02a5ab9e27ac0",
    ("svtr_distillation", 1, False): "f5e1d059bc2211fa",
    ("svtr_distillation", 4, False): "8f130b5c010e286e",
    ("svtr_distillation", 4, True): "e411ac63c8d3df31",
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


@pytest.mark.parametrize("name, count, resumed", sorted(DIGESTS))
def test_a_plan_keeps_its_bytes(name, count, resumed):
    assert compiler.sha256(plan_of(name, count, resumed))[:16] == DIGESTS[name, count, resumed]


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
