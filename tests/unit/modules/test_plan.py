# SPDX-License-Identifier: Apache-2.0
"""The plan: pure, deterministic, complete, and refused where no start could survive; then the
module around it.
"""

from __future__ import annotations

import hashlib
import json
import re
import time

import pytest
import yaml
from ansible_collections.trainyard.cluster.plugins.module_utils.base.findings import finding, stops
from ansible_collections.trainyard.cluster.plugins.module_utils.environments import (
    python_env,
)
from ansible_collections.trainyard.cluster.plugins.module_utils.mesh.primitives import (
    inventory_digest,
)
from ansible_collections.trainyard.cluster.plugins.module_utils.plan import compiler as core
from ansible_collections.trainyard.cluster.plugins.plugin_utils.plan import readiness, render
from ansible_collections.trainyard.cluster.plugins.plugin_utils.preflight import checks, proof_cache
from core_support import ADDRESSES, CODE, DATA, ENVIRONMENT, ROOT, compiled, gang, job_of
from unit.modules.test_checkpoint_fetch import POINT


def refused(**arguments):
    """Return the problems of a gang that cannot be planned."""
    with pytest.raises(core.PlanError) as error:
        core.compile_plan(**arguments)
    return error.value.problems


def backwards(value):
    """Return value with every mapping's order reversed."""
    if isinstance(value, dict):
        return {key: backwards(value[key]) for key in reversed(list(value))}
    return [backwards(item) for item in value] if isinstance(value, list) else value


# --- shape


@pytest.mark.parametrize("count, devices", [(1, 8), (2, 8), (4, 8), (2, 1)])
def test_ranks_follow_the_inventory(count, devices):
    made = compiled(count=count, devices=devices)
    assert [rank["rank"] for rank in made["ranks"]] == list(range(count * devices))
    assert made["ranks"][0] == {
        "rank": 0,
        "node": "node1",
        "local_rank": 0,
        "device": "0",
        "log": "log/workerlog.0",
        "env": {},
        "endpoint": ADDRESSES[0] + ":17000",
    }
    last = {
        "rank": count * devices - 1,
        "node": "node%d" % count,
        "local_rank": devices - 1,
        "device": str(devices - 1),
    }
    assert made["ranks"][-1] == dict(
        last,
        env={},
        log="log/workerlog.%d" % (devices - 1),
        endpoint="%s:%d" % (ADDRESSES[count - 1], 17000 + devices - 1),
    )
    assert made["endpoints"] == [rank["endpoint"] for rank in made["ranks"]]
    assert ("--ips={}".format(",".join(ADDRESSES[:count])) in made["argv"]) == (count > 1)


def test_the_first_listed_machine_is_trainer_0():
    arguments = gang(count=2)
    arguments["nodes"].reverse()
    made = core.compile_plan(**arguments)
    assert [node["name"] for node in made["nodes"]] == ["node2", "node1"]
    assert (
        made["ranks"][0]["endpoint"] == ADDRESSES[1] + ":17000"
        and f"--ips={ADDRESSES[1]},{ADDRESSES[0]}" in made["argv"]
    )


def test_device_ids_are_not_rank_numbers():
    arguments = gang(count=1)
    arguments["nodes"][0]["devices"] = ["4", "6"]
    made = core.compile_plan(**arguments)
    assert [(rank["rank"], rank["local_rank"], rank["device"]) for rank in made["ranks"]] == [
        (0, 0, "4"),
        (1, 1, "6"),
    ]
    assert made["argv"][made["argv"].index("--selected_gpu") + 1] == "4,6"


def test_one_start_port_for_every_reader():
    """Contract B5, C4; the present launcher reads one of the two names and the legacy one the other
    (fact 1).
    """
    assert {compiled()["env"][name] for name in ("FLAGS_START_PORT", "PADDLE_START_PORT")} == {
        "17000"
    }
    made = compiled(job={"start_port": 18000})
    assert made["env"]["FLAGS_START_PORT"] == made["env"]["PADDLE_START_PORT"] == "18000" and made[
        "endpoints"
    ][0].endswith(":18000")


def test_a_nodes_environment():
    arguments = gang(count=2)
    arguments["facts"]["node2"].update(
        home="/data/home/ops", base="/data/home/ops/.trainyard", user="ops", cores=16
    )
    one, two = (node["env"] for node in core.compile_plan(**arguments)["nodes"])
    assert two == {
        "HOME": "/data/home/ops",
        "USER": "ops",
        "LOGNAME": "ops",
        "POD_IP": ADDRESSES[1],
        "GLOO_SOCKET_IFNAME": "eth0",
        "NCCL_SOCKET_IFNAME": "eth0",
        "OMP_NUM_THREADS": "2",
        "PATH": (
            f"/data/home/ops/.trainyard/env/{ENVIRONMENT[:16]}/bin:/usr/local/bin:/usr/bin:/bin"
        ),
    }
    assert one["OMP_NUM_THREADS"] == "8" and one["POD_IP"] == ADDRESSES[0]


