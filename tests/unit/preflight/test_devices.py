# SPDX-License-Identifier: Apache-2.0
"""The accelerators of the nodes. The tests read and judge the output of nvidia-smi and npu-smi
(tests/fixtures/nvidia_smi).
"""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from ansible_collections.trainyard.cluster.plugins.module_utils.base import findings
from ansible_collections.trainyard.cluster.plugins.module_utils.preflight import devices, npu_smi
from core_support import RUN, gang

FIXTURES = Path(__file__).parents[2] / "fixtures" / "nvidia_smi"


class Smi:
    """A `run` that answers as nvidia-smi does; unknown: fields that its driver does not know."""

    def __init__(self, table="h100x2.csv", apps="", unknown=(), fails=None):
        self.table, self.apps, self.unknown, self.fails, self.calls = (
            table,
            apps,
            set(unknown),
            fails,
            [],
        )

    def __call__(self, argv):
        assert argv[:3] == ["timeout", str(devices.LIMIT_S), "nvidia-smi"]
        self.calls.append(argv[3:])
        if self.fails:
            return self.fails
        if len(argv) == 3:
            return 0, (FIXTURES / "header.txt").read_text(), ""
        if argv[3].startswith("--query-compute-apps"):
            return 0, self.apps, ""
        asked = argv[3].partition("=")[2].split(",")
        for field in asked:
            if field in self.unknown:
                return 2, f'Field "{field}" is not a valid field to query.\n\n', ""
        columns = [
            next(place for place, names in enumerate(devices.FIELDS.values()) if field in names)
            for field in asked
        ]
        rows = [line.split(", ") for line in (FIXTURES / self.table).read_text().splitlines()]
        return 0, "".join(", ".join(row[column] for column in columns) + "\n" for row in rows), ""


def look(smi, accelerator="gpu"):
    return devices.look(smi, "/b", {"accelerator": accelerator})


def judged(told, count=2, accelerator="gpu", allowed=None, ids=("0", "1")):
    """Return the findings of nodes that say this; told: one answer for each node, or one for all."""
    told = told if isinstance(told, list) else [told] * count
    nodes = [
        dict(node, devices=list(ids))
        for node in gang(count=len(told), devices=2, accelerator=accelerator)["nodes"]
    ]
    return devices.judge(
        nodes, {node["name"]: {"devices": one} for node, one in zip(nodes, told)}, allowed or {}
    )


def texts(found, level=None, code=None):
    """Return the texts of the findings of one level and one code, or of all."""
    return [
        item["text"]
        for item in found
        if level in (None, item["level"]) and code in (None, item["code"])
    ]


def test_a_healthy_node_gives_no_finding():
    smi = Smi()
    told = look(smi)
    assert (
        told["error"] == ""
        and told["cuda"] == "12.4"
        and [item["index"] for item in told["devices"]] == ["0", "1"]
    )
    assert (
        told["devices"][0]["memory_total"] == 81559 and told["devices"][0]["driver"] == "550.54.15"
    )
    assert judged(told) == [] and len(smi.calls) == 3


def test_a_cpu_node_is_asked_nothing_and_older_facts_are_passed_over():
    told = look(Smi(fails=(1, "", "not to be called")), "cpu")
    assert told["error"] == "" and judged(told, accelerator="cpu") == []
    assert devices.judge(gang()["nodes"], gang()["facts"], {}) == []


@pytest.mark.parametrize(
    "unknown, last",
    [
        (["clocks_event_reasons.active"], "clocks_throttle_reasons.active"),  # drivers before 535
        (
            [
                "clocks_event_reasons.active",
                "clocks_throttle_reasons.active",
                "remapped_rows.pending",
                "mig.mode.current",
            ],
            None,
        ),
    ],
)
def test_a_field_that_the_driver_does_not_know_costs_only_itself(unknown, last):
    smi = Smi(unknown=unknown)
    told = look(smi)
    assert told["error"] == "" and len(told["devices"]) == 2 and judged(told) == []
    asked = smi.calls[-3][0].split(",")
    assert (last in asked) if last else "pcie.link.width.max" in asked
    assert (told["devices"][0]["throttle"] is None) == (last is None) and told["devices"][0][
        "width_max"
    ] == 16


