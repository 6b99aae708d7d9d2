# SPDX-License-Identifier: Apache-2.0
"""Start of the plan's processes on one node, in a container or not."""

from __future__ import annotations

import os
import subprocess
import sys

from . import attempt_files, openmpi

REMOVE_SECONDS = 30


def open_log(attempt, name):
    """Open a log below the attempt's directory for appending.

    Raises ValueError where the name leads out of it.
    """
    path = os.path.realpath(os.path.join(attempt, name))
    if not path.startswith(os.path.realpath(attempt) + os.sep):
        raise ValueError(f"the log {name} is not below the attempt's directory")
    os.makedirs(os.path.dirname(path), mode=0o700, exist_ok=True)
    return os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600), "ab")


class Launcher:
    """Processes that this node starts for the plan.

    They are the launcher's command or, where the launcher is of the kind `ranks`, each rank itself.
    """

    def __init__(self, attempt, plan, mine, ranks, environment):
        """Start the processes.

        mine: this node's entry of plan["nodes"]. ranks: its entries of plan["ranks"]. `started` has
        {pid: rank} of the ranks started here.
        """
        self.started, self.processes, self.failure = {}, [], None
        # Whether this node's ranks are all that the launcher has started, and are known without its
        # words about them.
        self.is_alone = plan["launcher"]["kind"] == "each" and not (
            mine.get("container") or plan["launcher"].get("end_words")
        )
        if plan["launcher"]["kind"] == "ranks":
            self.start_ranks(attempt, plan, mine, ranks, environment)
            return
        argv = mine.get("argv") or plan["argv"]
        if plan["launcher"]["kind"] == "first":
            helper = [sys.executable, "-I", os.path.join(attempt, attempt_files.ARCHIVE), "openmpi"]
            if mine["rank"] == 0:
                # With these, mpirun starts its daemons inside the peers' units instead of over
                # plain ssh, and each rank so that its end is seen. They are settings, so that the
                # command stays the one of the upstream documentation. A rank's working directory is
                # work/ on every node.
                environment = dict(
                    environment,
                    OMPI_MCA_plm_rsh_agent=" ".join(helper + ["rsh", attempt, mine["name"]]),
                    OMPI_MCA_orte_fork_agent=openmpi.RANK_COMMAND,
                )
            else:
                argv = helper + ["daemon"]
        self.processes.append(start_process(*wrap_command(mine, attempt, argv, environment)))

    def start_ranks(self, attempt, plan, mine, ranks, environment):
        """Start each rank with its own environment and log."""
        for entry in ranks:
            values = dict(environment, **entry["env"])
            with open_log(attempt, entry["log"]) as log:
                argv, values = wrap_command(
                    mine, attempt, plan["argv"], values, f"-{entry['rank']}"
                )
                process = start_process(argv, values, log)
            self.processes.append(process)
            self.started[process.pid] = entry["rank"]

    def poll(self, live):
        """Return the exit status as subprocess has it, None while anything runs.

        It is that of the first failure, 0 without one. live: {pid: ...} of ranks whose end is not
        noted yet. They are left alone, because collecting one hides its end from RankWatch.
        """
        for process in self.processes:
            if process.returncode is None and process.pid not in live and process.poll():
                self.failure = self.failure or process.returncode
        if any(process.returncode is None for process in self.processes):
            return None
        return self.failure or 0

    def kill(self):
        """End the launcher's own process where nothing else needs it.

        Return whether that was done.
        """
        if self.is_alone:
            self.processes[0].kill()
        return self.is_alone


def start_process(argv, environment, log=None):
    """Start a command under exactly the plan's environment, and return it.

    Nothing of the user's manager or login shell reaches it (fact 11). The command is looked up on
    the plan's own PATH. Raises OSError, and ValueError where a word or variable cannot be given to
    a process.
    """
    return subprocess.Popen(
        argv,
        env=environment,
        stdin=subprocess.DEVNULL,
        stdout=log,
        stderr=log and subprocess.STDOUT,
    )


def container_name(marker, part=""):
    """Return the name of a container of this attempt.

    It has run and attempt in it, as the unit's name has.
    """
    return f"trainyard-{marker.replace('/', '-')}{part}"


def wrap_command(mine, attempt, argv, environment, part=""):
    """Return (argv, environment) of a command as this node starts it.

    It is unchanged, or in the container that the plan has for the node. The words come ready with
    the plan (containers.py). Only the attempt's own are put in here.
    """
    container = mine.get("container")
    if not container:
        return argv, environment
    values = {
        "{work}": os.path.join(attempt, "work"),
        "{name}": container_name(environment["TRAINYARD_ATTEMPT"], part),
        "{attempt}:{attempt}": f"{attempt}:{attempt}",
        "HOME={attempt}": "HOME=" + attempt,
    }
    for folder in container.get("folders") or ():
        os.makedirs(folder, mode=0o700, exist_ok=True)
    engine_argv = [values.get(word, word) for word in container["argv"]]
    return engine_argv + argv, dict(environment, **container["env"])


def remove_containers(attempt, node):
    """Remove what the container engine still has of this attempt.

    With Podman it is the record of a killed container. With Docker it is the container itself,
    because no unit has it.
    """
    plan, record = attempt_files.read_plan(attempt)
    mine = attempt_files.planned_node(plan, node)
    container = mine.get("container")
    if not container or not container["remove"]:
        return
    marker = f"{record['run']}/{record['attempt']}"
    parts = ["", "-scheduler"] + [
        f"-{item['rank']}" for item in attempt_files.planned_ranks(plan, node)
    ]
    argv = container["remove"] + [container_name(marker, part) for part in parts]
    environment = dict(container["env"], HOME=mine["home"])
    if container["remove_apart"]:
        # Podman's processes ended with the unit. A record and a layer of files are left, whose
        # removal can take longer than a unit's end is given, so it gets a unit of its own.
        unit_argv = ["systemd-run", "--user", "--quiet", "--collect", "--no-block"]
        settings = [f"--setenv={name}={value}" for name, value in sorted(environment.items())]
        argv = unit_argv + settings + argv
        environment = dict(os.environ)
    try:
        # An absent name is not a failure to podman. docker reports it and goes on to the next.
        subprocess.call(
            argv,
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            timeout=REMOVE_SECONDS,
        )
    except OSError as error:
        print(
            f"trainyard: {container['remove'][0]} cannot be started: {error.strerror}",
            flush=True,
        )


def start_processes(attempt, plan, node, environment):
    """Start the plan's processes of this node and return (scheduler, launcher).

    The scheduler comes first, where the plan has it on this node, and it is missing (None)
    elsewhere. Raises OSError or ValueError.
    """
    mine = attempt_files.planned_node(plan, node)
    planned, scheduler = plan.get("scheduler"), None
    if planned and planned["node"] == node:
        values = dict(environment, **planned["env"])
        with open_log(attempt, planned["log"]) as log:
            argv, values = wrap_command(mine, attempt, planned["argv"], values, "-scheduler")
            scheduler = start_process(argv, values, log)
    return scheduler, Launcher(
        attempt, plan, mine, attempt_files.planned_ranks(plan, node), environment
    )
