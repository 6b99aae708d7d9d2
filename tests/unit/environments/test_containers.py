# SPDX-License-Identifier: Apache-2.0
"""Containers: the engines' command lines, word for word, and what may stand in a site."""

from __future__ import annotations

import pytest
from ansible_collections.trainyard.cluster.plugins.module_utils.environments import containers

BASE = "/home/trainer/.trainyard"
WORK = BASE + "/runs/r/attempt-1/work"
ATTEMPT = BASE + "/runs/r/attempt-1"


def mounts(option):
    """The mounts of every container: the trees to read, the attempt to write; not the mesh, and no
    other run.
    """
    trees = " ".join(
        f"{option} {BASE}/{name}:{BASE}/{name}:ro"
        for name in ("code", "data", "weights", "checkpoints")
    )
    return f"{trees} {option} {ATTEMPT}:{ATTEMPT}"


COMMAND = ["python", "-m", "paddle.distributed.launch", "tools/train.py"]
PLANNED = {
    "PATH": "/venv/bin:/usr/bin",
    "HOME": "/home/trainer",
    "SITE_TOKEN": "hidden",
    "TRAINYARD_ATTEMPT": "",
}


def found(engine, **changes):
    form = next(iter(containers.ENGINES[engine]["forms"]))
    return dict(
        {"engine": engine, "form": form, "image_id": "sha256:abc", "uid": 1000, "gid": 1001},
        **changes,
    )


def command(engine, environment=None, **more):
    """The whole command line and its environment, as an attempt starts it."""
    entry = containers.plan_entry(
        found(engine, **more.pop("found", {})), BASE, environment or PLANNED, **more
    )
    return containers.container_command(
        entry, WORK, "trainyard-r-1", COMMAND, environment or PLANNED
    )


def test_podman_word_for_word():
    argv, environment = command("podman")
    assert " ".join(argv) == (
        "podman --cgroup-manager=cgroupfs run --rm --pull=never --name trainyard-r-1"
        " --cgroups=disabled --network host --ipc host --userns keep-id --umask 0077 --ulimit host"
        " --security-opt label=disable --log-driver none --workdir "
        + WORK
        + " "
        + mounts("--volume")
        + " --env SITE_TOKEN --env TRAINYARD_ATTEMPT --env HOME="
        + ATTEMPT
        + " sha256:abc python -m paddle.distributed.launch tools/train.py"
    )
    # Its own programs are the system's, and without the user's bus it cannot leave the unit.
    assert environment == {
        "PATH": "/usr/local/bin:/usr/bin:/bin:/usr/sbin:/sbin",
        "HOME": "/home/trainer",
        "SITE_TOKEN": "hidden",
        "TRAINYARD_ATTEMPT": "",
        "DBUS_SESSION_BUS_ADDRESS": "unix:path=/dev/null",
    }


def test_docker_word_for_word():
    argv, _environment = command("docker", found={"form": "plain"})
    assert " ".join(argv) == (
        "docker run --rm --pull never --name trainyard-r-1 --network host --ipc host --security-opt"
        " label=disable --log-driver none --user 1000:1001 --workdir "
        + WORK
        + " "
        + mounts("--volume")
        + " --env SITE_TOKEN --env TRAINYARD_ATTEMPT --env HOME="
        + ATTEMPT
        + " sha256:abc python -m paddle.distributed.launch tools/train.py"
    )


def test_apptainer_word_for_word():
    argv, environment = command("apptainer", found={"image_id": "/images/paddle.sif"})
    assert " ".join(argv) == (
        f"apptainer --silent exec --home {ATTEMPT}:{ATTEMPT} --pwd {WORK} {mounts('--bind')} "
        + "/images/paddle.sif python -m paddle.distributed.launch tools/train.py"
    )  # fmt: skip
    assert environment["SITE_TOKEN"] == "hidden"


@pytest.mark.parametrize("engine", sorted(containers.ENGINES))
def test_no_value_of_the_environment_and_no_path_of_the_node_is_in_the_command(engine):
    line = " ".join(command(engine)[0])
    assert "hidden" not in line and "/venv" not in line and "PATH" not in line


@pytest.mark.parametrize("engine", sorted(containers.ENGINES))
def test_a_loader_path_reaches_the_training_and_not_the_engine(engine):
    argv, environment = command(engine, dict(PLANNED, LD_LIBRARY_PATH="/opt/lib"))
    assert environment["LD_LIBRARY_PATH"] == ""
    inside = (
        environment.get("APPTAINERENV_LD_LIBRARY_PATH")
        or [word for word in argv if word.startswith("LD_LIBRARY_PATH=")][0]
    )
    assert inside.endswith("/opt/lib")


@pytest.mark.parametrize(
    "engine, words",
    [("podman", "--device nvidia.com/gpu=all"), ("docker", "--gpus all"), ("apptainer", "--nv")],
)
def test_gpus(engine, words):
    assert words in " ".join(command(engine, accelerator="gpu", devices=["0", "1"])[0])
    assert words not in " ".join(command(engine)[0])


