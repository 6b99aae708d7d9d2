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
    ("crnn_chinese", 1, False): "5d44fa2c1d03441b",
    ("crnn_chinese", 4, False): "8123036203031c22",
    ("crnn_chinese", 4, True): "ecd65c7f52b7acd4",
    ("mindocr_crnn", 1, False): "90168151d46ffde4",
    ("mindocr_crnn", 4, False): "c691632ba2310675",
    ("mindocr_crnn", 4, True): "32b38007326a57d0",
    ("mindocr_dbnet", 1, False): "06a251f97f2126ac",
    ("mindocr_dbnet", 4, False): "3aba457bbdac6973",
    ("mindocr_dbnet", 4, True): "15b04bf80a5fa19a",
    ("ocrnet_hrnetw18", 1, False): "bff4afba7a3a5a3e",
    ("ocrnet_hrnetw18", 4, False): "91383f6e4d3098c1",
    ("ocrnet_hrnetw18", 4, True): "0d23ce6225042170",
    ("pp_liteseg", 1, False): "c3a6ea859aced6c1",
    ("pp_liteseg", 4, False): "b2d4162c0aadf41e",
    ("pp_liteseg", 4, True): "54463382376d00a0",
    ("ppyoloe", 1, False): "1b382cded82a3633",
    ("ppyoloe", 4, False): "dc444fd363ebf68f",
    ("ppyoloe", 4, True): "f316e21c80058927",
    ("ppyoloe_l_objects365", 1, False): "0c4352f476aee12d",
    ("ppyoloe_l_objects365", 4, False): "db5e44e82407624f",
    ("ppyoloe_l_objects365", 4, True): "b0c107563fa5a8ad",
    ("ppyoloe_m_objects365", 1, False): "f324466f81f16394",
    ("ppyoloe_m_objects365", 4, False): "9085d1a3d9348bfa",
    ("ppyoloe_m_objects365", 4, True): "4d845e841bb4fb41",
    ("ppyoloe_s_objects365", 1, False): "04e6bfa07f0a17ee",
    ("ppyoloe_s_objects365", 4, False): "7be9f6b9833e51a9",
    ("ppyoloe_s_objects365", 4, True): "37a83785489bfb39",
    ("ppyoloe_x_objects365", 1, False): "bb62cc37c50871ea",
    ("ppyoloe_x_objects365", 4, False): "36f3f835f602e652",
    ("ppyoloe_x_objects365", 4, True): "d600891163aa4174",
    ("rec_mv3_none_bilstm_ctc", 1, False): "49ab801213f6b7ff",
    ("rec_mv3_none_bilstm_ctc", 4, False): "ba353881241edb15",
    ("rec_mv3_none_bilstm_ctc", 4, True): "ae78935e05036e50",
    ("segformer_b0", 1, False): "23cc771e9dd1e9e8",
    ("segformer_b0", 4, False): "47afc2bd52b10118",
    ("segformer_b0", 4, True): "83dff5f021c86806",
    ("segformer_b0_35k", 1, False): "950ef332bf758dbe",
    ("segformer_b0_35k", 4, False): "ca36f08a88a35ee4",
    ("segformer_b0_35k", 4, True): "1c9b7d8418ae4154",
    ("slanet", 1, False): "285c27d702f010a0",
    ("slanet", 4, False): "a041e2c3a1417688",
    ("slanet", 4, True): "51f6a02e5c181a29",
    ("svtr_distillation", 1, False): "64ebc8cb3b2a9b27",
    ("svtr_distillation", 4, False): "abac0218502ee240",
    ("svtr_distillation", 4, True): "45bf6635c3b9a6e5",
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


