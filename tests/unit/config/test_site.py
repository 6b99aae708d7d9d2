# SPDX-License-Identifier: Apache-2.0
"""A site as the inventory gives it: every problem at once, before a node is contacted."""

from __future__ import annotations

import re

import pytest
from ansible_collections.trainyard.cluster.plugins.plugin_utils.config import site as sites
from ansible_collections.trainyard.cluster.plugins.plugin_utils.config import site_fields
from core_support import ROOT, job_of

SUITES = {
    "paddledetection": {
        "code": {"path": "/src/PaddleDetection"},
        "data": {"coco": {"path": "/data/coco"}},
        "environment": {"package": "paddlepaddle"},
    }
}


def host(number, **changes):
    """Return one host's variables."""
    return dict(
        {
            "ansible_host": "192.0.2.%d" % number,
            "trainyard_accelerator": "gpu",
            "trainyard_devices": 8,
            "trainyard_suites": SUITES,
        },
        **changes,
    )


def read_site(*hosts, **changes):
    """Return (site, problems) of a site; changes are variables of all its hosts."""
    hosts = hosts or (host(1), host(2))
    hostvars = {
        "node%d" % (index + 1): dict(variables, **changes) for index, variables in enumerate(hosts)
    }
    return sites.read_site({"all": list(hostvars), "trainers": list(hostvars)}, hostvars)


def site_of(*hosts, **changes):
    """Return (site, problems as text) of a site; changes are variables of all its hosts."""
    site, problems = read_site(*hosts, **changes)
    return site, [str(problem) for problem in problems]


def test_a_good_site():
    site, problems = site_of(
        host(2, trainyard_address="10.0.0.0/24"),
        host(1, trainyard_devices=[4, 5], ansible_port=2222),
        trainyard_site="lab",
        trainyard_env={"NCCL_DEBUG": "INFO", "OMP_NUM_THREADS": 4, "NCCL_SOCKET_IFNAME": "ib0"},
    )
    assert not problems
    assert site == {
        "name": "lab",
        "suites": SUITES,
        "start_port": 17000,
        "replica_rate": 20 << 20,
        "fault_hours": 8000.0,
        "notify_from_nodes": [],
        "env": {"NCCL_DEBUG": "INFO", "OMP_NUM_THREADS": "4", "NCCL_SOCKET_IFNAME": "ib0"},
        "secret_env": [],
        "spares": [],
        "nodes": [
            {
                "name": "node1",
                "host": "192.0.2.2",
                "port": 22,
                "address": "10.0.0.0/24",
                "accelerator": "gpu",
                "devices": list("01234567"),
            },
            {
                "name": "node2",
                "host": "192.0.2.1",
                "port": 2222,
                "address": None,
                "accelerator": "gpu",
                "devices": ["4", "5"],
            },
        ],
    }


def test_one_machine_may_have_two_ports():
    assert not site_of(host(1, ansible_port=2201), host(1, ansible_port=2202))[1]


def test_two_nodes_may_give_one_network():
    assert not site_of(trainyard_address="10.0.0.0/24")[1]


@pytest.mark.parametrize(
    "groups, words",
    [
        ({}, "groups found: none"),
        ({"all": [], "ungrouped": []}, "groups found: none"),
        ({"all": ["a"], "trainers": []}, "the group 'trainers' is missing or empty"),
        (
            {"all": ["a"], "trainer": ["a"], "web": []},
            "groups found: trainer, web; rename the group 'trainer' to 'trainers'",
        ),
    ],
)
def test_an_empty_or_misspelt_group(groups, words):
    site, problems = sites.read_site(groups, {"a": {}})
    assert (
        site is None
        and len(problems) == 1
        and words in str(problems[0])
        and str(problems[0]).startswith("inventory: ")
    )


