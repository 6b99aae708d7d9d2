# SPDX-License-Identifier: Apache-2.0
"""Day one on a hostile site, as docs/runbooks/real-site.md describes it. The site is refused with
the remedy and fixed, refused at the next step, and trained in the end.

The tests are one story and run in their order. After each of them, everything that belongs to
another user is unchanged.
"""

from __future__ import annotations

import json

import pytest
from grounds import FABRIC, HERS, JOB, NODES, Site, as_root, kept, ssh
from harness import PROJECT, new_run, runs

HOME = "find /home/trainer ! -path '/home/trainer/.ansible*' | sort"
BOUND = 120  # seconds that a refusal may take; reported exactly, see seconds()


@pytest.fixture(scope="module")
def site(tmp_path_factory):
    made = Site(tmp_path_factory.mktemp("hostile"))
    yield made
    print(f"seconds: {made.seconds}")


@pytest.fixture(scope="module", autouse=True)
def before():
    """What was there before anybody came."""
    return kept()


@pytest.fixture(autouse=True)
def untouched(before):
    steps = int(as_root("node1", "cat /home/alice/steps"))
    yield
    now = kept()
    assert {key: value for key, value in now.items() if before[key] != value} == {}
    assert int(as_root("node1", "cat /home/alice/steps")) > steps, (
        "the other user's training stands still"
    )


def refused(site, verb, *arguments, within=BOUND):
    """Run a verb that must refuse, soon and without having started a run; return what it said."""
    were = runs()
    code, said = site.play(verb, *arguments)
    assert code != 0 and site.seconds[-1][2] < within and new_run(were) is None, said
    return said


def test_nobody_comes_past_the_gateway(site):
    assert ssh("node1", "hostname", through=False).returncode == 255
    assert ssh("node1", "hostname").stdout == "node1\n"


def test_data_that_the_controller_does_not_have_is_refused_before_a_node_is_asked(site):
    said = refused(site, "train", *JOB)
    assert "no /data/shapes-coco on the controller" in said and "Probe the node" not in said
    data = {"coco": {"path": "/data/shapes-coco", "placement": "shared"}}
    code = {"path": "{{ playbook_dir | dirname }}/examples/paddledetection"}
    site.remedy(
        trainyard_suites={
            "paddledetection": {
                "code": code,
                "data": data,
                "environment": {"python": "/opt/paddle/bin/python"},
            }
        }
    )


def test_a_shared_home_is_named_with_the_remedy(site):
    home = as_root("node1", HOME)
    said = refused(site, "check", *JOB)
    assert "one product directory (trainyard_home) is seen by node1, node2" in said
    assert as_root("node1", HOME) == home, "a look must leave nothing"
    site.remedy(trainyard_home=".trainyard/{{ inventory_hostname }}")


def test_everything_else_is_named_at_once(site):
    home = as_root("node1", HOME)
    said = refused(site, "check", *JOB)
    assert as_root("node1", HOME) == home, "a look must leave nothing"
    assert (
        "port 17000: taken by a process of alice" in said
        and "-e start_port=17001 is free on all nodes" in said
    )
    assert "lacks lingering for trainer -> ansible-playbook " in said
    assert (
        "node1 cannot reach node2 at {}, any port of it: no answer, while ping works".format(
            FABRIC["node2"]
        )
        in said
    )
    assert "runtime_firewall" in said
    assert (
        "a package manager is at work: python3" in said
        and "alice trains here beside this job" in said
    )
    site.remedy(trainyard_start_port=17100)


def test_sudo_without_a_password_and_a_password_in_clear_text_are_refused(site):
    said = refused(site, "provision")
    assert (
        "sudo refused trainer (Missing sudo password)" in said
        and "keep ansible_become_password in a vault" in said
    )
    site.remedy(ansible_become_password="not-a-secret")
    assert "[ansible_become_password]: stands in clear text; put it into a vault" in refused(
        site, "provision"
    )
    site.forget("ansible_become_password")
    site.vault(ansible_become_password="not-a-secret")


def test_a_package_manager_at_work_is_waited_for_and_left_alone(site):
    holder = as_root("node2", "systemctl show -P MainPID held-upgrade.service")
    said = refused(site, "provision", "-e", "runtime_lock_seconds=5")
    assert "cannot install rsync (Failed to lock" in said and f"held by process {holder}" in said
    assert "was waited for, 5 s, and is left alone" in said
    assert as_root("node2", "systemctl show -P MainPID held-upgrade.service") == holder
    as_root("node2", "systemctl stop held-upgrade.service")


def test_a_package_that_no_mirror_gives_is_named(site, before):
    said = refused(site, "provision")
    assert (
        "node2: cannot install rsync" in said
        and "Install them by hand, or give the node a package mirror" in said
    )
    told = (
        "sed -i '/^Package: rsync$/,/^$/ s/^Status: deinstall ok config-files$/Status: install ok"
        " installed/' /var/lib/dpkg/status"
    )
    as_root("node2", told)
    before["node2", "the packages"] = kept()["node2", "the packages"]


def test_a_firewall_between_the_nodes_is_named_when_they_are_to_trust_each_other(site):
    # what root gives is given before the nodes are to trust each other, and that takes its time
    said = refused(site, "provision", within=300)
    assert "shares its home directory with node1" in said and "ssh_trust_shared_home: true" in said
    site.remedy(ssh_trust_shared_home=True)
    said = refused(site, "provision", within=300)
    assert (
        "node1 -> node2: no answer from its SSH port" in said
        and "no firewall drops the port between the nodes" in said
    )
    site.remedy(runtime_firewall="iptables")


def test_provisioned_the_site_is_ready(site):
    code, said = site.play("provision")
    assert code == 0, said
    code, said = site.play("check", *JOB)
    assert code == 0 and "READY: nothing keeps this job from starting" in said, said


def test_the_job_trains_over_the_fabric_with_the_python_that_was_there(site):
    were = runs()
    code, said = site.play("train", *JOB, timeout=600)
    assert code == 0 and "COMPLETED: 2 ranks on 2 nodes" in said, said
    run = new_run(were)
    plan = json.loads((PROJECT / "runs" / run / "plan.json").read_text())
    assert plan["argv"][:2] == ["fleetrun", "--ips={}".format(",".join(FABRIC.values()))]
    assert plan["environment"]["python"] == "/opt/paddle/bin/python"
    assert (PROJECT / "runs" / run / "attempt-1" / "rank-001.node2.log").stat().st_size > 0


def test_stop_ends_nothing_of_anybody_else(site):
    code, said = site.play("stop")
    assert code == 0 and HERS not in said, said
    assert as_root("node1", "pgrep -c -u alice -f fleetrun") == "1"


def test_what_was_done_can_be_undone(site):
    code, said = site.play("unprovision")
    assert code == 0, said
    for node in NODES:
        assert "trainyard" not in as_root(
            node, "iptables-save; cat /home/trainer/.ssh/authorized_keys | grep -v ^ssh-ed25519"
        )
