# SPDX-License-Identifier: Apache-2.0
"""An environment that is a container image, from the site to what the agent starts and removes."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest
from ansible_collections.trainyard.cluster.plugins.module_utils.agent import launcher
from ansible_collections.trainyard.cluster.plugins.module_utils.environments import (
    containers,
    python_env,
)
from ansible_collections.trainyard.cluster.plugins.module_utils.plan import compiler as core
from ansible_collections.trainyard.cluster.plugins.module_utils.preflight import probe
from core_support import (
    ENVIRONMENT,
    RUN,
    agent_archive,
    attempt_files,
    compiled,
    gang,
    program,
    put,
    recorded,
)

AGENT = agent_archive()
IMAGE = {
    "container": "mine/paddle:2.6.2",
    "mounts": ["/data"],
    "package": "paddlepaddle",
    "version": "2.6.2",
}
FOUND = {
    "engine": "podman", "form": "disabled", "image_id": "sha256:abc", "uid": 1000, "gid": 1000,
    "pythons": {"python": "/usr/bin/python3.11"}, "executable": "/usr/bin/python3.11",
}  # fmt: skip


def planned(found=FOUND, **more):
    """Compile a plan of two CPU nodes that have looked into the image."""
    arguments = gang(
        count=2, devices=2, accelerator="cpu", environment=dict(IMAGE, digest=ENVIRONMENT), **more
    )
    for fact in arguments["facts"].values():
        fact["containers"] = {ENVIRONMENT: found} if found else {}
    return core.compile_plan(**arguments)


def test_the_command_of_the_plan_is_the_same_and_every_variable_goes_in_by_name():
    made = planned(job={"env": {"SITE_TOKEN": "hidden"}})
    node = made["nodes"][1]
    line = " ".join(node["container"]["argv"])
    names = set(made["env"]) | set(node["env"]) | {"TRAINYARD_ATTEMPT", "PADDLE_TRAINER_ID"}
    assert made["argv"] == compiled(count=2, devices=2, accelerator="cpu")["argv"]
    assert (
        all(f" --env {name} " in line for name in names - {"HOME", "PATH"}) and "hidden" not in line
    )
    assert "--volume /data:/data:ro" in line and line.endswith(" sha256:abc")


@pytest.mark.parametrize(
    "found, job, words",
    [
        (
            None,
            {},
            "node1: the image has not been looked at here; run ansible-playbook"
            " playbooks/provision.yml",
        ),
        (FOUND, {"launcher": "mpirun"}, "with a container use msrun"),
        (
            dict(FOUND, pythons={"python3": "/usr/bin/python3.11"}),
            {},
            "node2: the image has no program python",
        ),
    ],
)
def test_what_cannot_start_in_the_image_is_refused(found, job, words):
    with pytest.raises(core.PlanError) as refused:
        planned(found, job=job)
    assert any(words in problem for problem in refused.value.problems)


def test_the_environments_digest_is_that_of_image_and_mounts():
    digest = python_env.environment_digest(IMAGE, [], "", "")
    assert digest != python_env.environment_digest(
        dict(IMAGE, container="mine/paddle:3"), [], "", ""
    )
    assert digest != python_env.environment_digest(dict(IMAGE, mounts=[]), [], "", "")
    with pytest.raises(python_env.EnvironmentRefused, match="leave it out, or leave container out"):
        python_env.read_environment(dict(IMAGE, python="/usr/bin/python3"))
    with pytest.raises(python_env.EnvironmentRefused, match="only a container needs them"):
        python_env.read_environment({"python": "/usr/bin/python3", "mounts": ["/data"]})


def test_two_images_of_one_name_are_told_apart():
    marker = {"packages": {}, "imported": {}, "container": dict(FOUND, image_sha256="sha256:1")}
    other = dict(marker, container=dict(FOUND, image_sha256="sha256:2"))
    assert python_env.compare_nodes({"node1": marker, "node2": marker}) == []
    (line,) = python_env.compare_nodes({"node1": marker, "node2": other})
    assert line.startswith("node2 ") and "node1" in line
    assert "image is sha256:2 " in line and "want sha256:1" in line


def test_the_probe_tells_how_a_node_runs_its_image(tmp_path):
    put(
        tmp_path,
        {
            f"env/{ENVIRONMENT[:16]}/.trainyard.json": (
                f'{{"digest": "{ENVIRONMENT}", "fingerprint": "f", "container": {{"engine":'
                ' "podman"}}'
            )
        },
    )
    assert probe.containers(str(tmp_path)) == {
        ENVIRONMENT: {"engine": "podman"}
    } and probe.environments(str(tmp_path)) == {ENVIRONMENT: "f"}


def test_the_agent_starts_what_containers_would_and_adds_nothing(tmp_path):
    mine = planned()["nodes"][0]
    given = {"TRAINYARD_ATTEMPT": RUN + "/1", "A": "1"}
    wanted = containers.container_command(
        mine["container"], str(tmp_path / "work"), f"trainyard-{RUN}-1", ["python", "x"], given
    )
    assert launcher.wrap_command(mine, str(tmp_path), ["python", "x"], given) == wanted
    assert launcher.wrap_command({}, str(tmp_path), ["python", "x"], given) == (
        ["python", "x"],
        given,
    )


@pytest.mark.parametrize("engine", ["podman", "docker"])
def test_the_end_of_an_attempt_removes_its_containers_by_name(tmp_path, engine):
    """Podman's layer of files can take longer to remove than a unit's end is given: it is left to a
    unit of its own.
    """
    made = planned(dict(FOUND, engine=engine, form="plain" if engine == "docker" else "disabled"))
    tools = program(tmp_path / "tools", engine, 'echo "$@" >> $LOG')
    program(tmp_path / "tools", "systemd-run", 'echo "$@" >> $LOG')
    for node in made["nodes"]:
        node["container"]["env"]["PATH"] = tools + ":/usr/bin:/bin"
    attempt = attempt_files(tmp_path, made, "node2")
    put(attempt, {"stop.json": '{"by": "user"}'})
    environment = dict(os.environ, SERVICE_RESULT="success", PATH=tools + ":/usr/bin:/bin")
    subprocess.run(
        [sys.executable, "-I", AGENT, "ended", attempt, "node2"], env=environment, check=True
    )
    (line,) = recorded(tools, "systemd-run" if engine == "podman" else "docker")
    if engine == "podman":
        assert (
            line.startswith("--user --quiet --collect --no-block --setenv=")
            and " podman --cgroup-manager=cgroupfs rm --force --ignore " in line
        )
        assert not recorded(tools, "podman")
    else:
        assert line.startswith("rm --force ")
    assert f" trainyard-{RUN}-1 " in line and line.endswith(
        f" trainyard-{RUN}-1-2 trainyard-{RUN}-1-3"
    )