@pytest.mark.parametrize(
    "changes, place, words",
    [
        (
            {"trainyard_devcies": 8},
            "inventory, host node2 trainyard_devcies:",
            "unknown site variable; did you mean 'trainyard_devices'?",
        ),
        (
            {"trainyard_accelerator": "cuda"},
            "inventory, host node2 trainyard_accelerator:",
            "must be one of cpu, gpu, ascend; got 'cuda'",
        ),
        (
            {"trainyard_accelerator": "gpus"},
            "inventory, host node2 trainyard_accelerator:",
            "did you mean 'gpu'?",
        ),
        (
            {"trainyard_accelerator": None},
            "inventory, host node2 trainyard_accelerator:",
            "got None",
        ),
        (
            {"trainyard_devices": None},
            "inventory, host node2 trainyard_devices:",
            "must be the number of devices or a list of their ids; got None",
        ),
        ({"trainyard_devices": 0}, "inventory, host node2 trainyard_devices:", "got 0"),
        ({"trainyard_devices": -1}, "inventory, host node2 trainyard_devices:", "got -1"),
        ({"trainyard_devices": True}, "inventory, host node2 trainyard_devices:", "got True"),
        ({"trainyard_devices": "eight"}, "inventory, host node2 trainyard_devices:", "got 'eight'"),
        ({"trainyard_devices": []}, "inventory, host node2 trainyard_devices:", "got []"),
        ({"trainyard_devices": [0, 0]}, "inventory, host node2 trainyard_devices:", "got [0, 0]"),
        ({"trainyard_devices": ["a"]}, "inventory, host node2 trainyard_devices:", "got ['a']"),
        (
            {"trainyard_devices": {"count": 8}},
            "inventory, host node2 trainyard_devices:",
            "got {'count': 8}",
        ),
        (
            {"trainyard_address": "10.0.0"},
            "inventory, host node2 trainyard_address:",
            "must be an IP address or a network such as 10.0.0.0/24; got '10.0.0'",
        ),
        (
            {"trainyard_address": "224.0.0.1"},
            "inventory, host node2 trainyard_address:",
            "must be an address that one machine can have",
        ),
        (
            {"trainyard_address": "224.0.0.0/4"},
            "inventory, host node2 trainyard_address:",
            "must be an address that one machine can have",
        ),
        (
            {"trainyard_address": "255.255.255.255"},
            "inventory, host node2 trainyard_address:",
            "one machine can have",
        ),
        (
            {"trainyard_address": "fe80::1"},
            "inventory, host node2 trainyard_address:",
            "must be an IPv4 address or network, which the plan",
        ),
        (
            {"trainyard_address": "2001:db8::/64"},
            "inventory, host node2 trainyard_address:",
            "got '2001:db8::/64'; ansible_host alone",
        ),
        (
            {"trainyard_address": "fabric2"},
            "inventory, host node2 trainyard_address:",
            "must be an IP address",
        ),
        (
            {"ansible_port": "ssh"},
            "inventory, host node2 ansible_port:",
            "must be a port from 1 to 65535; got 'ssh'",
        ),
        ({"ansible_port": 70000}, "inventory, host node2 ansible_port:", "must be a port"),
        (
            {"ansible_host": "192.0.2.1"},
            "inventory node2:",
            "has the same ansible_host as node1: one machine under two names",
        ),
    ],
)
def test_what_a_host_may_not_say(changes, place, words):
    site, problems = site_of(host(1), host(2, **changes))
    assert len(problems) == 1 and problems[0].startswith(place) and words in problems[0], problems


def test_one_fabric_address_for_two_nodes():
    (problem,) = read_site(trainyard_address="10.0.0.1")[1]
    assert (problem.code, problem.key) == ("site.machine_twice", "node2")
    assert "trainyard_address" in problem.text and "node1" in problem.text


