# SPDX-License-Identifier: GPL-3.0-or-later
"""Train a job on several numbers of nodes and compare its speed.

See library/benchmark.py for the documentation.
"""

from __future__ import annotations

import functools
import os
import re
import sys
import time
from collections.abc import Sequence

from ansible_collections.trainyard.cluster.plugins.module_utils.base.files import (
    update_file,
    write_json,
)
from ansible_collections.trainyard.cluster.plugins.module_utils.base.sanitize import printable
from ansible_collections.trainyard.cluster.plugins.module_utils.base.untag import plain
from ansible_collections.trainyard.cluster.plugins.modules.benchmark import DOCUMENTATION
from ansible_collections.trainyard.cluster.plugins.plugin_utils.base import interruption, project
from ansible_collections.trainyard.cluster.plugins.plugin_utils.benchmark import (
    scaling,
    scaling_text,
    training_process,
)
from ansible_collections.trainyard.cluster.plugins.plugin_utils.controller_action import (
    Arguments,
    ControllerAction,
    Result,
    arguments_of,
)
from ansible_collections.trainyard.cluster.plugins.plugin_utils.recovery import resume_command
from ansible_collections.trainyard.cluster.plugins.plugin_utils.report import (
    load,
    report_page,
    series,
)
from ansible_collections.trainyard.cluster.plugins.plugin_utils.suites import suite_file

NUMBERS = re.compile(r"[1-9][0-9]{0,3}(?:,[1-9][0-9]{0,3})*\Z")
MOST_MINUTES = 100_000
LONGEST = 4000  # characters of an output that are shown
# Each of them is a command of its own on this machine.
MOST_ALONE = 16


