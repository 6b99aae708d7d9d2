# SPDX-License-Identifier: Apache-2.0
"""The heads of command lines, overrides as words, and what MindSpore's launchers get. The whole
commands of the upstream documentation are in test_contract_commands.py.
"""

from __future__ import annotations

import ast
import ipaddress
import json
import shlex

import pytest
import yaml
from ansible_collections.trainyard.cluster.plugins.module_utils.plan.compiler import (
    PlanError,
    compile_plan,
)
from ansible_collections.trainyard.cluster.plugins.module_utils.suites import launcher_table
from ansible_collections.trainyard.cluster.plugins.plugin_utils.config import job as jobs
from core_support import ADDRESSES, compiled, gang


@pytest.mark.parametrize(
    "name, accelerator, addresses, words",
    [
        ("fleetrun", "cpu", 1, "fleetrun --nproc_per_node=2"),
        ("fleetrun", "cpu", 2, "fleetrun --ips=10.127.6.17,10.127.5.142 --nproc_per_node=2"),
        (
            "paddle",
            "cpu",
            1,
            "python -m paddle.distributed.launch --log_dir=./log/ --nproc_per_node=2",
        ),
        (
            "paddle",
            "cpu",
            2,
            (
                "python -m paddle.distributed.launch --log_dir=./log/"
                " --ips=10.127.6.17,10.127.5.142 --nproc_per_node=2"
            ),
        ),
        ("paddle", "gpu", 1, "python -m paddle.distributed.launch --log_dir=./log/ --gpus 4,5"),
        ("fleetrun", "gpu", 1, "fleetrun --selected_gpu 4,5"),
    ],
)
def test_heads(name, accelerator, addresses, words):
    assert launcher_table.launcher_argv(
        name, accelerator, ADDRESSES[:addresses], ["4", "5"]
    ) == words.split(" ")


def test_a_path_with_braces_or_spaces_is_one_word():
    assert (
        launcher_table.launcher_argv("paddle", "cpu", ["a"], ["0"], "/opt/my {x}/python")[0]
        == "/opt/my {x}/python"
    )


@pytest.mark.parametrize(
    "value",
    [
        True,
        False,
        None,
        3,
        -1,
        0.5,
        1e-05,
        1e22,
        2.5e-7,
        "text",
        "output/x",
        [1, 2.5, True],
        ["a", "b"],
        [1e-05],
        [],
        "weights/0123/model.pdparams",
        "https://host/x.pdparams",
        "yes",
        "1.0",
        "a: b",
        "null",
        ["a, b", "c"],
        [{"type": "Normalize", "size": [128, 64]}, {"a: b": None}],
    ],
)
def test_an_override_is_read_back_as_it_was_meant(value):
    word = launcher_table.override_arguments("-o", {"key": value})[1]
    assert (
        yaml.safe_load(word.partition("=")[2]) == value
    )  # the suites parse the right-hand side as YAML


@pytest.mark.parametrize(
    "value",
    [
        True,
        None,
        3,
        0.5,
        "text",
        "None",
        "1.0",
        "output/x",
        [{"type": "Normalize", "size": [128, 64]}],
        "",
    ],
)
def test_a_python_override_is_read_back_as_it_was_meant(value):
    """paddleseg/cvlibs/config.py: a value that literal_eval cannot read is taken as text."""
    text = launcher_table.override_arguments("--opts", {"key": value}, "python")[1].partition("=")[
        2
    ]
    try:
        found = ast.literal_eval(text)
    except (ValueError, SyntaxError):
        found = text
    assert found == value and type(found) is type(value)


def test_overrides_keep_their_order_and_none_adds_no_flag():
    assert launcher_table.override_arguments("-o", {"worker_num": 1, "a.b": "x y"}) == [
        "-o",
        "worker_num=1",
        "a.b=x y",
    ]
    assert launcher_table.override_arguments("-o", {}) == []


# --- MindSpore, and --master

MINDOCR = {"suite": jobs.load_suite("mindocr"), "overrides": {"system.distribute": True}}
D3 = "mpirun --allow-run-as-root -n 8"