@pytest.mark.parametrize(
    "quota, threads", [(None, "8"), (16.0, "2"), (12.5, "1"), (0.4, "1"), (128.0, "8")]
)
def test_threads_keep_within_a_quota_of_processors(quota, threads):
    arguments = gang(count=2)
    arguments["facts"]["node1"]["machines"] = {"unit": {"cores": quota}}
    node = core.compile_plan(**arguments)["nodes"][0]
    assert node["env"]["OMP_NUM_THREADS"] == threads


def test_a_value_given_for_all_nodes_beats_a_reckoned_one():
    arguments = gang(count=2, job={"env": {"OMP_NUM_THREADS": 3}})
    arguments["site"]["env"] = {"NCCL_SOCKET_IFNAME": "bond0", "HTTPS_PROXY": "http://proxy:3128"}
    made = core.compile_plan(**arguments)
    assert {
        name: made["env"][name] for name in ("OMP_NUM_THREADS", "NCCL_SOCKET_IFNAME", "HTTPS_PROXY")
    } == {
        "OMP_NUM_THREADS": "3",
        "NCCL_SOCKET_IFNAME": "bond0",
        "HTTPS_PROXY": "http://proxy:3128",
    }
    assert not {"OMP_NUM_THREADS", "NCCL_SOCKET_IFNAME"} & set(made["nodes"][0]["env"])
    assert made["nodes"][0]["env"]["GLOO_SOCKET_IFNAME"] == "eth0"


def test_a_python_of_the_users_own_is_used_as_it_is():
    made = compiled(environment={"python": "/opt/conda/envs/det/bin/python", "digest": None})
    assert made["nodes"][0]["env"]["PATH"].startswith("/opt/conda/envs/det/bin:")


def test_overrides_and_weights():
    arguments = gang(
        count=2,
        overrides={"worker_num": 2, "use_gpu": False},
        weights={
            "pretrain_weights": {
                "digest": "a" * 64,
                "file": "m.pdparams",
                "url": "https://host/m.pdparams",
            }
        },
    )
    made = core.compile_plan(**arguments)
    at = made["argv"].index("-o")
    assert made["argv"][at:] == [
        "-o",
        "worker_num=2",
        "use_gpu=false",
        "pretrain_weights=weights/%s/m.pdparams" % ("a" * 16),
    ]
    assert made["argv"][at - 1] == "--eval"
    assert made["links"] == {
        "dataset/coco": "data/" + DATA[:16],
        "weights/" + "a" * 16: "weights/" + "a" * 16,
    }
    assert readiness.required_trees(made) == {
        "code": [CODE],
        "data": [DATA],
        "weights": ["a" * 64],
        "checkpoints": [],
    }


@pytest.mark.parametrize(
    "save, more",
    [
        (None, {}),
        ("output/rec/x", {}),
        ("./tmp_rec", {"tmp_rec": "tmp_rec"}),
        ("tools/out", {"tools/out": "tools/out"}),
    ],
)
def test_where_the_config_saves_is_led_into_the_attempt_and_hides_no_code(save, more):
    suite = {"redirects": {"log": "log", "output": "output"}}
    assert core.redirects(suite, {"save": save}) == dict(suite["redirects"], **more)


def test_the_checkpoints_folder_is_named_after_the_config():
    assert compiled()["suite"]["checkpoints"]["folders"] == [
        "output/ppyoloe_crn_s_300e_coco",
        "output",
    ]


# --- one digest


def test_equal_inputs_give_equal_bytes_in_any_order():
    arguments = gang(count=4, job={"env": {"A": "1", "B": "2"}})
    made = core.compile_plan(**arguments)
    assert core.canonical_bytes(made) == core.canonical_bytes(
        core.compile_plan(**backwards(arguments))
    )
    assert (
        core.sha256(made)
        == hashlib.sha256(core.canonical_bytes(json.loads(core.canonical_bytes(made)))).hexdigest()
    )
    assert b"\n" not in core.canonical_bytes(made)


def change(path, value):
    """Return a function that sets one value deep inside the arguments."""

    def apply(arguments):
        for key in path[:-1]:
            arguments = arguments[key]
        arguments[path[-1]] = value

    return apply


@pytest.mark.parametrize(
    "path, value",
    [
        (("inputs", "arguments"), []),
        (("job", "config"), "configs/ppyoloe/ppyoloe_crn_m_300e_coco.yml"),
        (("job", "launcher"), "paddle"),
        (("job", "env"), {"A": 1}),
        (("job", "start_port"), 17001),
        (("site", "start_port"), 17002),
        (("site", "env"), {"NCCL_DEBUG": "INFO"}),
        (("nodes", 0, "devices"), list("01234568")),
        (("nodes", 0, "address"), "127.0.0.0/8"),
        (("facts", "node1", "home"), "/root"),
        (("facts", "node1", "base"), "/x"),
        (("facts", "node1", "user"), "me"),
        (("facts", "node1", "cores"), 8),
        (("inputs", "script"), "train.py"),
        (("inputs", "code", "digest"), "1" * 64),
        (("inputs", "data", "coco"), "2" * 64),
        (("inputs", "environment", "digest"), "3" * 64),
        (("inputs", "config", "epochs"), 3),
        (("inputs", "overrides"), {"epoch": 1}),
        (("inputs", "suite", "redirects", "log"), "elsewhere"),
    ],
    ids=lambda value: ".".join(map(str, value)) if isinstance(value, tuple) else "",
)
def test_whatever_changes_the_run_changes_the_digest(path, value):
    # one node, so that a loopback address is not refused
    before, after = gang(count=1), gang(count=1)
    change(path, value)(after)
    assert core.sha256(core.compile_plan(**before)) != core.sha256(core.compile_plan(**after))


