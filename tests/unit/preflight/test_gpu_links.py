# SPDX-License-Identifier: Apache-2.0
"""The links of GPUs: fabric, peer-to-peer and RDMA adapters, read from directories laid out like
/proc, /dev and /sys. Untested on such hardware.
"""

from __future__ import annotations

import pytest
from ansible_collections.trainyard.cluster.plugins.module_utils.preflight import (
    driver_cuda,
    gpu_links,
    software,
)
from core_support import gang

H100, A100 = "NVIDIA H100 80GB HBM3", "NVIDIA A100-SXM4-80GB"
# BOOT_IMAGE lines of /proc/cmdline as in NVIDIA/nccl issues 257 and 631.
CMDLINE = "BOOT_IMAGE=/boot/vmlinuz-5.15.0-91-generic root=/dev/sda2 ro "


def lay(root, files):
    for name, text in files.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(text)


def taken(*cells, model=H100):
    return [
        {"index": str(place), "name": model, "fabric": cell} for place, cell in enumerate(cells)
    ]


def judged(cells, state=None, model=H100, level="stop"):
    found = gpu_links.judge_node("node1", state or {}, taken(*cells, model=model), level)
    assert all(item["nodes"] == ["node1"] and item["remedy"] for item in found)
    return [(item["code"], item["level"]) for item in found]


# --- the fabric


@pytest.mark.parametrize(
    "cells, expected",
    [
        (["Completed", "Completed"], []),
        (["In Progress", "In Progress"], ["stop"]),  # huggingface/huggingface_hub issue 4134
        (["Completed", "Not Started"], ["stop"]),
        (["state  Completed"], []),  # as a GB200's driver prints the cell
        (["state  In Progress"], ["stop"]),
        ([None], []),  # [N/A], or a driver without the field
        (["Not Supported"], []),  # H100 PCIe: leptonai/gpud pull 1147
        (["a word of a later release"], []),
    ],
)
def test_a_fabric_that_is_not_ready_stops(cells, expected):
    assert judged(cells) == [("devices.fabric_not_ready", level) for level in expected]
    assert judged(cells, level="warn") == [("devices.fabric_not_ready", "warn")] * len(expected)


# What `systemctl show nvidia-fabricmanager --property=LoadState,ActiveState` prints (systemd 249).
@pytest.mark.parametrize(
    "answer, state",
    [
        ((0, "LoadState=loaded\nActiveState=active\n", ""), "active"),
        ((0, "LoadState=loaded\nActiveState=failed\n", ""), "failed"),
        ((0, "LoadState=not-found\nActiveState=inactive\n", ""), ""),  # runs in a container
        ((1, "", "System has not been booted with systemd as init system (PID 1)."), ""),
        ((124, "", ""), ""),
        ((0, "LoadState=loaded\nActiveState=\x1b[31m\n", ""), ""),
    ],
)
def test_the_service_is_asked_where_an_nvswitch_is(tmp_path, answer, state):
    calls = []

    def run(argv):
        calls.append(argv)
        return answer

    assert gpu_links.look(run, str(tmp_path))["fabric_manager"] == "" and calls == []
    lay(tmp_path, {"dev/nvidia-nvswitch0": "", "dev/nvidia-nvswitchctl": ""})
    assert gpu_links.look(run, str(tmp_path))["fabric_manager"] == state
    assert calls[0][:4] == ["timeout", "5", "systemctl", "show"] and len(calls) == 1


@pytest.mark.parametrize(
    "service, cells, expected",
    [
        ("inactive", [None, None], ["warn"]),
        ("failed", [None], ["warn"]),
        ("active", [None], []),
        ("activating", [None], []),
        ("", [None], []),
        ("inactive", ["Completed"], []),  # the device itself knows better
        ("inactive", [], []),
    ],
)
def test_a_stopped_service_is_a_warning_where_the_devices_say_nothing(service, cells, expected):
    found = judged(cells, {"fabric_manager": service}, A100)
    assert found == [("devices.fabric_manager_stopped", level) for level in expected]


# --- peer-to-peer


