# SPDX-License-Identifier: Apache-2.0
"""Fifty mistakes of people: the codes, the file and line, and how many lines are printed.

A mistake is one problem, however many nodes and config keys it is about.
"""

from __future__ import annotations

import pytest
from ansible_collections.trainyard.cluster.plugins.plugin_utils.live import problems
from bad_input_support import GOOD, SITE, Bench

# A heading, the problems, and what follows them.
MOST_LINES = 12
SUITE = SITE["trainyard_suites"]["paddledetection"]
MPI = {"inventory": "ungrouped: {hosts: {192.0.2.1: {slots: 8}}}\n"}


def suite(**changes):
    """Return a site whose suite has other values."""
    return {"site": {"trainyard_suites": {"paddledetection": dict(SUITE, **changes)}}}


def site(**changes):
    """Return a site with other variables of all nodes."""
    return {"site": changes}


# name, what is given, the codes, the place of the first line. The name of all.yml's line 3 and the
# like follow the order of the keys.
CASES = [
    ("unknown keys and wrong types",
     {"job": "lanucher: fleetrun\nsuite: paddledetection\nconfig: a.yml\narguments: --eval\nnodes: four\n"},
     ["value.unknown_key", "value.missing_key", "value.wrong_type", "value.breaks_rule"], "mine.yml:1 lanucher"),
    ("the beginning of a suite's name", {"job": GOOD.replace("paddledetection", "paddledet")}, ["value.not_allowed"], "mine.yml:1 suite"),
    ("a launcher", {"job": GOOD.replace("fleetrun", "flettrun")}, ["value.not_allowed"], "mine.yml:2 launcher"),
    ("absolute config", {"job": GOOD.rpartition("config:")[0] + "config: /etc/x.yml\n"}, ["value.breaks_rule"], "mine.yml:3 config"),
    ("a tab", {"job": GOOD + "env:\n\tA: 1\n"}, ["file.not_yaml"], "mine.yml:5"),
    ("an empty job", {"job": ""}, ["file.empty"], "mine.yml"),
    ("a key twice", {"job": GOOD + "suite: x\n"}, ["file.key_twice"], "mine.yml:4 suite"),
    ("a path that leads nowhere", {"job": None, "words": ["config=./nothere.yml"]}, ["cli.no_such_file"], "command line config"),
    ("a .yaml file", {"job": None, "words": ["config=./mine.yaml"]}, ["cli.bad_job_path"], "command line config"),
    ("a job's name", {"job": None, "words": ["config=ppyole"]}, ["cli.unknown_job"], "command line config"),
    ("no job", {"job": None}, ["cli.job_missing"], "command line config"),
    ("-e misspelt", {"words": ["node=2"]}, ["cli.unknown_option"], "command line node"),
    ("-e nodes=9", {"words": ["nodes=9"]}, ["job.too_many_nodes"], "command line nodes"),
    ("-e nodes=1.5", {"words": ["nodes=1.5"]}, ["value.not_a_count"], "command line nodes"),
    ("-e nodes=two", {"words": ["nodes=two"]}, ["job.unknown_node"], "command line nodes"),
    ("a node twice", {"words": ["nodes=node2,node2"]}, ["job.node_twice"], "command line nodes"),
    ("-e rehearse=maybe", {"words": ["rehearse=maybe"]}, ["cli.wrong_value"], "command line rehearse"),
    ("-e twice", {"words": ["nodes=1", "nodes=2"]}, ["cli.contradiction"], "command line nodes"),
    ("--limit", {"limit": "node1"}, ["cli.limit_cuts_job"], "command line --limit"),
    ("check --check", {"verb": "check", "check": True}, ["cli.nothing_to_prove"], "command line --check"),
    ("a run id", {"verb": "stop", "job": None, "words": ["run=latest"]}, ["cli.bad_run"], "command line run"),
    ("accelerator", site(trainyard_accelerator="cuda"), ["site.unknown_accelerator"], "all.yml:2 trainyard_accelerator"),
    ("devices of all nodes", site(trainyard_devices="8 x A100"), ["site.bad_devices"], "all.yml:3 trainyard_devices: must"),
    ("devices of one node", {"node2": {"trainyard_devices": "x"}}, ["site.bad_devices"], "hosts.yml:7 trainyard_devices: host node2: must"),
    ("an unknown variable", site(trainyard_suits={}), ["site.unknown_variable"], "trainyard_suits: unknown"),
    ("an unknown key of a suite", suite(enviroment={}), ["value.unknown_key"], "trainyard_suites.paddledetection.enviroment"),
    ("a suite without environment",
     site(trainyard_suites={"paddledetection": {"code": {"path": "/src"}}}), ["value.missing_key"], "trainyard_suites.paddledetection"),
    ("placement nfs", suite(data={"coco": {"path": "/data", "placement": "nfs"}}), ["value.not_allowed"], "data.coco.placement"),
    ("group trainer", {"inventory": "trainer: {hosts: {a: {}}}\n"}, ["site.no_trainers"], "inventory"),
    ("a hostfile of MPI", MPI, ["site.no_trainers"], "inventory"),
    ("an empty group", {"inventory": "trainers: {hosts: {}}\n"}, ["site.no_trainers"], "inventory"),
    ("a host twice", {"inventory": "trainers:\n  hosts:\n    node1: {}\n    node1: {}\n"}, ["file.key_twice"], "hosts.yml:4 node1"),
    ("one machine twice", {"node2": {"ansible_host": "192.0.2.1"}}, ["site.machine_twice"], "node2"),
    ("a node that is the controller", {"node2": {"ansible_host": "127.0.0.1"}}, ["site.address_of_controller"], "hosts.yml:6 ansible_host: host node2"),
    ("loopback", {"node2": {"trainyard_address": "127.0.0.1"}}, ["site.loopback_address"], "hosts.yml:7 trainyard_address"),
    ("no name of a host", {"node2": {"ansible_host": "-oProxyCommand=id"}}, ["site.bad_host"], "hosts.yml:6 ansible_host"),
    ("a password", site(ansible_become_password="x"), ["login.secret_in_clear"], "all.yml:1 [ansible_become_password]"),
    ("a key file", site(ansible_ssh_private_key_file="/nothere/id"), ["login.bad_key_file"], "all.yml:1 [ansible_ssh_private_key_file]"),
    ("host keys unchecked", site(ansible_ssh_common_args="-o StrictHostKeyChecking=no"), ["login.host_key_checking"], "all.yml:1 ansible_ssh_common_args"),
    ("ansible_become", site(ansible_become=True), ["login.become"], "all.yml:1 ansible_become"),
    ("ansible_connection: local", {"node2": {"ansible_connection": "local"}}, ["login.local_connection"], "hosts.yml:6 ansible_connection"),
    ("no state directory", site(ansible_ssh_common_args="-o UserKnownHostsFile={{ trainyard_state_dir }}/known"),
     ["site.bad_template"], "all.yml:1 ansible_ssh_common_args"),
    ("a reserved variable", site(trainyard_env={"PADDLE_TRAINER_ID": 1}), ["site.bad_environment"], "trainyard_env.PADDLE_TRAINER_ID"),
    ("a reserved variable of the job", {"job": GOOD + "env: {CUDA_VISIBLE_DEVICES: '0'}\n"}, ["job.reserved_variable"], "mine.yml:4 env.CUDA_VISIBLE_DEVICES"),
    ("a launcher of another suite", {"job": GOOD.replace("fleetrun", "msrun")}, ["job.launcher_not_in_suite"], "mine.yml:2 launcher"),
    ("a time without a unit", {"job": GOOD + "watchdog: {step: 5 minutes}\n"}, ["value.breaks_rule"], "mine.yml:4 watchdog.step"),
    ("more devices than there are", {"job": GOOD + "devices: 9\n"}, ["job.devices_missing"], "mine.yml:4 devices"),
    ("a port of the system", {"job": GOOD + "start_port: 80\n"}, ["value.breaks_rule"], "mine.yml:4 start_port"),
    ("a role's variable", site(preflight_shm={"stop": 1}), ["role.unknown_variable"], "all.yml:3 preflight_shm"),
    ("a role's value", site(preflight_shm_mib=64), ["role.wrong_value"], "all.yml:2 preflight_shm_mib"),
    ("an unknown suite for provision", {"verb": "provision", "job": None, "words": ["suite=paddledet"]}, ["site.unknown_suite"], "command line suite"),
    ("the product's directory", site(trainyard_home="/etc"), ["site.bad_directory"], "trainyard_home"),
]  # fmt: skip