class ActionModule(ControllerAction):
    """Start ansible-playbook's own commands on this controller."""

    ARGUMENTS = arguments_of(DOCUMENTATION)
    REQUIRED_IF = [
        ("state", "chosen", ("config",)),
        ("state", "trained", ("folder", "nodes", "config")),
        ("state", "alone", ("folder", "names", "config")),
        ("state", "compared", ("folder", "trainings")),
    ]
    FAILURES = (resume_command.CommandRefused, load.ReportError, OSError)

    def execute(self, arguments: Arguments) -> Result:
        """Run one step of benchmark.yml."""
        steps = {
            "chosen": self._choose,
            "trained": self._train,
            "alone": self._train_alone,
            "compared": self._compare,
        }
        return steps[arguments["state"]](arguments)

    def _runs(self) -> str:
        first = self.group("trainers")[0]
        folder = str(self.host_value(first, "trainyard_runs_dir", "runs"))
        return os.path.join(project.project_dir(), os.path.expanduser(folder))

    # --- the states

    def _choose(self, arguments: Arguments) -> Result:
        """Read the numbers of nodes, and check the job on the largest one before any training."""
        if not arguments["config"]:
            self.fail("say which job is trained: -e config=<job>")
        if not 0 <= arguments["minutes"] <= MOST_MINUTES:
            self.fail(f"minutes must be from 0 to {MOST_MINUTES}; got {arguments['minutes']:g}")
        self._refuse_options()
        counts = self._counts(arguments["nodes"])
        if self.check_mode:
            numbers = ", ".join(map(str, counts))
            return {
                "changed": False,
                "counts": [],
                "alone": [],
                "folder": "",
                "msg": f"would train on {numbers}",
            }
        name = job_name(arguments["config"])
        folder = os.path.join(
            self._runs(), "benchmark", time.strftime("%Y%m%d-%H%M%S-", time.gmtime()) + name
        )
        os.makedirs(folder, mode=0o700)
        self._display.display(f"check the job on {counts[-1]} nodes")
        interruption.raise_in_worker()
        output = os.path.join(folder, "check.txt")
        check = self._command("check", {"nodes": counts[-1]}, output, frozenset(["wait"]))
        try:
            code = check.process.wait()
        finally:
            check.end()
        if code:
            text = printable(check.text()[-LONGEST:], limit=LONGEST, newlines=True)
            self.fail(f"the job cannot start on {counts[-1]} nodes:\n{text}")
        alone = self._choose_alone(counts[-1], arguments["minutes"])
        return {"changed": True, "counts": counts, "alone": alone, "folder": folder}

    def _choose_alone(self, count: int, minutes: float) -> list[str]:
        """Return the nodes that train alone at the end, [] for none.

        Without a limit of time each would train the whole job.
        """
        if not minutes or not 1 < count <= MOST_ALONE:
            return []
        return self.group("trainers")[:count]

    def _refuse_options(self) -> None:
        """Refuse what the commands of a benchmark cannot be given again."""
        try:
            options, _actions = resume_command.parse(sys.argv)
            resume_command.refuse_passwords(options)
        except resume_command.CommandRefused as error:
            self.fail(
                f"{error}: a benchmark starts several commands. Use --vault-password-file, or a"
                " login by key"
            )
        for word in options.extra_vars or ():
            if word.startswith("@"):
                content = plain(self._loader.load_from_file(word[1:]))
                names = sorted(training_process.START_VARIABLES & set(content or ()))
                if names:
                    self.fail(f"give {', '.join(names)} as -e NAME=VALUE, and not in {word}")

    def _counts(self, text: str) -> list[int]:
        """Return the numbers of nodes, ascending."""
        most = len(self.group("trainers"))
        if not text:
            powers = (1 << power for power in range(most.bit_length()))
            known = sorted({*powers, most})
            return known[:1] + known[1:][1 - load.MOST_RUNS :]
        if not NUMBERS.match(text):
            self.fail(f"nodes must be numbers with commas between them, as 1,2,4; got {text!r}")
        counts = sorted(set(map(int, text.split(","))))
        if counts[-1] > most:
            self.fail(f"nodes asks for {counts[-1]} nodes; the group trainers has {most}")
        if len(counts) > load.MOST_RUNS:
            self.fail(f"nodes takes at most {load.MOST_RUNS} numbers; got {len(counts)}")
        return counts

    def _train(self, arguments: Arguments) -> Result:
        """Train on one number of nodes. It never fails the task, so that what is known is shown."""
        count = int(arguments["nodes"])
        label = f"{count} node" + "s" * (count > 1)
        (outcome,) = self._train_together([(label, f"train-{count}.txt", count)], arguments)
        return {"changed": True, "training": outcome, "_ansible_verbose_override": True}

    def _train_alone(self, arguments: Arguments) -> Result:
        """Train on each node alone, all at the same time. It never fails the task."""
        wanted = [
            (f"{name} alone", f"alone-{number}.txt", [name])
            for number, name in enumerate(arguments["names"], 1)
        ]
        outcomes = self._train_together(wanted, arguments)
        return {"changed": True, "trainings": outcomes, "_ansible_verbose_override": True}

    def _train_together(
        self, wanted: Sequence[tuple[str, str, int | list[str]]], arguments: Arguments
    ) -> list[Result]:
        """Return the outcomes of trainings that run at the same time.

        wanted: label, name of the output, and nodes of each.
        """
        outputs = [os.path.join(arguments["folder"], name) for _label, name, _nodes in wanted]
        trainings: list[training_process.TrainingProcess] = []
        # The trainings are stopped after Ctrl-C, too.
        interruption.raise_in_worker()
        try:
            try:
                for (label, _name, nodes), output in zip(wanted, outputs):
                    trainings.append(self._start_training(label, nodes, output, arguments))
            except BaseException:
                training_process.give_all_up(trainings)
                raise
            outcomes = training_process.await_ends(trainings)
        except self.FAILURES as error:
            text = printable(str(error))
            outcomes = [
                {"run": "", "label": label, "ended_well": False, "text": text, "output": output}
                for (label, _name, _nodes), output in zip(wanted, outputs)
            ]
        for outcome in outcomes:
            self._display.display(f"{outcome['label']}: {outcome['text']}")
        return outcomes

    def _start_training(
        self, label: str, nodes: int | list[str], output: str, arguments: Arguments
    ) -> training_process.TrainingProcess:
        """Start train.yml on a number of nodes, or on those named."""
        least = nodes if isinstance(nodes, int) else len(nodes)
        # A run that is not followed to its end, or goes on with fewer nodes, is no measurement.
        keys = {"nodes": nodes, "min_nodes": least, "max_restarts": 0, "detach": False}
        return training_process.TrainingProcess(
            self._command("train", keys, output),
            label,
            job_name(arguments["config"]),
            self._runs(),
            _playbook("stop"),
            arguments["minutes"],
            self._display.display,
            "" if isinstance(nodes, int) else nodes[0],
        )

    @staticmethod
    def _command(
        verb: str, variables: Arguments, output: str, dropped: frozenset[str] = frozenset()
    ) -> training_process.Command:
        """Start a playbook with the options and the variables of this command.

        dropped: variables that it does not take.
        """
        dropped |= training_process.OWN_VARIABLES
        return training_process.Command(_playbook(verb), variables, dropped, output)

    def _compare(self, arguments: Arguments) -> Result:
        """Write the table and the page of the trainings that have a step."""
        outcomes = [item["training"] for item in arguments["trainings"] if item.get("training")]
        failed = [outcome for outcome in outcomes if not outcome["ended_well"]]
        trainings, alone = self._read_figures(outcomes), self._read_figures(arguments["alone"])
        text, lines = "nothing was trained", []
        if trainings:
            lines = self._write(trainings, alone, arguments["folder"])
            text = f"trained on {', '.join(str(len(one.nodes)) for one in trainings)} nodes"
        outcome = "completed"
        if failed:
            first = failed[0]
            outcome = "failed"
            text = f"the training on {first['label']} failed: {first['text']}; {first['output']}"
        return {
            "changed": True,
            "summary": [*lines, text],
            "verdict": {"outcome": outcome, "text": text},
        }

    def _read_figures(self, outcomes: list[Result]) -> list[scaling.Training]:
        """Return the figures of the trainings that have a run, with a warning for each other."""
        trainings = []
        for one in outcomes:
            try:
                if one["run"]:
                    trainings.append(self._figures(one["run"]))
            except load.ReportError as error:
                self.warn(f"{one['label']}: {printable(str(error))}")
        return trainings

    def _figures(self, run: str) -> scaling.Training:
        """Return the figures of a run. Raises load.ReportError where it has no record."""
        read_series = functools.partial(series.of_run, folder=suite_file.FOLDER)
        facts = load.read(self._runs(), run, read_series)
        return scaling.of_series(facts["record"], facts["plan"], facts["series"])

    def _write(
        self, trainings: list[scaling.Training], alone: list[scaling.Training], folder: str
    ) -> list[str]:
        """Write benchmark.json, benchmark.md and the page. Return the table as lines."""
        rows = scaling.compare(trainings, alone)
        title = f"Benchmark {os.path.basename(folder)}"
        path = os.path.join(folder, "benchmark.md")
        write_json(os.path.join(folder, "benchmark.json"), scaling.as_json(rows, alone))
        update_file(path, scaling_text.markdown(rows, title, alone), 0o600, True)
        lines = [*scaling_text.lines(rows, alone), f"table        {path}"]
        if len(rows) > 1:
            page = report_page.write_page(
                self._runs(),
                "",
                [row.training.run for row in rows],
                os.path.join(project.PRODUCT, "roles", "report"),
                write=True,
                scaling=scaling_text.view(rows, alone),
            )
            lines.append(f"report       {page['report']}")
        return lines


def job_name(config: str) -> str:
    """Return the name of a job: its file's, as in the ids of its runs (job_config.new_run_id)."""
    return re.sub(r"[^A-Za-z0-9_.]", "_", os.path.basename(config).removesuffix(".yml"))[:64]


def _playbook(verb: str) -> str:
    """Return the path of one of the product's playbooks."""
    return os.path.join(project.PRODUCT, "playbooks", verb + ".yml")