def test_ascend_devices_of_the_node_alone():
    line = " ".join(command("docker", accelerator="ascend", devices=["0", "4"])[0])
    assert (
        "--device /dev/davinci0 --device /dev/davinci4 --device /dev/davinci_manager" in line
        and "davinci1" not in line
    )
    assert "--volume /usr/local/Ascend/driver:/usr/local/Ascend/driver:ro" in line


@pytest.mark.parametrize(
    "engine, words",
    [
        ("podman", ["--volume", "/data:/data:ro", "--device", "/dev/infiniband"]),
        ("apptainer", ["--bind", "/data:/data:ro"]),
    ],
)
def test_mounts_are_read_only_and_devices_are_devices(engine, words):
    found = containers.mount_options(engine, BASE, ["/data", "/dev/infiniband"])
    assert (
        found[: len(words)] == words
        and found[-1] == "{attempt}:{attempt}"
        and all(":ro" in word for word in found[len(words) + 1 : -1 : 2])
    )


@pytest.mark.parametrize("engine", sorted(containers.ENGINES))
def test_no_mount_leads_to_the_mesh_or_to_other_runs(engine):
    argv = command(engine)[0]
    sources = [
        word.split(":")[0]
        for before, word in zip(argv, argv[1:])
        if before in ("--volume", "--bind", "--home")
    ]
    assert sources and not any(
        (path + "/").startswith(source + "/")
        for source in sources
        for path in (BASE + "/mesh", BASE + "/runs/other")
    )


@pytest.mark.parametrize(
    "path",
    [
        "/",
        "/home",
        "/home/trainer",
        "/home/trainer/",
        BASE,
        BASE + "/mesh",
        BASE + "/mesh/runs",
        "/home/./trainer",
    ],
)
def test_a_mount_that_holds_the_mesh_is_refused(path):
    assert "keys of the mesh" in containers.mesh_problem("/home/trainer", path)
    assert containers.mesh_problem("/home/other", path) is None or path in ("/", "/home")


@pytest.mark.parametrize(
    "path", ["/data", "/home/trainer/data", BASE + "/meshed", "/dev/infiniband"]
)
def test_other_mounts_are_fine(path):
    assert containers.mesh_problem("/home/trainer", path) is None


@pytest.mark.parametrize(
    "environment, words",
    [
        ({"container": "--privileged"}, "want an image's name"),
        ({"container": "a b"}, "want an image's name"),
        ({"container": 1}, "want an image's name"),
        ({"container": "x/y:1", "mounts": ["data"]}, "absolute paths"),
        ({"container": "x/y:1", "mounts": ["/data:/etc"]}, "absolute paths"),
        ({"container": "x/y:1", "mounts": "/data"}, "absolute paths"),
        ({"container": "x/y:1", "python": "/usr/bin/python3"}, "python: nothing is ever installed"),
        (
            {"container": "x/y:1", "requirements": ["a.txt"]},
            "requirements: nothing is ever installed",
        ),
    ],
)
def test_what_a_site_may_not_say(environment, words):
    (problem,) = containers.problems(environment, "trainyard_suites.x.environment")
    assert problem.startswith("trainyard_suites.x.environment.") and words in problem


def test_what_a_site_may_say():
    assert (
        containers.problems(
            {
                "container": "mine:5000/paddle/paddle@sha256:00ff",
                "mounts": ["/data", "/dev/infiniband"],
            }
        )
        == []
    )


def test_a_process_is_held_by_its_unit_alone():
    unit = "trainyard-r-1.service"
    v1 = "9:name=systemd:/docker/0/user.slice/user@1000.service/app.slice/trainyard-r-1.service\n8:pids:/user.slice\n"
    assert containers.is_in_unit(v1, unit)
    assert containers.is_in_unit(
        "0::/user.slice/user@1000.service/app.slice/trainyard-r-1.service/payload\n", unit
    )
    assert not containers.is_in_unit(
        "0::/user.slice/user@1000.service/user.slice/podman-914.scope\n", unit
    )
    assert not containers.is_in_unit("0::/app.slice/x-trainyard-r-1.service\n", unit)


def test_packages_by_the_images_own_path():
    listing = [
        ["numpy-1.26.4.dist-info"],
        ["numpy-1.24.2.egg-info", "Some_Thing-1.0-py3.11.egg-info", "broken.dist-info"],
    ]
    assert containers.parse_packages(listing) == {"numpy": "1.26.4", "some-thing": "1.0"}


@pytest.mark.parametrize(
    "word, words",
    [
        ("python", None),
        ("python3", "in the image python3 is /usr/bin/python3.11"),
        ("pypy", "no program pypy, which the suite's command starts with"),
    ],
)
def test_the_word_that_a_suite_calls_is_the_python_that_was_looked_at(word, words):
    container = {
        "pythons": {"python": "/opt/conda/bin/python3.9", "python3": "/usr/bin/python3.11"},
        "executable": "/opt/conda/bin/python3.9",
    }
    problem = containers.python_problem(container, word)
    assert problem is None if words is None else words in problem


def test_mpirun_is_refused_with_what_works():
    assert "use msrun" in containers.launcher_problem("first")
    assert (
        containers.launcher_problem("each") is None and containers.launcher_problem("ranks") is None
    )