@pytest.mark.parametrize(
    "field, value",
    [
        ("time", 9.0),
        ("hostname", "other"),
        ("missing", ["rsync"]),
        ("units", [{"unit": "u", "state": "active", "description": "d"}]),
        ("environments", {}),
        ("mesh", None),
        ("trees", {}),
    ],
)
def test_what_a_node_lacks_now_is_no_part_of_the_plan(field, value):
    before, after = gang(count=2), gang(count=2)
    after["facts"]["node2"][field] = value
    assert core.sha256(core.compile_plan(**before)) == core.sha256(core.compile_plan(**after))


# --- where a node is

TWO_CARDS = [
    {"interface": "lo", "address": "127.0.0.1"},
    {"interface": "eth0", "address": "192.0.2.5"},
    {"interface": "ib0", "address": "10.0.0.5"},
]


@pytest.mark.parametrize(
    "host, wanted, route, found",
    [
        ("192.0.2.5", None, "10.0.0.5", ("192.0.2.5", "eth0")),
        ("gpu5.example", None, "10.0.0.5", ("10.0.0.5", "ib0")),
        ("192.0.2.5", "10.0.0.0/24", "192.0.2.5", ("10.0.0.5", "ib0")),
        ("192.0.2.5", "10.0.0.5", "192.0.2.5", ("10.0.0.5", "ib0")),
        ("192.0.2.5", "10.0.0.77/24", None, ("10.0.0.5", "ib0")),
    ],
)
def test_the_address_is_the_sites_then_the_hosts_then_the_routes(host, wanted, route, found):
    facts = {"addresses": TWO_CARDS, "route_source": route}
    assert core.pick_address({"name": "n", "host": host, "address": wanted}, facts) == found + (
        None,
    )


@pytest.mark.parametrize(
    "host, wanted, route, words",
    [
        (
            "192.0.2.5",
            "172.16.0.0/12",
            "192.0.2.5",
            (
                "n has no address in 172.16.0.0/12 (trainyard_address); it has 127.0.0.1,"
                " 192.0.2.5, 10.0.0.5"
            ),
        ),
        ("gpu5.example", None, None, "n: no address of its own is ansible_host (gpu5.example)"),
        (
            "gpu5.example",
            None,
            "127.0.0.1",
            "192.0.2.5 on eth0, 10.0.0.5 on ib0",
        ),  # a route over loopback leads nowhere
    ],
)
def test_a_node_without_a_usable_address(host, wanted, route, words):
    facts = {"addresses": TWO_CARDS, "route_source": route}
    address, interface, problem = core.pick_address(
        {"name": "n", "host": host, "address": wanted}, facts
    )
    assert (address, interface) == (None, None) and words in problem


def test_a_single_node_needs_no_peer_to_know_its_address():
    """With one node there is no route to a peer, and its inventory name may be a DNS name (contract
    A7).
    """
    arguments = gang(count=1)
    arguments["nodes"][0]["host"] = "gpu1.example"
    arguments["facts"]["node1"]["route_source"] = None
    assert core.compile_plan(**arguments)["nodes"][0]["address"] == ADDRESSES[0]
    arguments["facts"]["node1"]["addresses"] = arguments["facts"]["node1"]["addresses"][:1]
    assert core.compile_plan(**arguments)["nodes"][0]["address"] == "127.0.0.1"


# --- what no start could survive


def two(**facts):
    """Return the arguments of two nodes, the second with other facts."""
    arguments = gang(count=2, **facts.pop("gang", {}))
    arguments["facts"]["node2"].update(facts)
    return arguments


@pytest.mark.parametrize(
    "arguments, words",
    [
        (
            two(
                gang={"job": {"launcher": "paddle"}},
                addresses=[{"interface": "eth0", "address": ADDRESSES[0]}],
                route_source=ADDRESSES[0],
            ),
            "node1 and node2 have the same fabric address",
        ),
        (two(python_version="3.8"), "nodes have different Python versions: node1 3.11, node2 3.8"),
        (two(machine="aarch64"), "nodes have different processor architectures"),
        (two(gang={"job": {"start_port": 65530}}), "start port 65530 leaves no room for 8 ranks"),
        (
            two(gang={"job": {"launcher": "paddle", "rendezvous": "master", "start_port": 65500}}),
            "start port 65500 leaves no room for the 64 ports above it",
        ),
        (
            two(resolves_to=["127.0.1.1"]),
            (
                f"node2: its host name resolves to 127.0.1.1, not to {ADDRESSES[1]}; fleetrun"
                " --selected_gpu"
            ),
        ),
        (two(resolves_to=None), "node2: its host name resolves to nothing"),
    ],
)
def test_refused(arguments, words):
    problems = refused(**arguments)
    assert len(problems) == 1 and words in problems[0]