@pytest.mark.parametrize(
    "changes, place, words",
    [
        (
            {"trainyard_suites": ["paddledetection"]},
            "inventory trainyard_suites:",
            "must be a mapping of suite names",
        ),
        (
            {"trainyard_suites": {"paddledetection": {"environment": {}}}},
            "inventory trainyard_suites.paddledetection:",
            "the key 'code' is missing",
        ),
        (
            {
                "trainyard_suites": {
                    "paddledetection": {"code": {"path": "/x"}, "environment": {}, "dat": {}}
                }
            },
            "inventory trainyard_suites.paddledetection.dat:",
            "did you mean 'data'?",
        ),
        (
            {
                "trainyard_suites": {
                    "paddledetection": {"code": {"git": "https://x/y"}, "environment": {}}
                }
            },
            "inventory trainyard_suites.paddledetection.code:",
            "{git: a URL, version:",
        ),
        (
            {
                "trainyard_suites": {
                    "paddledetection": {
                        "code": {"path": "/x", "git": "u", "version": "v"},
                        "environment": {},
                    }
                }
            },
            "inventory trainyard_suites.paddledetection.code:",
            "must be {path: a directory on the controller}, {git: a URL",
        ),
        (
            {
                "trainyard_suites": {
                    "paddledetection": {
                        "code": {"path": "/x"},
                        "environment": {},
                        "data": {"coco": "/data"},
                    }
                }
            },
            "inventory trainyard_suites.paddledetection.data.coco:",
            "must be {path: a directory on the controller} or {path: an absolute path on the nodes",
        ),
        (
            {"trainyard_start_port": "x"},
            "inventory trainyard_start_port:",
            "must be a port from 1024 to 65535; got 'x'",
        ),
        (
            {"trainyard_replica_rate": "20 MB"},
            "inventory trainyard_replica_rate:",
            "must be a whole number of bytes",
        ),
        (
            {"trainyard_replica_rate": 512},
            "inventory trainyard_replica_rate:",
            "must be at least 1 KiB, or 0",
        ),
        (
            {"trainyard_device_hours_per_fault": 0},
            "inventory trainyard_device_hours_per_fault:",
            "must be a number of hours above 0",
        ),
        (
            {"trainyard_device_hours_per_fault": "nan"},
            "inventory trainyard_device_hours_per_fault:",
            "must be a number of hours above 0",
        ),
        (
            {"trainyard_device_hours_per_fault": True},
            "inventory trainyard_device_hours_per_fault:",
            "must be a number of hours above 0",
        ),
        (
            {"trainyard_start_port": 80},
            "inventory trainyard_start_port:",
            "must be a port from 1024 to 65535; got 80",
        ),
        (
            {"trainyard_env": ["A=1"]},
            "inventory trainyard_env:",
            "must be a mapping of environment variables",
        ),
        (
            {"trainyard_env": {"PADDLE_NNODES": 1}},
            "inventory trainyard_env.PADDLE_NNODES:",
            "is reserved: the plan sets it",
        ),
        (
            {"trainyard_env": {"BASH_ENV": "x.sh"}},
            "inventory trainyard_env.BASH_ENV:",
            "is not for a training",
        ),
        (
            {"trainyard_env": {"GIT_SSH_COMMAND": "x"}},
            "inventory trainyard_env.GIT_SSH_COMMAND:",
            "is not for a training",
        ),
        (
            {"trainyard_env": {"LD_PRELOAD": "x.so"}},
            "inventory trainyard_env.LD_PRELOAD:",
            "is not for a training",
        ),
    ],
)
def test_what_a_site_may_not_say(changes, place, words):
    site, problems = site_of(**changes)
    assert len(problems) == 1 and problems[0].startswith(place) and words in problems[0], problems


def test_every_problem_at_once():
    assert (
        len(
            site_of(
                host(1, trainyard_devices=0),
                host(2, trainyard_accelerator="x", trainyard_addres="y"),
                trainyard_env=[1],
            )[1]
        )
        == 4
    )


def test_every_site_variable_of_the_product_is_known():
    """A variable that a role or the sample inventory uses and the list lacks would be refused as
    misspelt.
    """
    used = set()
    for folder in ("roles", "inventory", "playbooks"):
        for path in (ROOT / folder).rglob("*.yml"):
            text = re.sub(r"#.*", "", path.read_text(encoding="utf-8"))
            # what is set or read as a variable; labels, filters and file names have other
            # neighbours
            used |= set(
                re.findall(
                    r"(?m)(?:^|\{\{ ?|\| default\(|\()(trainyard_[a-z_]+)(?=:\s| ?[|}]| is | ~|\))",
                    text,
                )
            )
    assert len(used) > 5 and used - set(sites.SITE_VARIABLES) == set()


# --- what a job takes of it


def chosen(site, **job):
    """Return (the chosen nodes, problems as text) of a job on a site."""
    nodes, problems = sites.select_nodes(job_of(**job), site)
    return nodes, [str(problem) for problem in problems]


def refused(site, **job):
    """Return the problems of a job on a site."""
    return sites.select_nodes(job_of(**job), site)[1]


