# SPDX-License-Identifier: Apache-2.0
"""The job_config action: job, site and command line together, in the controller's process."""

from __future__ import annotations

import re
from types import SimpleNamespace

import pytest
from ansible.parsing.dataloader import DataLoader
from ansible_collections.trainyard.cluster.plugins.module_utils.attempts import (
    attempt_dir,
)
from ansible_collections.trainyard.cluster.plugins.plugin_utils.base.yaml_source import Problem
from ansible_collections.trainyard.cluster.plugins.plugin_utils.config import site as sites
from ansible_collections.trainyard.cluster.plugins.plugin_utils.preflight import controller_programs
from core_support import ROOT, put

HOST = {
    "trainyard_accelerator": "cpu",
    "trainyard_devices": 2,
    "other": "{{ never looked at }}",
    "trainyard_suites": {
        "paddledetection": {
            "code": {"path": "/src"},
            "data": {"coco": {"path": "/data"}},
            "environment": {"package": "paddlepaddle", "version": "2.6.2"},
        }
    },
}


@pytest.fixture
def read(load_plugin, tmp_path, monkeypatch):
    """Run the action as a task would: with a job, command line variables, --limit and the site's
    hosts.
    """
    plugin = load_plugin("action", "job_config")
    inventory = (
        put(
            tmp_path,
            {
                "hosts.ini": (
                    "[trainers]\nnode1 ansible_host=192.0.2.1\nnode2 ansible_host=192.0.2.2\n"
                )
            },
        )
        + "/hosts.ini"
    )

    def run(
        config="ppyoloe.yml",
        limit=None,
        groups=None,
        changes=None,
        resumed=None,
        members=None,
        third=None,
        ignored=(),
        verb="train",
        **extra,
    ):
        extra = dict(extra, config=config) if config and (resumed is None or ignored) else extra
        monkeypatch.setattr(plugin, "load_extra_vars", lambda loader: extra)
        monkeypatch.setattr(
            plugin.context,
            "CLIARGS",
            {"subset": limit, "inventory": (inventory,), "args": [f"playbooks/{verb}.yml"]},
        )
        what = {"config": config} if resumed is None else {"resumed": resumed, "members": members}
        what = {} if config is None else what
        task = SimpleNamespace(
            args=dict(
                what,
                extra=["run", "nodes", "devices", "start_port", "min_nodes"],
                ignored=list(ignored),
            ),
            async_val=0,
            check_mode=False,
            action="job_config",
        )
        action = plugin.ActionModule(
            task, SimpleNamespace(_shell=SimpleNamespace(tmpdir="/tmp")), None, DataLoader(), None
        )
        hostvars = {
            "node%d" % n: dict(HOST, ansible_host="192.0.2.%d" % n, **(changes or {}))
            for n in (1, 2, 3)
        }
        hostvars["node3"].update(third or {})
        groups = groups or {"all": ["node1", "node2"], "trainers": ["node1", "node2"]}
        return action.run(
            task_vars={
                "playbook_dir": str(ROOT / "playbooks"),
                "groups": groups,
                "hostvars": hostvars,
            }
        )

    return run


def refusal(read, **arguments):
    """Return [(code, line)] of a refusal."""
    result = read(**arguments)
    assert result["failed"], result
    return list(zip(result["codes"], result["msg"].splitlines()[1:]))


def refused(read, **arguments):
    """Return the lines of a refusal."""
    result = read(**arguments)
    assert result["failed"], result
    return result["msg"].splitlines()


def test_everything_a_run_needs(read):
    found = read(nodes="1", devices="1", start_port="18000")
    assert found[
        "_ansible_verbose_override"
    ]  # -v would show the environment, and what is secret in it
    assert (found["job"]["nodes"], found["job"]["devices"], found["job"]["start_port"]) == (
        1,
        1,
        18000,
    )
    assert [(node["name"], node["devices"]) for node in found["nodes"]] == [
        ("node1", ["0"])
    ] and len(found["site"]["nodes"]) == 2
    assert (
        found["suite"]["name"] == "paddledetection"
        and found["source"]["code"] == {"path": "/src"}
        and found["changed"] is False
    )