def mindocr(launcher, count, accelerator="ascend", user="trainer", **changes):
    """Return the plan of a MindOCR job; every node has eight devices with addresses."""
    arguments = gang(
        count=count,
        accelerator=accelerator,
        job={"suite": "mindocr", "launcher": launcher, "config": "configs/x.yaml", "arguments": []},
    )
    arguments["inputs"].update(MINDOCR)
    for index, fact in enumerate(arguments["facts"].values()):
        fact.update(
            {
                "user": user,
                "device_ips": {
                    str(d): "192.168.%d.%d" % (100 + d % 4, 10 * index + d // 4 + 1)
                    for d in range(8)
                },
            },
            **changes,
        )
    return compile_plan(**arguments)


def test_nodes_that_meet_at_a_master():
    """paddle/distributed/launch: PADDLE_RANK is --rank, and PORT_RANGE limits the ports of the
    ranks. The argv is the same everywhere.
    """
    made = compiled(count=2, job={"launcher": "paddle", "rendezvous": "master"})
    assert made["argv"][3:7] == [
        "--log_dir=./log/",
        "--master=10.127.6.17:17000",
        "--nnodes=2",
        "--gpus",
    ]
    assert [node["env"]["PADDLE_RANK"] for node in made["nodes"]] == ["0", "1"] and not any(
        node.get("argv") for node in made["nodes"]
    )
    assert made["env"]["PORT_RANGE"] == "17001:17064" and made["endpoints"][8] == "10.127.5.142:*"
    alone = compiled(count=1, job={"launcher": "paddle", "rendezvous": "master"})
    assert "PORT_RANGE" not in alone["env"] and not any(
        "--master" in word for word in alone["argv"]
    )


@pytest.mark.parametrize("count", [1, 2, 4])
def test_msrun_names_every_nodes_rank(count):
    made = mindocr("msrun", count)
    for rank, node in enumerate(made["nodes"]):
        argv = node.get("argv") or made["argv"]
        assert argv[:7] == [
            "msrun", "--worker_num=%d" % (8 * count), "--local_worker_num=8",
            "--master_addr=10.127.6.17", "--master_port=17000",
            "--node_rank=%d" % rank, "--log_dir=./log",
        ]  # fmt: skip
        assert argv[7] == "--join=True" and argv[9] == "tools/train.py"
    assert (
        made["ranks"][-1]["log"] == "log/worker_%d.log" % (8 * count - 1)
        and made["scheduler"] is None
    )


def test_mpirun_as_the_document_and_on_many_machines():
    """Contract D3. On many machines, the hostfile and the variables by name are added."""
    one, many = mindocr("mpirun", 1, user="root"), mindocr("mpirun", 2, user="root")
    assert one["argv"] == shlex.split(
        D3 + " python tools/train.py --config configs/x.yaml -o system.distribute=true"
    )
    assert (
        many["files"] == {"hostfile": "10.127.6.17 slots=8\n10.127.5.142 slots=8\n"}
        and many["launcher"]["kind"] == "first"
    )
    forwarded = [many["argv"][at + 1] for at, word in enumerate(many["argv"]) if word == "-x"]
    assert forwarded == sorted(
        name for name in many["env"] if not name.startswith("OMPI_MCA_")
    ) and not {
        "PATH",
        "HOME",
        "GLOO_SOCKET_IFNAME",
    } & set(forwarded)
    assert "--allow-run-as-root" not in mindocr("mpirun", 2)["argv"]
    assert many["ranks"][8]["log"] == "log/rank_8.log" and many["ranks"][8]["node"] == "node2"


def test_open_mpi_is_given_one_network_for_all():
    assert mindocr("mpirun", 2)["env"]["OMPI_MCA_btl_tcp_if_include"] == "eth0"
    arguments = gang(
        count=2, job={"suite": "mindocr", "launcher": "mpirun", "config": "c.yaml", "arguments": []}
    )
    arguments["inputs"].update(MINDOCR)
    arguments["facts"]["node2"]["addresses"][1]["interface"] = "ib0"
    network = ipaddress.ip_network(compile_plan(**arguments)["env"]["OMPI_MCA_oob_tcp_if_include"])
    assert (
        all(ipaddress.ip_address(address) in network for address in ADDRESSES[:2])
        and network.prefixlen < 32
    )


def test_mindspores_own_cluster_under_mpirun_on_cpu():
    """MindSpore's CPU build takes no part in MPI (docs/facts.md)."""
    made = mindocr("mpirun", 2, accelerator="cpu")
    assert made["ranks"][9]["env"] == {
        "MS_ROLE": "MS_WORKER", "MS_WORKER_NUM": "16", "MS_SCHED_HOST": "10.127.6.17",
        "MS_SCHED_PORT": "17000", "MS_NODE_ID": "9",
    }  # fmt: skip
    assert (
        made["scheduler"]["node"] == "node1"
        and made["scheduler"]["env"]["MS_ROLE"] == "MS_SCHED"
        and "MS_NODE_ID" not in made["scheduler"]["env"]
    )
    assert (
        mindocr("mpirun", 2)["scheduler"] is None and mindocr("mpirun", 2)["ranks"][9]["env"] == {}
    )


def test_every_rank_is_told_of_the_rank_table():
    """Contract D4-D7."""
    made = mindocr("rank_table", 2)
    table = json.loads(made["files"]["hccl_2s_16p.json"])
    assert (
        made["argv"]
        == shlex.split("python -u tools/train.py --config configs/x.yaml -o system.distribute=true")
        and made["launcher"]["kind"] == "ranks"
    )
    for rank in made["ranks"]:
        assert (
            rank["env"]["RANK_ID"] == str(rank["rank"])
            and rank["env"]["DEVICE_ID"] == rank["device"]
        )
        assert (
            rank["env"]["RANK_TABLE_FILE"] == "./hccl_2s_16p.json"
            and rank["env"]["RANK_SIZE"] == "16"
        )
    assert table["server_list"][1]["device"][0] == {
        "device_id": "0",
        "device_ip": "192.168.100.11",
        "rank_id": "8",
    }
    assert made["notes"] and len({rank["log"] for rank in made["ranks"]}) == 16


def test_no_rank_table_without_the_devices_addresses():
    reason = "hccn_tool is not there; install the driver"
    with pytest.raises(PlanError) as error:
        mindocr("rank_table", 2, device_problems=[reason])
    assert error.value.problems[0] == f"node1: {reason}"
    with pytest.raises(PlanError) as error:
        mindocr("rank_table", 2, device_ips={})
    assert len(error.value.problems) >= 2 and "node1" in error.value.problems[0]