def test_loopback_is_refused_for_several_nodes_only():
    arguments = gang(count=2, job={"launcher": "paddle"})
    arguments["nodes"][1]["address"] = "127.0.0.0/8"
    (problem,) = refused(**arguments)
    assert problem.startswith("node2: 127.0.0.1 ") and "loopback" in problem
    assert problem.endswith(" trainyard_address")


def test_every_problem_at_once():
    arguments = gang(count=2)
    arguments["nodes"][0]["address"] = arguments["nodes"][1]["address"] = "172.16.0.0/12"
    arguments["facts"]["node2"]["machine"] = "aarch64"
    assert len(refused(**arguments)) == 3


@pytest.mark.parametrize(
    "launcher, accelerator, count",
    [("paddle", "gpu", 2), ("fleetrun", "cpu", 2), ("fleetrun", "gpu", 1)],
)
def test_who_does_not_ask_for_the_host_name_may_have_any(launcher, accelerator, count):
    arguments = gang(count=count, accelerator=accelerator, job={"launcher": launcher})
    arguments["facts"]["node1"]["resolves_to"] = ["127.0.1.1"]
    assert core.compile_plan(**arguments)["launcher"]["name"] == launcher


# --- what is not ready


def wanting(count=2, **facts):
    """Return todo() of a gang whose last node has other facts, with empty entries left out."""
    arguments = gang(count=count)
    made = core.compile_plan(**arguments)
    arguments["facts"]["node%d" % count].update(facts)
    return {
        kind: names
        for kind, names in readiness.pending_steps(made, arguments["facts"], now=1000.0).items()
        if names
    }


MESH = {
    "present": True,
    "proven": 1.0,
    "valid_until": 10.0**10,
    "nodes": ["node1", "node2"],
    "digest": "m",
}


@pytest.mark.parametrize(
    "facts, expected",
    [
        ({}, {}),
        ({"missing": ["rsync"]}, {"provision": ["node2"]}),
        ({"environments": {"other": "f"}}, {"environment": ["node2"]}),
        ({"mesh": None}, {"trust": ["node1", "node2"]}),
        ({"mesh": dict(MESH, present=False)}, {"trust": ["node1", "node2"]}),
        ({"mesh": dict(MESH, proven=None)}, {"trust": ["node1", "node2"]}),
        ({"mesh": dict(MESH, valid_until=1000.0 + 8 * 3600 - 1)}, {"trust": ["node1", "node2"]}),
        ({"mesh": dict(MESH, valid_until=1000.0 + 8 * 3600 + 1)}, {}),
        ({"mesh": dict(MESH, nodes=["node2", "node3"])}, {"trust": ["node1", "node2"]}),
        ({"mesh": dict(MESH, digest="other")}, {"trust": ["node1", "node2"]}),
        ({"trees": {}}, {"code": ["node2"], "data": ["node2"], "trees": ["node2"]}),
        (
            {"trees": {"code/" + CODE[:16]: {"ok": True}, "data/" + DATA[:16]: {"ok": False}}},
            {"data": ["node2"], "trees": ["node2"]},
        ),
    ],
)
def test_todo_names_the_nodes_that_lack_something(facts, expected):
    assert wanting(**facts) == expected


def test_a_mesh_for_other_addresses_is_made_again():
    arguments = gang(count=2)
    site = [dict(node) for node in arguments["nodes"]]
    mesh = dict(
        MESH,
        inventory=inventory_digest([(n["name"], n["host"], n["port"], n["address"]) for n in site]),
    )
    for fact in arguments["facts"].values():
        fact["mesh"] = mesh
    made = core.compile_plan(**arguments)
    assert readiness.pending_steps(made, arguments["facts"], 1000.0, site)["trust"] == []
    site[1]["host"] = "10.9.9.9"
    assert readiness.pending_steps(made, arguments["facts"], 1000.0, site)["trust"] == [
        "node1",
        "node2",
    ]


def test_the_margin_of_a_certificate_is_the_roles():
    role = yaml.safe_load((ROOT / "roles/ssh_trust/defaults/main.yml").read_text())
    assert role["ssh_trust_renew_before"] == "+%dh" % (readiness.CERTIFICATE_MARGIN / 3600)


def test_a_single_node_needs_no_mesh():
    assert wanting(count=1, mesh=None) == {}


def test_a_python_of_the_users_own_is_never_provided():
    arguments = gang(count=1, environment={"python": "/opt/py/bin/python", "digest": None})
    arguments["facts"]["node1"]["environments"] = {}
    assert not any(
        readiness.pending_steps(core.compile_plan(**arguments), arguments["facts"], 0.0).values()
    )


def test_a_tree_that_differs_is_named_with_its_files():
    arguments = gang(count=2)
    arguments["facts"]["node2"]["trees"]["data/" + DATA[:16]] = {
        "ok": False,
        "present": True,
        "differences": ["a.jpg: missing", "b.jpg: extra file"],
    }
    arguments["facts"]["node1"]["trees"]["data/" + DATA[:16]] = {
        "ok": False,
        "present": False,
        "differences": [],
    }  # not there is not differing
    (found,) = readiness.differing_trees(core.compile_plan(**arguments), arguments["facts"])
    assert (found.code, found.node) == ("ready.tree_differs", "node2")
    assert f"data/{DATA[:16]} " in found.text
    differences = arguments["facts"]["node2"]["trees"]["data/" + DATA[:16]]["differences"]
    assert found.text.endswith("; ".join(differences))