@pytest.mark.parametrize(
    "config, verb, warned",
    [(None, "logs", ["old"]), (None, "status", []), ("ppyoloe.yml", "train", ["old"])],
)
def test_old_programs_are_named_by_the_verbs_that_use_them(read, monkeypatch, config, verb, warned):
    monkeypatch.setattr(
        controller_programs.package_fixes, "output", lambda argv: "rsync  version 3.1.0"
    )
    monkeypatch.setattr(controller_programs, "rsync_warning", lambda version, changes: "old")
    monkeypatch.setattr(controller_programs.openssh, "look", lambda: None)
    monkeypatch.setattr(controller_programs.shutil, "which", lambda name: name)
    assert read(config=config, verb=verb)["warnings"] == warned


def test_run_ids_are_new_ordered_and_name_the_job(read):
    one, two = read()["run"], read()["run"]
    assert (
        one != two
        and re.match(r"^\d{8}-\d{6}-ppyoloe-[0-9a-f]{4}$", one)
        and attempt_dir.attempt_dir("/b", one, 1)
    )


# -- a run that is resumed


def test_a_resumed_runs_job_is_its_record_and_the_command_line_may_still_change_it(read):
    first = read(nodes="1", start_port="18000")
    resumed = {"run": first["run"], "number": 3, "job": first["job"]}
    found = read(resumed=resumed, run=first["run"], devices="1")
    assert (found["run"], found["number"], found["job"]["start_port"], found["job"]["devices"]) == (
        first["run"],
        3,
        18000,
        1,
    )
    assert [(node["name"], node["devices"]) for node in found["nodes"]] == [
        ("node1", ["0"])
    ] and first["number"] == 1
    assert (
        found["token"] != first["token"]
    )  # two commands for one run, whose checks of the network take turns


def test_a_restart_leaves_alone_what_its_first_command_said_of_the_job(read):
    """A file of variables (-e @vars.yml) stays on the command line; the record has what it said,
    and lost nodes must not come back with it.
    """
    resumed = {
        "run": "20261120-103501-ppyoloe-1f2e",
        "number": 2,
        "job": dict(read()["job"], nodes=1),
    }
    found = read(resumed=resumed, ignored=["config", "nodes"], nodes="2")
    assert found["job"]["nodes"] == 1 and len(found["nodes"]) == 1
    assert len(read(resumed=resumed, ignored=["config"], nodes="2")["nodes"]) == 2


def test_a_record_from_a_node_is_held_against_the_schema(read):
    resumed = {
        "run": "20261120-103501-ppyoloe-1f2e",
        "number": 2,
        "job": dict(read()["job"], env={"LD_PRELOAD": "x"}),
    }
    said = refusal(read, resumed=resumed)
    assert "job.forbidden_variable" in [
        code for code, line in said if f"runs/{resumed['run']}/job.json env.LD_PRELOAD: " in line
    ], said


@pytest.mark.parametrize(
    "name", ["my-job (1).yml", "\u4e2d\u6587.yml", "%s.yml" % ("x" * 90), "a-b.yml"]
)
def test_a_job_file_of_any_name_gets_a_usable_run_id(read, tmp_path, name):
    put(tmp_path, {name: (ROOT / "playbooks/configs/ppyoloe.yml").read_text(encoding="utf-8")})
    assert attempt_dir.attempt_dir("/b", read(config=str(tmp_path / name))["run"], 1)


@pytest.mark.parametrize(
    "arguments, words",
    [
        ({"config": ""}, "command line config: say which job: -e config=NAME, one of "),
        ({"config": "ppyole"}, "did you mean 'ppyoloe'?"),
        ({"config": "x; rm -rf /"}, "'x; rm -rf /' is neither the name of a job"),
        ({"node": "2"}, "command line node: unknown variable"),
        ({"nodes": "2.5"}, "command line nodes: must be a whole number"),
        ({"nodes": "3"}, "nodes: asks for 3 nodes; the site 'site' has 2"),
        ({"groups": {"all": [], "trainer": ["node1"]}}, "rename the group 'trainer' to 'trainers'"),
        ({"changes": {"trainyard_device": 1}}, "did you mean 'trainyard_devices'?"),
        (
            {"limit": "node1"},
            ("command line --limit: cuts node2 off the 2 nodes of this job; "),
        ),
    ],
)
def test_refused_in_words(read, arguments, words):
    lines = refused(read, **arguments)
    assert lines[0].endswith("nothing was touched:") and any(words in line for line in lines[1:])


def test_every_problem_of_job_site_and_command_line_at_once(read):
    arguments = {"config": "ppyole", "node": "2", "changes": {"trainyard_device": 1}}
    lines = refused(read, **arguments)
    assert lines[0].startswith("4 problems, ") and len(lines) == 5
    assert len(refusal(read, **arguments)) == 4


