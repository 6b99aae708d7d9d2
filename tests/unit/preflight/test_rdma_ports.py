# SPDX-License-Identifier: Apache-2.0
"""RDMA ports and GIDs, read from a directory laid out like /sys/class/infiniband.

Contents of the files: the kernel's Documentation/ABI/stable/sysfs-class-infiniband, and show_gids
in NVIDIA's "Recommended network configuration for RoCE". Untested on such hardware.
"""

from __future__ import annotations

import jsonschema
import pytest
from ansible_collections.trainyard.cluster.plugins.module_utils.preflight import gpu_links
from ansible_collections.trainyard.cluster.plugins.plugin_utils.gate import answer_gate
from ansible_collections.trainyard.cluster.plugins.plugin_utils.preflight import checks, rdma_ports
from core_support import compiled

EMPTY = "0000:0000:0000:0000:0000:0000:0000:0000"
LOCAL = "fe80:0000:0000:0000:0e42:a1ff:fe2d:9c3a"
IPV4 = "0000:0000:0000:0000:0000:ffff:0a00:0001"


def lay_port(root, name, port="1", state="4: ACTIVE", layer="Ethernet", gids=(LOCAL, IPV4, EMPTY)):
    folder = root / "sys/class/infiniband" / name / "ports" / port
    for part in ("gids", "gid_attrs/types", "gid_attrs/ndevs"):
        (folder / part).mkdir(parents=True)
    (folder / "state").write_text(state + "\n")
    (folder / "link_layer").write_text(layer + "\n")
    for index, gid in enumerate(gids):
        (folder / "gids" / str(index)).write_text(gid + "\n")
        if gid != EMPTY:  # the kernel refuses to read the others (EINVAL)
            (folder / "gid_attrs/types" / str(index)).write_text("RoCE v2\n")
            (folder / "gid_attrs/ndevs" / str(index)).write_text("ens1f0np0\n")


def look(root):
    return gpu_links.look(None, str(root))


def judged(root, env, count=2, accelerator="gpu"):
    plan = compiled(count=count, accelerator=accelerator)
    plan["env"].update(env)
    facts = {node["name"]: {"devices": look(root)} for node in plan["nodes"]}
    found = rdma_ports.judge(plan, facts)
    assert all(item["remedy"] for item in found)
    return found


def codes(found):
    return [(item["code"], item["level"]) for item in found if item["nodes"] == ["node1"]]


def test_adapters_are_read_as_the_gate_lets_them_through(tmp_path):
    lay_port(tmp_path, "mlx5_0")
    lay_port(tmp_path, "mlx5_1", state="1: DOWN", layer="InfiniBand", gids=())
    rows = look(tmp_path)["adapters"]
    assert rows[0] == {
        "name": "mlx5_0",
        "port": "1",
        "state": "4: ACTIVE",
        "link_layer": "Ethernet",
        "listed": 3,
        "gids": {
            "0": {"gid": LOCAL, "type": "RoCE v2", "ndev": "ens1f0np0"},
            "1": {"gid": IPV4, "type": "RoCE v2", "ndev": "ens1f0np0"},
        },
    }
    assert (rows[1]["listed"], rows[1]["gids"], rows[1]["state"]) == (0, {}, "1: DOWN")
    full = answer_gate.schema("node_info")
    part = dict(full["properties"]["facts"]["properties"]["devices"], **{"$defs": full["$defs"]})
    check = jsonschema.Draft202012Validator(part)
    base = {"kind": "gpu", "tool": "nvidia-smi", "error": "", "devices": [], "processes": []}
    told = dict(base, iommu=["intel_iommu=on"], fabric_manager="active", adapters=rows)
    assert list(check.iter_errors(told)) == []
    for lie in (
        {"iommu": ["intel_iommu=\x1b[31m"]},
        {"iommu": ["iommu=pt"] * 9},
        {"fabric_manager": "active\n"},
        {"adapters": [dict(rows[0], gids={"x": rows[0]["gids"]["0"]})]},
        {"adapters": [dict(rows[0], more="x")]},
        {"adapters": [dict(rows[0], state="x" * 129)]},
        {"adapters": rows[:1] * 257},
    ):
        assert list(check.iter_errors(dict(told, **lie))), lie


def test_bounds_of_what_is_read(tmp_path):
    for number in range(gpu_links.MOST_ADAPTERS + 3):
        lay_port(tmp_path, f"mlx5_{number:03d}", gids=())
    lay_port(tmp_path, "mlx4_0", gids=[LOCAL] * (gpu_links.MOST_GIDS + 4))
    rows = look(tmp_path)["adapters"]
    assert len(rows) == gpu_links.MOST_ADAPTERS
    assert len(rows[0]["gids"]) == gpu_links.MOST_GIDS and rows[0]["listed"] == 260
    long = {"NCCL_IB_HCA": "mlx4", "NCCL_IB_GID_INDEX": "258"}
    assert judged(tmp_path, long) == []  # not read, so not known
    assert look(tmp_path / "none")["adapters"] == []