def test_what_a_device_does_not_have_is_no_fault():
    told = look(Smi("geforce.csv"))
    assert told["devices"][0]["ecc_uncorrected"] is None and told["devices"][0]["mig"] is None
    assert judged(told, ids=("0",)) == []  # 0x4, the power cap, is how a card works


def test_everything_that_ails_a_device_is_said():
    found = judged(look(Smi("h100x2_ill.csv")), count=1)
    assert [item["level"] for item in found if item["code"] == "ecc.uncorrected"] == ["stop"]
    (uncorrected,) = texts(found, "stop", "ecc.uncorrected")
    assert uncorrected.startswith("device 0 (NVIDIA H100 ") and "): 3 " in uncorrected
    (faulty,) = texts(found, "stop", "devices.faulty")
    assert faulty.startswith("device 1 (NVIDIA H100 ")
    assert "[GPU requires reset]" in faulty
    warned = texts(found, "warn")
    (slowed,) = texts(found, "warn", "throttle.slowed")
    assert slowed.startswith("device 0 ")
    assert slowed.partition(": ")[2].split(", ") == ["hardware slowdown", "too hot (hardware)"]
    assert any("PCIe link x8 of x16" in text for text in warned) and any(
        "wait for a reset" in text for text in warned
    )
    (held,) = texts(found, "warn", "devices.memory_held")
    assert held.startswith("device 1 ") and "40211 MiB" in held
    assert [item["code"] for item in found if item["level"] == "note"] == ["devices.divided"]
    (divided,) = texts(found, "note")
    assert divided.startswith("device 0 (NVIDIA H100 ")
    # devices that the job does not use are not checked
    assert judged(look(Smi("h100x2_ill.csv")), count=1, ids=("7",))[0]["text"].startswith(
        "the job takes device 7"
    )
    eased = judged(look(Smi("h100x2_ill.csv")), count=1, allowed={"devices": {"ecc": "warn"}})
    assert not any("ECC" in text for text in texts(eased, "stop"))


def test_a_process_on_a_device_that_the_job_takes_stops_it_and_is_named():
    line = "GPU-00000000-0000-0000-0000-00000000000a, %d, python, 40112\n" % os.getpid()
    told = look(Smi(apps=line))
    found = judged(told, count=1)
    assert len(found) == 1 and found[0]["level"] == "stop" and "left alone" in found[0]["remedy"]
    assert (found[0]["code"], found[0]["nodes"]) == ("devices.in_use", ["node1"])
    user = told["processes"][0]["user"]
    assert found[0]["text"].startswith("device 0 ")
    assert f"pid {os.getpid()} of {user}, 40112 MiB: " in found[0]["text"]
    other = judged(told, count=1, ids=("1",))
    assert [item["level"] for item in other] == ["note"] and "the job does not take it" in other[0][
        "text"
    ]


def test_a_process_of_a_run_of_ours_has_its_remedy():
    told = look(Smi(apps="GPU-00000000-0000-0000-0000-00000000000a, %d, python, 4\n" % os.getpid()))
    told["processes"][0]["run"] = RUN
    assert (
        judged(told, count=1)[0]["remedy"]
        == f"ansible-playbook playbooks/stop.yml -e run={RUN} ends it"
    )


def test_rows_of_processes_are_read_from_both_ends():
    found = devices.apps_of((FIXTURES / "apps.csv").read_text())
    assert [(item["pid"], item["memory"]) for item in found] == [(4054862, 40112), (524, None)]
    assert (
        found[0]["command"] == "/opt/train, v2, final.py" or found[0]["user"]
    )  # a process here may have this number
    assert devices.apps_of("No running processes found\n, , ,\nx\n") == []


@pytest.mark.parametrize(
    "answer, words",
    [
        (
            (127, "", "timeout: failed to run command 'nvidia-smi'"),
            "nvidia-smi: it is not installed",
        ),
        ((124, "", ""), "no answer within 20 s"),
        (
            (
                9,
                "NVIDIA-SMI has failed because it couldn't communicate with the NVIDIA driver.",
                "",
            ),
            "couldn't communicate with the NVIDIA driver",
        ),
        (
            (18, "Failed to initialize NVML: Driver/library version mismatch", ""),
            "version mismatch",
        ),
        ((6, "No devices were found", ""), "No devices were found"),
        ((0, "No devices were found", ""), "No devices were found"),
        ((1, "", ""), "exit code 1 without a word"),
    ],
)
def test_a_tool_that_fails_stops_with_its_own_words(answer, words):
    found = judged(look(Smi(fails=answer)), count=2)
    assert [item["level"] for item in found] == ["stop", "stop"] and all(
        words in item["text"] and item["remedy"] for item in found
    )
    assert len(findings.merged(found)) == 1