def test_a_limit_that_leaves_the_gang_whole(read):
    assert (
        len(read(limit="trainers")["nodes"]) == 2
        and len(read(limit="node1", nodes="1")["nodes"]) == 1
    )


def test_escape_bytes_in_a_job_never_reach_the_screen(read, tmp_path):
    put(
        tmp_path,
        {"x.yml": 'suite: paddledetection\nlauncher: paddle\nconfig: a.yml\n"bad\\e[2J": 1\n'},
    )
    lines = refused(read, config=str(tmp_path / "x.yml"))
    assert "\x1b" not in "".join(lines) and "bad\\x1b[2J" in lines[1]


SITE = {"all": ["node1", "node2", "node3"], "trainers": ["node1", "node2"], "spares": ["node3"]}


def test_a_run_that_goes_on_takes_the_members_it_is_told_and_keeps_its_places(read):
    first = read(groups=SITE)
    assert first["job"]["places"] == ["node1", "node2"] and [
        node["name"] for node in first["nodes"]
    ] == ["node1", "node2"]
    assert [node["name"] for node in first["site"]["spares"]] == ["node3"]
    resumed = {
        "run": first["run"],
        "number": 2,
        "job": first["job"],
        "nodes": ["node1", "node2"],
        "places": ["node1", "node2"],
    }
    found = read(groups=SITE, resumed=resumed, members=["node1", "node3"])
    assert [node["name"] for node in found["nodes"]] == ["node1", "node3"] and found["job"][
        "places"
    ] == ["node1", "node2"]
    again = read(
        groups=SITE,
        resumed=dict(
            resumed, job=found["job"], nodes=["node1", "node3"], places=["node1", "node3"]
        ),
    )
    assert [node["name"] for node in again["nodes"]] == ["node1", "node3"] and again["job"][
        "places"
    ] == ["node1", "node2"]


def test_a_run_whose_lost_node_was_taken_out_of_the_inventory_is_read_all_the_same(read):
    """Who takes its place is chosen after this look; the job still asks for two nodes."""
    job = dict(read(groups=SITE, nodes="2")["job"])
    groups = {"all": ["node1", "node3"], "trainers": ["node1"], "spares": ["node3"]}
    resumed = {
        "run": "20261120-103501-x-1f2e",
        "number": 2,
        "job": job,
        "nodes": ["node1", "node2"],
        "places": ["node1", "node2"],
    }
    assert [node["name"] for node in read(groups=groups, resumed=resumed)["nodes"]] == ["node1"]
    assert read(groups=groups, resumed=resumed, min_nodes="1")["job"]["min_nodes"] == 1
    code, line = refusal(read, groups=groups, nodes="2")[0]
    assert code == "job.too_many_nodes" and re.findall(r"asks for (\d)|has (\d)", line) == [
        ("2", ""),
        ("", "1"),
    ]


def test_a_job_takes_the_nodes_that_are_named_in_that_order(read):
    def names(**how):
        return [node["name"] for node in read(**how)["nodes"]]

    assert names(nodes="node2") == ["node2"] and names(nodes="node2,node1") == ["node2", "node1"]
    assert names(nodes=["node2"]) == ["node2"] and names(nodes="1") == ["node1"]
    assert [code for code, _line in refusal(read, nodes="node2,nod1")] == ["job.unknown_node"]
    for numeric in ("0", "-1", "1.5", "1e3", "node1,", "", True, [], [1], [""]):
        assert [code for code, _line in refusal(read, nodes=numeric)] == ["value.not_a_count"]


def test_names_that_a_log_could_confuse_start_no_run_and_a_run_under_them_goes_on(
    read, monkeypatch
):
    first = read()
    resumed = {"run": first["run"], "number": 2, "job": first["job"]}
    monkeypatch.setattr(
        sites,
        "confusable_names",
        lambda site: [Problem("inventory, host node1", None, "", "ends in another's name", "x.y")],
    )
    assert "ends in another's name" in refused(read)[1]
    assert read(resumed=resumed)["run"] == first["run"]


def test_how_a_spare_is_logged_in_to_is_judged_like_a_node(read):
    lines = refused(
        read,
        groups=SITE,
        third={
            "ansible_ssh_common_args": "-o StrictHostKeyChecking=no",
            "runtime_limit_nofile": "x",
        },
    )
    assert len(lines) == 3 and all("node3" in line for line in lines[1:]), lines