HELD = [{"unit": "u", "state": "active", "description": "Trainyard run X"}]


@pytest.mark.parametrize(
    "facts, expected",
    [
        ({}, None),
        (
            {"missing": ["rsync", "lingering for me"]},
            ("ready.not_provisioned", "rsync, lingering for me", "playbooks/provision.yml"),
        ),
        ({"units": HELD}, ("ready.node_held", "Trainyard run X (active)", "playbooks/stop.yml")),
    ],
)
def test_what_only_a_person_can_clear(facts, expected):
    arguments = two(**facts)
    found = readiness.obstacles(core.compile_plan(**arguments), arguments["facts"])
    assert len(found) == bool(expected)
    if expected:
        code, subject, verb = expected
        assert (found[0].code, found[0].node) == (code, "node2")
        assert subject in found[0].text and verb in found[0].remedy
        assert str(found[0]) == f"node2 {found[0].text}; {found[0].remedy}"


@pytest.mark.parametrize("repair", [False, True])
def test_a_changed_tree_is_in_the_way_unless_it_is_going_to_be_replaced(repair):
    arguments = gang(count=2)
    arguments["facts"]["node2"]["trees"]["data/" + DATA[:16]] = {
        "ok": False,
        "present": True,
        "differences": ["a.jpg: missing"],
    }
    lines = readiness.obstacles(core.compile_plan(**arguments), arguments["facts"], repair)
    assert [item.code for item in lines] == ["ready.tree_differs"] * (not repair)
    for item in lines:
        assert item.text.endswith("a.jpg: missing") and "playbooks/sync.yml" in item.remedy


def test_the_summary_shows_command_ranks_and_what_comes_before():
    arguments = gang(count=2)
    made = core.compile_plan(**arguments)
    arguments["facts"]["node2"]["missing"] = ["rsync"]
    text = "\n".join(render.summary(made, readiness.pending_steps(made, arguments["facts"], 0.0)))
    for words in (
        core.sha256(made)[:12],
        "  " + " ".join(made["argv"]),
        "  FLAGS_START_PORT=17000",
        "node2: rank 8,9,10,11,12,13,14,15",
        "ports 17000-17007",
        "link dataset/coco -> data/",
        "  the nodes other than node1 wait 1.5 s before they begin",
        "before the start: provision on node2",
    ):
        assert words in text


def test_a_variable_of_all_nodes_is_shown_once_and_a_command_is_one_line():
    made = core.compile_plan(**gang(count=2))
    made["nodes"][0]["env"].update(SAME="x", OWN="1")
    made["nodes"][1]["env"].update(SAME="x")
    made["env"]["OWN"] = "0"
    made["nodes"][0]["argv"] = ["run", "a b"]
    lines = render.summary(made, dict.fromkeys(render.PREPARATIONS, []))
    first, second = (lines.index(line) for line in lines if line.startswith(("node1: ", "node2: ")))
    assert lines.count("  SAME=x") == 1 and lines.index("  SAME=x") < first
    assert "  OWN=1" in lines[first:second]
    assert lines[lines.index("  on node1:") + 1] == "    run 'a b'"


# --- the module


def module_arguments(**changes):
    """Return the module's arguments for two ready nodes; the environment's digest is what the
    module reckons.
    """
    arguments = gang(count=2)
    wanted = {"package": "paddlepaddle-gpu", "version": "2.6.2", "requirements": []}
    digest = python_env.environment_digest(wanted, [], "3.11", "x86_64")
    for fact in arguments["facts"].values():
        fact["environments"] = {digest: "f"}
        inventory = inventory_digest(
            [("node%d" % (n + 1), ADDRESSES[n], 22, None) for n in range(2)]
        )
        fact["mesh"] = dict(fact["mesh"], nodes=["node1", "node2"], inventory=inventory)
    arguments["inputs"]["overrides"] = {"use_gpu": True}
    inputs = {
        key: arguments["inputs"][key]
        for key in (
            "script",
            "code",
            "data",
            "weights",
            "config",
            "overrides",
            "arguments",
            "advice",
        )
    }
    return dict(
        {
            "job": arguments["job"],
            "site": arguments["site"],
            "nodes": arguments["nodes"],
            "facts": arguments["facts"],
            "inputs": inputs,
            "suite": arguments["inputs"]["suite"],
            "source": {"environment": wanted},
            "project": str(ROOT),
            "runs_dir": str(ROOT / "no_runs"),
        },
        **changes,
    )