def test_nodes_that_differ():
    told = look(Smi())
    fewer = dict(told, devices=told["devices"][:1])
    found = judged([told, fewer])
    (missing,) = texts(found, "stop", "devices.missing")
    assert "device 1;" in missing and missing.endswith("1: 0")
    assert [item["level"] for item in judged([told, fewer], ids=("0",))] == [
        "warn"
    ]  # it has what is asked for
    other = dict(
        told,
        devices=[
            dict(item, name="NVIDIA A100-SXM4-80GB", memory_total=81920) for item in told["devices"]
        ],
    )
    assert len(texts(judged([told, other]), "stop", "devices.model_differs")) == 1
    assert texts(judged([told, other], allowed={"devices": {"model": "note"}}), "stop") == []
    older = dict(
        told, cuda="12.2", devices=[dict(item, driver="535.183.06") for item in told["devices"]]
    )
    assert (
        len(texts(judged([told, older]), "warn")) == 2
        and texts(judged([told, older]), "stop") == []
    )


def test_control_characters_of_a_process_do_not_reach_the_terminal():
    found = devices.apps_of("GPU-x, 4194399, \x1b[31mred, 4\n")
    assert "\x1b" not in found[0]["command"]


def test_the_fabric_is_asked_with_the_other_fields():
    told = devices.look(Smi("h100x2.csv"), "/b", {"accelerator": "gpu"})
    assert [item["fabric"] for item in told["devices"]] == ["Completed", "Completed"]
    told = devices.look(Smi("geforce.csv"), "/b", {"accelerator": "gpu"})
    assert told["devices"][0]["fabric"] is None
    told = devices.look(Smi(unknown=["fabric.state"]), "/b", {"accelerator": "gpu"})
    assert told["error"] == "" and told["devices"][0]["fabric"] is None


def test_only_devices_of_the_job_count():
    state = devices.look(Smi(), "/b", {"accelerator": "gpu"})
    state["devices"][1]["fabric"] = "In Progress"
    facts = {"node1": {"devices": state}}
    for ids, expected in ((["0"], []), (["0", "1"], ["devices.fabric_not_ready"])):
        node = dict(gang(count=1, accelerator="gpu")["nodes"][0], devices=ids)
        found = devices.judge([node], facts, {})
        assert [item["code"] for item in found if item["level"] == "stop"] == expected


# --- Ascend


@pytest.mark.parametrize(
    "name, indices, driver, busy",
    [
        ("npu_910b.txt", ["0", "1"], "25.2.0", "1"),
        ("npu_a3.txt", ["0", "1", "2", "3"], "26.0.rc2", "3"),
    ],
)
def test_the_tables_of_npu_smi(name, indices, driver, busy):
    found, held = npu_smi.parse((FIXTURES / name).read_text())
    assert [item["index"] for item in found] == indices and {item["driver"] for item in found} == {
        driver
    }
    assert all(item["memory_total"] == 65536 and item["memory_used"] < 4000 for item in found)
    assert [(item["pid"], item["device"]) for item in held] == [(4054862, busy)]


def test_an_ascend_node_is_judged_alike():
    told = look(lambda argv: (0, (FIXTURES / "npu_910b.txt").read_text(), ""), "ascend")
    found = judged(told, count=1, accelerator="ascend")
    (unhealthy,) = texts(found, "stop", "devices.unhealthy")
    assert unhealthy.startswith("device 1 (910B4-1): ") and "Alarm" in unhealthy
    (busy,) = texts(found, "stop", "devices.in_use")
    assert busy.startswith("device 1 ") and "pid 4054862" in busy
    assert not any("device 0" in text for text in texts(found))
    # 3 GiB in use are an idle one's
    assert texts(found, "warn") == []


@pytest.mark.parametrize(
    "answer, level",
    [((127, "", ""), "warn"), ((124, "", ""), "stop"), ((0, "garbage | a | b", ""), "stop")],
)
def test_npu_smi_that_tells_nothing(answer, level):
    found = judged(look(lambda argv: answer, "ascend"), count=1, accelerator="ascend")
    assert [item["level"] for item in found] == [level]