def three(**changes):
    """Return a good site of three nodes."""
    site, problems = site_of(*[host(n, **changes) for n in (1, 2, 3)])
    assert not problems
    return site


@pytest.mark.parametrize(
    "job, names, devices",
    [
        ({}, ["node1", "node2", "node3"], list("01234567")),
        ({"nodes": 2}, ["node1", "node2"], list("01234567")),
        ({"nodes": 1, "devices": 2}, ["node1"], ["0", "1"]),
        ({"devices": [6, 7]}, ["node1", "node2", "node3"], ["6", "7"]),
    ],
)
def test_the_first_nodes_and_devices_in_rank_order(job, names, devices):
    nodes, problems = chosen(three(), **job)
    assert (
        not problems
        and [node["name"] for node in nodes] == names
        and all(node["devices"] == devices for node in nodes)
    )


@pytest.mark.parametrize(
    "site, job, words",
    [
        (
            {},
            {"nodes": 4},
            [
                "playbooks/configs/ppyoloe.yml:8 nodes: asks for 4 nodes; the site 'site' has 3:"
                " take -e nodes=3, or list more machines in the group trainers"
            ],
        ),
        (
            {},
            {"nodes": 1, "devices": 9},
            [
                "playbooks/configs/ppyoloe.yml:9 devices: asks for 9; node1 declares the devices 0,"
                " 1, 2, 3, 4, 5, 6, 7 (their ids, trainyard_devices)"
            ],
        ),
        (
            {},
            {"nodes": 1, "devices": [7, 8]},
            ["playbooks/configs/ppyoloe.yml:9 devices: asks for [7, 8]; node1 declares"],
        ),
        (
            {"trainyard_suites": {}},
            {},
            [
                "inventory trainyard_suites: the site 'site' does not say where paddledetection"
                " comes from (trainyard_suites."
            ],
        ),
        (
            {
                "trainyard_suites": {
                    "paddledetection": {
                        "code": {"path": "/x"},
                        "environment": {"package": "paddlepadle"},
                    }
                }
            },
            {},
            [
                "trainyard_suites.paddledetection.environment.package: PaddleDetection does not run"
                " on 'paddlepadle'; allowed: paddlepaddle, paddlepaddle-gpu"
            ],
        ),
        (
            {"trainyard_accelerator": "ascend"},
            {"nodes": 1},
            ["launcher: fleetrun cannot start ranks on ascend; for paddledetection there: none"],
        ),
    ],
)
def test_what_a_job_cannot_take(site, job, words):
    problems = chosen(three(**site), **job)[1]
    assert len(problems) == len(words) and all(
        word in problem for word, problem in zip(words, problems)
    ), problems


def test_one_command_cannot_name_different_devices():
    """Contract A5; CUDA_VISIBLE_DEVICES and --gpus are the same words on every node."""
    site = site_of(host(1, trainyard_devices=[0, 1]), host(2, trainyard_devices=[2, 3]))[0]
    (problem,) = refused(site)
    assert (problem.code, problem.key) == ("site.devices_differ", "trainyard_devices")
    assert "node1 0,1; node2 2,3; " in problem.text and "'devices'" in problem.text
    assert not chosen(site, nodes=1)[1]


def test_unequal_nodes():
    site = site_of(host(1), host(2, trainyard_devices=4), host(3))[0]
    (problem,) = refused(site)
    assert (problem.code, problem.key) == ("site.devices_differ", "trainyard_devices")
    assert "node1 8, node2 4, " in problem.text and " node3 8; " in problem.text
    assert "'devices'" in problem.text
    assert not chosen(site, devices=4)[1] and not chosen(site, nodes=1)[1]
    mixed = site_of(host(1), host(2, trainyard_accelerator="cpu"))[0]
    (problem,) = refused(mixed)
    assert (problem.code, problem.key) == ("site.mixed_accelerators", "trainyard_accelerator")
    assert not refused(mixed, nodes=1)


def test_loopback_is_no_address_for_several_nodes():
    site = site_of(host(1, trainyard_address="127.0.0.1"), host(2))[0]
    (problem,) = refused(site)
    assert (problem.code, problem.key) == ("site.loopback_address", "trainyard_address")
    assert problem.file.endswith(" node1") and problem.text.startswith("127.0.0.1 ")
    assert not chosen(site, nodes=1)[1]