def test_checkpoint_every_is_counted_by_the_pace_of_an_earlier_run(run_action, tmp_path):
    arguments = module_arguments(job=job_of(checkpoint_every="10m"), runs_dir=str(tmp_path))
    unknown = run_action("plan", arguments, check=True)
    assert "job.interval_not_set" in [item["code"] for item in unknown["findings"]]
    assert not any("snapshot_epoch" in word for word in unknown["plan"]["argv"])

    run = tmp_path / "20261127-151304-{}-535c".format(arguments["job"]["name"])
    run.mkdir()
    (run / "plan.json").write_text(unknown["text"])
    pace = {"steps": 100, "seconds": 200.0, "epoch_steps": 30, "saves": 2, "pause_seconds": 10.0}
    (run / "pace.json").write_text(json.dumps(pace))
    known = run_action("plan", arguments, check=True)
    assert "snapshot_epoch=10" in known["plan"]["argv"]
    assert "job.interval_not_set" not in [item["code"] for item in known["findings"]]
    assert sum("checkpoint" in line for line in known["remarks"]) == 3, known["remarks"]
    assert json.loads(known["text"]) == known["plan"]
    # without the key the plan stays as it is, and its cost is said where the interval is known
    arguments = module_arguments(runs_dir=str(tmp_path))
    arguments["inputs"]["config"]["save_interval"] = 5
    plain = run_action("plan", arguments, check=True)
    assert plain["text"] == unknown["text"]
    assert sum(line.startswith("checkpoints: ") for line in plain["remarks"]) == 2


def test_module_gives_the_bytes_and_their_digest(run_action):
    result = run_action("plan", module_arguments(), check=True)
    assert result["changed"] is False and json.loads(result["text"]) == result["plan"]
    assert (
        hashlib.sha256(result["text"].encode("ascii")).hexdigest() == result["sha256"]
        and result["sha256"][:12] in result["summary"][0]
    )
    # whatever is to be proven
    assert any("start: nothing" in line for line in result["summary"])
    unready = {
        kind: names
        for kind, names in result["todo"].items()
        if kind not in ("network", "depth", "rehearsal")
    }
    assert not any(unready.values()) and result["plan"]["argv"][-2:] == ["-o", "use_gpu=true"]
    # a start that is refused is not called ready
    arguments = module_arguments()
    arguments["facts"]["node2"]["orphans"] = {"ours": [ORPHAN]}
    result = run_action("plan", arguments, check=True)
    assert stops(result["findings"])
    assert not any("start: nothing" in line for line in result["summary"])


def test_a_resumed_runs_earlier_code_is_shown_and_compared(run_action):
    arguments = module_arguments()
    row = {
        "number": 1,
        "digest": "f" * 64,
        "commit": "c" * 40,
        "dirty": True,
        "diff": "x/code.diff",
    }
    arguments["inputs"]["remarks"] = ["code: left out"]
    plain = run_action("plan", arguments, check=True)
    result = run_action("plan", dict(arguments, attempted=[row]), check=True)
    assert [item["code"] for item in result["findings"] if item["check"] == "code"] == [
        "code.changed"
    ]
    assert len(result["remarks"]) == 2 and "x/code.diff" in result["remarks"][0]
    assert set(result["remarks"]) <= set(result["summary"])
    # it is no part of the plan
    assert result["sha256"] == plain["sha256"] and len(plain["remarks"]) == 1


def test_module_refuses_with_every_reason(run_action):
    arguments = module_arguments()
    arguments["facts"]["node2"].update(machine="aarch64", python_version="3.8")
    result = run_action("plan", arguments)
    assert result["failed"]
    stops = [line.split() for line in result["msg"].splitlines() if " STOP " in line]
    assert [words[:4] for words in stops] == [["STOP", "all", "nodes", "plan.impossible"]] * 2
    assert [words[7] for words in stops] == ["Python", "processor"], result["msg"]
    assert stops[0][-4:] == ["node1", "3.11,", "node2", "3.8"]


@pytest.mark.parametrize("repair", [False, True])
def test_module_stops_at_a_tree_that_differs_unless_told_to_repair(run_action, repair):
    arguments = module_arguments(repair=repair)
    arguments["facts"]["node2"]["trees"]["code/" + CODE[:16]] = {
        "ok": False,
        "present": True,
        "differences": ["tools/train.py: 3 bytes instead of 4"],
    }
    result = run_action("plan", arguments)
    if repair:
        assert result["todo"]["code"] == ["node2"]
    else:
        assert result["failed"]
        (words,) = [line.split() for line in result["msg"].splitlines() if " STOP " in line]
        assert words[:4] == ["STOP", "node2", "ready.tree_differs", f"code/{CODE[:16]}"]
        assert "tools/train.py: 3 bytes" in result["msg"]


ORPHAN = {"run": "r", "pid": 7, "attempt": 1, "rss_mib": 9, "command": "python", "age_s": 5}
TAKEN = {
    "port": 17000,
    "error": "EADDRINUSE",
    "uid": 1,
    "user": "ann",
    "pid": 7,
    "command": "x",
    "run": None,
    "waits": False,
}
STARTS = [
    {"orphans": {"ours": [ORPHAN]}},
    {"ports": {"asked": [17000], "taken": [TAKEN], "used": [], "ephemeral": [], "reserved": []}},
]


@pytest.mark.parametrize("repair", [False, True])
@pytest.mark.parametrize(
    "facts, brings",
    [
        *((facts, True) for facts in STARTS),
        ({"units": HELD}, False),
        ({"missing": ["rsync"]}, False),
    ],
)
def test_what_keeps_only_a_start_keeps_nothing_from_being_brought(
    run_action, facts, brings, repair
):
    arguments = module_arguments(repair=repair)
    arguments["facts"]["node1"].update(facts)
    result = run_action("plan", arguments)
    assert bool(result.get("failed")) != (repair and brings), result
    assert not (repair and brings) or [item["level"] for item in result["findings"]] == ["warn"]