@pytest.mark.parametrize(
    "env, expected",
    [
        ({}, []),
        ({"NCCL_IB_GID_INDEX": "1"}, []),
        ({"NCCL_IB_GID_INDEX": "-1"}, []),  # NCCL finds it
        ({"NCCL_IB_GID_INDEX": "auto"}, []),
        ({"NCCL_IB_GID_INDEX": "2"}, ["stop"]),
        ({"NCCL_IB_GID_INDEX": "3"}, ["stop"]),  # beyond the table
        ({"NCCL_IB_GID_INDEX": "2", "NCCL_IB_DISABLE": "1"}, []),
        ({"NCCL_IB_GID_INDEX": "2", "NCCL_IB_HCA": "mlx4"}, []),
    ],
)
def test_the_gid_of_the_plan(tmp_path, env, expected):
    lay_port(tmp_path, "mlx5_0")
    found = judged(tmp_path, env)
    assert codes(found) == [("interface.gid_empty", level) for level in expected]
    for item in found:
        assert IPV4 in item["text"] and "RoCE v2 ens1f0np0" in item["text"]
    assert judged(tmp_path, env, count=1) == []
    assert judged(tmp_path, env, accelerator="cpu") == []


def test_a_gid_that_only_some_ports_lack_is_a_warning(tmp_path):
    lay_port(tmp_path, "mlx5_0")
    lay_port(tmp_path, "mlx5_1", gids=(LOCAL, EMPTY, EMPTY))
    env = {"NCCL_IB_GID_INDEX": "1"}
    assert codes(judged(tmp_path, env)) == [("interface.gid_empty", "warn")]
    assert codes(judged(tmp_path, dict(env, NCCL_IB_HCA="=mlx5_0"))) == []
    assert codes(judged(tmp_path, dict(env, NCCL_IB_HCA="^mlx5_1:1"))) == []
    assert codes(judged(tmp_path, dict(env, NCCL_IB_HCA="mlx5_1:1"))) == [
        ("interface.gid_empty", "stop")
    ]


def test_infiniband_and_tables_that_cannot_be_read_have_no_finding(tmp_path):
    lay_port(tmp_path, "mlx5_0", layer="InfiniBand", gids=(LOCAL,))
    lay_port(tmp_path, "mlx5_1", gids=())
    lay_port(tmp_path, "mlx5_2", state="1: DOWN", gids=(EMPTY,))
    assert judged(tmp_path, {"NCCL_IB_GID_INDEX": "3"}) == []


@pytest.mark.parametrize(
    "text, expected",
    [
        ("mlx5", ["warn"]),
        ("mlx5_0,mlx5_1", ["warn"]),
        ("=mlx5_0:1,mlx5_1:1", ["warn"]),
        ("mlx5_0", []),
        ("mlx5_1", []),  # none is active: the network's check stops it
        ("mlx5_1:2,mlx5_0", []),
        ("^mlx5_0", []),
        ("", []),
    ],
)
def test_a_chosen_port_that_is_down(tmp_path, text, expected):
    lay_port(tmp_path, "mlx5_0")
    lay_port(tmp_path, "mlx5_1", state="1: DOWN")
    env = {"NCCL_IB_HCA": text} if text else {}
    found = judged(tmp_path, env)
    assert codes(found) == [("interface.rdma_port_down", level) for level in expected]
    assert all("mlx5_1:1 (1: DOWN)" in item["text"] for item in found)


def test_the_check_of_a_plan_looks_at_the_ports_and_an_older_node_says_nothing(tmp_path):
    lay_port(tmp_path, "mlx5_0")
    plan = compiled(count=2)
    plan["env"]["NCCL_IB_GID_INDEX"] = "2"
    facts = {node["name"]: {"devices": {}, "ports": None} for node in plan["nodes"]}
    assert rdma_ports.judge(plan, facts) == []
    facts["node1"]["devices"] = look(tmp_path)
    kept = checks.judge_rdma(plan, facts)
    assert codes(kept) == [("interface.gid_empty", "stop")]
    facts["node2"]["devices"] = {"adapters": [{"name": 3}]}
    kept = checks.judge_rdma(plan, facts)
    assert codes(kept) == [("interface.gid_empty", "stop")]
    assert [item["nodes"] for item in kept if item["code"] == "answer.unusable"] == [["node2"]]