def test_choosing_leaves_the_site_as_it_is():
    site = three()
    chosen(site, devices=1)
    assert site == three()


@pytest.mark.parametrize("name", ["127.0.0.1", "localhost"])
def test_a_node_that_is_the_controller_itself_needs_a_fabric_address(name):
    site = site_of(host(1, ansible_host=name), host(2))[0]
    problem = refused(site)[0]
    assert (problem.code, problem.key) == ("site.address_of_controller", "ansible_host")
    assert problem.file.endswith(" node1") and problem.text.startswith(f"{name} ")
    assert not chosen(site, nodes=1)[1]
    site = site_of(host(1, ansible_host=name, trainyard_address="10.0.0.0/24"), host(2))[0]
    assert not chosen(site)[1]


def test_an_inventory_name_that_no_unit_can_carry():
    _site, problems = sites.read_site({"trainers": ["my node"]}, {"my node": host(1)})
    (problem,) = problems
    assert problem.code == "site.bad_host_name" and problem.file.endswith(" my node")


@pytest.mark.parametrize(
    "names, said",
    [
        (["b", "a.b"], ["a.b"]),
        (["a.b", "ab", "b.a"], []),
        (["c.a.b", "a.b", "b"], ["c.a.b", "c.a.b", "a.b"]),
    ],
)
def test_names_of_nodes_whose_logs_could_be_taken_for_each_others(names, said):
    site, problems = sites.read_site(
        {"trainers": names[:1], "spares": names[1:]},
        {name: host(at) for at, name in enumerate(names)},
    )
    assert not problems  # what runs under such names already is followed and stopped
    assert [problem.file for problem in sites.confusable_names(site)] == [
        f"inventory, host {name}" for name in said
    ]


def test_the_controllers_paths_start_at_home_or_at_the_project_and_the_nodes_stay_as_they_are(
    monkeypatch,
):
    monkeypatch.setenv("HOME", "/home/me")
    source = {
        "code": {"path": "examples/x"},
        "data": {
            "coco": {"path": "~/coco"},
            "there": {"path": "/data/x", "placement": "present"},
            "abs": {"path": "/a"},
        },
        "weights": {"path": "~/w"},
        "environment": {},
    }
    made = sites.resolve_paths(source, "/project")
    assert made["code"]["path"] == "/project/examples/x" and made["weights"]["path"] == "/home/me/w"
    assert {name: entry["path"] for name, entry in made["data"].items()} == {
        "coco": "/home/me/coco",
        "there": "/data/x",
        "abs": "/a",
    }
    assert source["code"]["path"] == "examples/x" and sites.resolve_paths(
        {"code": {"git": "u", "version": "v"}}, "/p"
    ) == {"code": {"git": "u", "version": "v"}}


def test_a_site_chooses_where_libraries_lie():
    problems, given = [], {"LD_LIBRARY_PATH": "/usr/local/cuda/lib64", "PYTHONPATH": "/opt/lib"}
    assert site_fields.read_environment(given, problems) == given and problems == []


@pytest.mark.parametrize(
    "url",
    [
        "https://user:hunter22@h/r.git",
        "https://hunter22@h/r.git",
        "https://u:a/b@h/r",
        "ssh://git:hunter22@h/r",
        "ext::sh -c x",
        "--upload-pack=x",
        "a\nb",
    ],
)
def test_a_git_address_with_a_login_is_refused_without_it(url):
    problems = []
    site_fields.read_suites(
        {
            "paddledetection": {
                "code": {"git": url, "version": "v"},
                "environment": {"python": "/p"},
            }
        },
        problems,
    )
    assert [problem.key for problem in problems][-1] == "trainyard_suites.paddledetection.code.git"
    assert not any("hunter22" in str(problem) for problem in problems)


@pytest.mark.parametrize(
    "url",
    [
        "https://h/r.git",
        "git@h:r.git",
        "ssh://git@h:22/r.git",
        "/srv/git/r.git",
        "file:///srv/r.git",
    ],
)
def test_a_git_address_without_a_login_is_taken(url):
    problems = []
    site_fields.read_suites(
        {
            "paddledetection": {
                "code": {"git": url, "version": "v"},
                "environment": {"python": "/p"},
            }
        },
        problems,
    )
    assert problems == []