def test_what_keeps_from_bringing():
    starts = (
        "port",
        "devices",
        "orphans",
        "shm",
        "memory",
        "cores",
        "limits",
        "unit",
        "clock",
        "name",
        "interface",
        "ecc",
        "driver",
    )
    found = checks.demote_for_sync(
        [
            finding(f"{name}.x", "x")
            for name in ("reach", "plan", "machine", "placement", "disk", "environment", *starts)
        ]
    )
    assert [item["check"] for item in stops(found)] == [
        "reach",
        "plan",
        "machine",
        "placement",
        "disk",
        "environment",
    ]
    assert checks.demote_for_sync([finding("port.taken", "x", level="note")])[0]["level"] == "note"


def test_code_that_no_node_has_told_of_gives_no_plan_and_hides_nothing(run_action):
    arguments = module_arguments(
        inputs={"unread": "Connection refused", "trees": [], "placed": []}, report=True
    )
    arguments["facts"]["node2"]["orphans"] = {"ours": [ORPHAN]}
    found = run_action("plan", arguments)
    assert "plan" not in found and [
        (item["check"], item["nodes"]) for item in found["findings"]
    ] == [("orphans", ["node2"]), ("plan", [])]
    impossible = found["findings"][1]
    assert impossible["code"] == "plan.impossible" and impossible["text"].startswith("node1 ")
    assert impossible["text"].endswith(": Connection refused") and "code" in impossible["text"]
    silent = run_action(
        "plan", dict(arguments, silent={"node1": "Connection refused"})
    )  # it is said once
    assert [item["check"] for item in silent["findings"]] == ["reach", "orphans"]


@pytest.mark.parametrize(
    "facts, code, words",
    [
        ({"units": HELD}, "ready.node_held", "is held"),
        ({"missing": ["rsync"]}, "ready.not_provisioned", "lacks rsync"),
    ],
)
def test_module_stops_at_an_obstacle_and_only_shows_it_in_check_mode(
    run_action, facts, code, words
):
    arguments = module_arguments()
    arguments["facts"]["node2"].update(facts)
    result = run_action("plan", arguments)
    first, second = result["msg"].splitlines()[:2]
    assert result["failed"] and first == "nothing was started:"
    assert second.split()[:5] == ["STOP", "node2", code, *words.split()]
    assert result["stops"] == [{"check": "ready", "nodes": ["node2"]}]
    shown = run_action("plan", arguments, check=True)
    assert not shown.get("failed") and any(
        line.split()[:3] == ["STOP", "node2", code] for line in shown["lines"]
    )


def test_module_says_all_at_once_and_only_reports_where_it_is_asked(run_action):
    """A silent node, with what is wrong with the one that answered; without every node's facts
    there is no plan.
    """
    arguments = module_arguments(report=True, silent={"node2": "Connection refused\x1b[2J"})
    del arguments["facts"]["node2"]
    result = run_action("plan", arguments)
    assert not result.get("failed") and "plan" not in result and result["todo"] == {}
    assert [(item["check"], item["nodes"], item["level"]) for item in result["findings"]] == [
        ("reach", ["node2"], "stop")
    ]
    said = run_action("plan", dict(arguments, report=False))
    assert said["failed"] and "\x1b" not in said["msg"]
    (words,) = [line.split() for line in said["msg"].splitlines() if " STOP " in line]
    assert words[:3] == ["STOP", "node2", "reach.refused"]
    assert ": Connection refused" in said["msg"]
    assert run_action("plan", dict(arguments, report=False), check=True)[
        "failed"
    ]  # --check has no plan to show either


def test_what_a_start_would_bring_is_no_obstacle_and_is_said_by_a_check(run_action):
    arguments = module_arguments(report=True)
    arguments["facts"]["node2"]["trees"] = {}
    found = run_action("plan", arguments)["findings"]
    assert [(item["level"], item["code"]) for item in found] == [
        ("note", "ready.not_there_yet"),
        ("note", "rehearsal.nodes_incomplete"),
    ]
    assert found[0]["nodes"] == ["node2"] and found[0]["text"].endswith(": code, data")
    assert run_action("plan", dict(arguments, report=False))["findings"] == []


def test_an_environment_that_somebody_has_changed_is_not_said_to_be_brought():
    todo = {"environment": ["node1", "node2"], "code": ["node1"]}
    said = checks.describe_todo(
        todo,
        [
            finding("environment.version_changed", "changed", nodes="node1"),
            finding("environment.libc_differs", "x", nodes="node2", level="warn"),
        ],
    )
    assert {item["code"] for item in said} == {"ready.not_there_yet"}
    assert [(item["nodes"], item["text"].split(": ")[1]) for item in said] == [
        (["node2"], "the Python environment"),
        (["node1"], "code"),
    ]


def test_a_single_node_has_no_network_to_prove(run_action):
    arguments = module_arguments()
    arguments.update(nodes=arguments["nodes"][:1], facts={"node1": arguments["facts"]["node1"]})
    todo = run_action("plan", arguments)["todo"]
    assert todo["network"] == [] and todo["rehearsal"] == ["node1"]