@pytest.mark.parametrize(
    "words, expected",
    [
        ("intel_iommu=on", True),
        ("amd_iommu=on iommu=force", True),
        ("intel_iommu=on,sm_on", True),
        ("intel_iommu=on iommu=pt", False),
        ("intel_iommu=on iommu.passthrough=1", False),
        ("intel_iommu=off", False),
        ("quiet splash", False),
        ("iommu=pt", False),
    ],
)
def test_an_iommu_that_translates_is_a_note(tmp_path, words, expected):
    lay(tmp_path, {"proc/cmdline": CMDLINE + words + "\n"})
    state = gpu_links.look(None, str(tmp_path))
    note = [("devices.peers_through_iommu", "note")] * expected
    assert judged([None, None], state, A100) == note
    assert judged([None], state, A100) == []  # one device has no peer
    assert judged(["Completed", "Completed"], state) == []  # NVLink does not pass it


# NVIDIA/nccl-tests issue 117; a 3090 with a bridge has peer-to-peer (huggingface/accelerate 2328).
@pytest.mark.parametrize(
    "model, count, expected",
    [
        ("NVIDIA GeForce RTX 4090", 2, True),
        ("NVIDIA GeForce RTX 4090", 1, False),
        ("NVIDIA GeForce RTX 3090", 2, False),
        ("NVIDIA RTX 4000 Ada Generation", 2, False),
    ],
)
def test_a_model_without_peer_to_peer_is_a_note(model, count, expected):
    assert judged([None] * count, model=model) == [("devices.no_peers", "note")] * expected


# --- the driver's CUDA


def environment(cuda=None, packages=None):
    frameworks = {"paddle": {"version": "3.0.0", "cuda": cuda}} if cuda else {}
    return {"frameworks": frameworks, "packages": packages or {}}


# paddle/version/__init__.py: cuda_version = '12.3'; nvidia-cuda-runtime-cu12 12.3.101 (PyPI).
@pytest.mark.parametrize(
    "driver, state, expected",
    [
        ("12.4", environment("12.3"), None),
        ("12.3", environment("12.3"), None),
        ("13.0", environment("11.8"), None),
        ("11.8", environment("12.3"), "driver.cuda_too_old"),
        ("12.2", environment("12.3"), "driver.cuda_minor_older"),
        ("10.1", environment("10.2"), "driver.cuda_too_old"),  # before CUDA 11
        (
            "11.8",
            environment(None, {"nvidia-cuda-runtime-cu12": "12.3.101"}),
            "driver.cuda_too_old",
        ),
        ("12.8", environment(None, {"nvidia-cuda-runtime": "13.0.48"}), "driver.cuda_too_old"),
        ("11.8", environment(None, {"nvidia-cuda-runtime-x": "12.3"}), None),
        (None, environment("12.3"), None),
        ("11.8", environment(), None),
        ("11.8", environment("unknown"), None),
    ],
)
def test_the_driver_against_the_wheel(driver, state, expected):
    nodes = gang(count=1, accelerator="gpu")["nodes"]
    facts = {"node1": {"devices": {"cuda": driver}}}
    found = driver_cuda.judge(nodes, facts, {"node1": state}, "stop")
    assert [item["code"] for item in found] == [expected] * bool(expected)
    for item in found:
        assert item["level"] == {"driver.cuda_too_old": "stop"}.get(expected, "warn")
        assert item["nodes"] == ["node1"] and item["remedy"] and driver in item["text"]
    cpu = gang(count=1, accelerator="cpu")["nodes"]
    assert driver_cuda.judge(cpu, facts, {"node1": state}, "stop") == []


def test_the_check_of_software_compares_the_driver():
    nodes = gang(count=1, accelerator="gpu")["nodes"]
    own = dict(environment("12.3", {"paddlepaddle-gpu": "3.0.0"}), builds={}, wrong={})
    facts = {
        "node1": {
            "devices": {"cuda": "11.8"},
            "installed": {"environments": {}, "own": own, "libraries": {}},
        }
    }
    for allowed, level in (({}, "stop"), ({"devices": {"cuda": "warn"}}, "warn")):
        found = software.judge(nodes, facts, allowed)
        assert [item["level"] for item in found if item["code"] == "driver.cuda_too_old"] == [level]