def shipped_gang(name, count, **config):
    """Return compile_plan's arguments for a shipped job on this many nodes of eight devices, and
    the values of its merged config. config: more of what the config says.
    """
    job, problems = jobs.read_job(str(CONFIGS / f"{name}.yml"), f"playbooks/configs/{name}.yml")
    assert not problems
    suite = jobs.load_suite(job["suite"])
    accelerator, values = ACCELERATORS.get(job["launcher"], "gpu"), values_of(job, suite)
    options = {"job": job, "suite": suite, "nodes": count, "devices": 8, "overrides": {}}
    chosen = describe.settle_options(dict(options, accelerator=accelerator), values)
    given = gang(count, 8, accelerator)
    for number, fact in enumerate(given["facts"].values(), 1):
        fact["device_ips"] = {str(device): f"10.9.{number}.{device}" for device in range(8)}
    inputs = {
        "suite": suite,
        "script": suite["scripts"][0],
        "code": {"digest": CODE, "commit": None, "dirty": False},
        "data": {"coco": DATA},
        "weights": {"pretrain_weights": {"digest": "a" * 64, "file": "x.pdparams", "url": "u"}},
        "environment": {"package": "paddlepaddle-gpu", "version": "2.6.2", "digest": ENVIRONMENT},
        "config": {"files": [job["config"]], "epochs": 300, **config},
        **{key: chosen[key] for key in ("overrides", "arguments", "advice")},
    }
    return dict(given, job=copy.deepcopy(job), inputs=inputs), values


def plan_of(name, count, resumed):
    """Return the plan of a shipped job on this many nodes of eight devices."""
    given, _values = shipped_gang(name, count)
    given["inputs"]["resume"] = POINT if resumed else None
    return compiler.compile_plan(**given)


@pytest.mark.parametrize("name, count, resumed", sorted(DIGESTS))
def test_a_plan_keeps_its_bytes(name, count, resumed):
    assert compiler.sha256(plan_of(name, count, resumed))[:16] == DIGESTS[name, count, resumed]


@pytest.mark.parametrize(
    "job, count, seconds",
    [
        ("ppyoloe", 1, None),
        ("ppyoloe", 4, 1.5),
        ("crnn_chinese", 4, 1.5),
        ("mindocr_crnn", 4, None),
    ],
)
def test_with_paddle_the_first_node_begins_before_the_others(job, count, seconds):
    assert plan_of(job, count, False)["launcher"].get("head_start") == seconds


def test_a_plan_has_the_numbers_that_the_training_uses():
    config = {"files": [], "epochs": 300, "batch": 8, "learning_rate": 0.01, "iterations": None}
    assert compiled(count=2, devices=4, config=config)["settings"] == {
        "batch_per_card": 8,
        "batch_total": 64,
        "learning_rate": 0.01,
        "iterations": None,
    }


@pytest.mark.parametrize(
    "accelerator, environment, level",
    [("gpu", {}, "WARN"), ("gpu", {"NCCL_DEBUG": "INFO"}, "INFO"), ("cpu", {}, None)],
)
def test_nccl_says_why_it_failed_unless_the_job_says_otherwise(accelerator, environment, level):
    given = gang(2, 4, accelerator)
    given["job"] = dict(given["job"], env=environment)
    assert compiler.compile_plan(**given)["env"].get("NCCL_DEBUG") == level


@pytest.mark.parametrize(
    "accelerator, site, expected",
    [
        ("ascend", {}, ("3", "0")),
        ("ascend", {"ASCEND_GLOBAL_LOG_LEVEL": "1"}, ("1", "0")),
        ("ascend", {"ASCEND_SLOG_PRINT_TO_STDOUT": "1"}, ("3", "1")),
        ("gpu", {}, (None, None)),
        ("cpu", {}, (None, None)),
    ],
)
def test_cann_writes_why_it_failed_unless_the_site_says_otherwise(accelerator, site, expected):
    given = gang(
        2, 4, accelerator, job={"launcher": "msrun" if accelerator == "ascend" else "paddle"}
    )
    given["site"] = dict(given["site"], env=site)
    environment = compiler.compile_plan(**given)["env"]
    names = ("ASCEND_GLOBAL_LOG_LEVEL", "ASCEND_SLOG_PRINT_TO_STDOUT")
    assert tuple(environment.get(name) for name in names) == expected


@pytest.mark.parametrize("site, level", [({}, "WARN"), ({"NCCL_DEBUG": "INFO"}, "INFO")])
def test_nccl_says_why_it_failed_unless_the_site_says_otherwise(site, level):
    given = gang(2, 4, "gpu")
    given["site"] = dict(given["site"], env=site)
    assert compiler.compile_plan(**given)["env"]["NCCL_DEBUG"] == level


def test_every_shipped_job_is_compared():
    assert {name for name, _count, _resumed in DIGESTS} == set(jobs.shipped_jobs(str(CONFIGS)))