@pytest.fixture
def bench(tmp_path, load_plugin, monkeypatch):
    """A good site in a folder, and the action."""
    return Bench(tmp_path, load_plugin("action", "job_config"), monkeypatch)


@pytest.mark.parametrize(
    ("given", "codes", "place"), [pytest.param(*case[1:], id=case[0]) for case in CASES]
)
def test_a_mistake_is_one_problem_with_code_and_place(bench, given, codes, place):
    result, lines = bench.ask(**given)
    assert result is None and bench.codes == codes, lines
    assert any(place in line for line in lines[1:]), lines
    shown = problems.describe({"msg": "\n".join(lines), "codes": bench.codes})
    assert len(shown) <= MOST_LINES
    assert [line.rpartition(" ")[2] for line in shown[1:]] == [f"[{code}]" for code in codes]


def test_the_nearest_name_and_the_remedy_are_named(bench):
    """Other sentences are free. These words are what a user is helped by."""
    bench.write("jobs/parts.yml", GOOD)
    for given, words in (
        ({"job": GOOD.replace("paddledetection", "paddledet")}, "'paddledetection'?"),
        ({"job": None, "words": [f"config={bench.folder}/jobs/part.yml"]}, "'parts.yml'?"),
        ({"job": None, "words": ["config=./mine.yaml"]}, "mine.yml"),
        (site(ansible_port="{{ trainyard_state_dir }}"), "inventory/sample/group_vars/all.yml"),
        (MPI, "192.0.2.1"),
    ):
        lines = bench.ask(**given)[1]
        assert any(words in line for line in lines[1:]), lines