@pytest.mark.parametrize("silent", [{}, {"node2": "Connection timed out"}])
@pytest.mark.parametrize("epochs, refused", [(5, True), (6, False)])
def test_with_nothing_left_to_train_no_further_try_is_asked_for(
    run_action, silent, epochs, refused
):
    """A node that boots is waited for, but not to find that out."""
    arguments = module_arguments(silent=silent, resume=POINT)
    arguments["inputs"]["config"] = dict(arguments["inputs"]["config"], epochs=epochs)
    result = run_action("plan", arguments)
    assert bool(result.get("refused")) == refused and bool(result.get("failed")) == (
        refused or bool(silent)
    )
    assert result.get("msg", "").count("last epoch (5 of 5)") == refused
    assert ("4 of attempt 1 " in result.get("msg", "")) == refused


def test_every_node_that_is_silent_is_named(run_action):
    said = run_action(
        "plan", module_arguments(silent={"node%d" % number: "x" * 200 for number in range(40)})
    )["msg"]
    assert all(re.search(r"\bnode%d\b" % number, said) for number in range(40))


def test_the_wire_of_a_training_that_runs_is_left_alone(run_action):
    arguments = module_arguments(report=True)
    arguments["facts"]["node2"]["units"] = HELD
    made = run_action("plan", arguments)
    assert made["todo"]["network"] == [] and any(
        item["check"] == "ready" and "is held" in item["text"] for item in made["findings"]
    )


@pytest.mark.parametrize("kept", [None, "network", "rehearsal"])
def test_what_was_proven_is_not_repeated_for_a_while(run_action, tmp_path, kept):
    arguments = module_arguments(
        state_dir=str(tmp_path), allowed={"proof_hours": {"network": 1, "rehearsal": 2}}
    )
    made = run_action("plan", arguments)
    if kept:
        proof_cache.save_proof(str(tmp_path), kept, proof_cache.proof_keys(made["plan"], arguments["facts"], arguments["allowed"])[kept], time.time() - 3000, {"findings": [
            finding("network.slow", "is slow", level="warn"), finding("network.measured", "10 Gbit/s", level="note")]})  # fmt: skip
        made = run_action("plan", arguments)
        assert [item["text"] for item in made["findings"]] == [
            "is slow"
        ]  # a warning is not forgotten with its repetition
    assert made["todo"]["network"] == ["node1", "node2"] and made["todo"]["depth"] == (
        "quick" if kept == "network" else "full"
    )
    assert made["todo"]["rehearsal"] == ([] if kept == "rehearsal" else ["node1", "node2"])
    assert run_action("plan", dict(arguments, rehearse=False))["todo"]["rehearsal"] == []
    # READY must not hide what was not tried
    noted = [
        item["text"]
        for item in run_action("plan", dict(arguments, report=True))["findings"]
        if item["level"] == "note"
    ]
    assert [text for text in noted if text.endswith(" 50 min ago")] == noted and len(noted) == (
        1 if kept else 0
    )
    asked = run_action("plan", dict(arguments, report=True, rehearse=False))["findings"]
    assert "rehearsal.not_wanted" in [item["code"] for item in asked]


def test_module_names_a_requirement_list_that_is_not_there(run_action):
    arguments = module_arguments()
    arguments["source"]["environment"]["requirements"] = ["none_such.txt"]
    result = run_action("plan", arguments)
    assert result["failed"] and "none_such.txt" in result["msg"]


def test_a_secret_is_not_shown_with_the_plan():
    arguments = gang(count=2)
    arguments["site"]["env"] = {"MY_TOKEN": "abc123secret", "NCCL_DEBUG": "WARN"}
    made = core.compile_plan(**arguments)
    text = "\n".join(render.summary(made, readiness.pending_steps(made, arguments["facts"], 0.0)))
    assert "MY_TOKEN=***" in text and "abc123secret" not in text and "NCCL_DEBUG=WARN" in text
    assert made["env"]["MY_TOKEN"] == "abc123secret"


@pytest.mark.parametrize(
    "words, said",
    [
        (["python", "fleetrun"], None),
        (None, None),
        ([], "ready.python_missing"),
        (["python"], "ready.program_missing"),
    ],
)
def test_a_python_of_the_users_own_that_is_not_there(words, said):
    arguments = gang(count=2, environment={"python": "/opt/conda/bin/python", "digest": None})
    for name, found in (("node1", ["python", "fleetrun"]), ("node2", words)):
        arguments["facts"][name]["python_words"] = found
    found = readiness.obstacles(core.compile_plan(**arguments), arguments["facts"])
    assert [(item.code, item.node) for item in found] == [(said, "node2")] * bool(said)
    assert all("/opt/conda/bin/python" in item.text for item in found)


def test_nodes_of_another_sites_mesh_are_in_the_way():
    arguments = gang(count=2)
    for fact in arguments["facts"].values():
        fact["mesh"] = dict(MESH, site="other")
    made = core.compile_plan(**arguments)
    found = readiness.obstacles(made, arguments["facts"])
    assert [(item.code, item.node) for item in found] == [
        ("ready.other_site", name) for name in ("node1", "node2")
    ]
    assert all("'other'" in item.text and "untrust.yml" in item.remedy for item in found)
