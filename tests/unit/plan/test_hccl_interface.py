# SPDX-License-Identifier: Apache-2.0
"""The interface by which HCCL's ranks meet, as the plan gives it. Untested on hardware.

Source: CANN's reference of environment variables, HCCL_SOCKET_IFNAME (`=eth0` asks for the whole
name) and HCCL_IF_IP (it beats the name).
"""

from __future__ import annotations

import pytest
from ansible_collections.trainyard.cluster.plugins.module_utils.plan import compiler
from core_support import gang


def hccl_of(given, accelerator="ascend", job_env=None, count=2):
    arguments = gang(count=count, accelerator=accelerator)
    arguments["job"].update(launcher="msrun", env=job_env or {})
    arguments["site"]["env"] = given
    plan = compiler.compile_plan(**arguments)
    return [
        " ".join(f"{key}={text}" for key, text in sorted(node["env"].items()) if "HCCL" in key)
        for node in plan["nodes"]
    ], plan


def test_an_ascend_plan_names_interface_and_address():
    lines, plan = hccl_of({})
    assert lines == [
        "HCCL_IF_IP={address} HCCL_SOCKET_IFNAME=={interface}".format(**node)
        for node in plan["nodes"]
    ]
    assert all(node["interface"] and node["address"] for node in plan["nodes"])


@pytest.mark.parametrize("name", compiler.HCCL_NAMES)
def test_one_that_is_given_leaves_both_to_the_giver(name):
    for lines, plan in (hccl_of({name: "x"}), hccl_of({}, job_env={name: "x"})):
        assert lines == ["", ""] and plan["env"][name] == "x"


def test_other_plans_have_neither():
    for accelerator in ("gpu", "cpu"):
        assert hccl_of({}, accelerator)[0] == ["", ""]
    assert hccl_of({}, count=1)[0] == [""]
