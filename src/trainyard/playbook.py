# SPDX-License-Identifier: Apache-2.0
"""Run one of the product's playbooks, as `ansible-playbook` in a process of its own."""

from __future__ import annotations

import contextlib
import json
import os
import re
import shlex
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from .exit_codes import Exit, exit_code
from .product import Product, program, shown_path
from .site_choice import Site

# A value of -e that every shell and Ansible take as it is.
_PLAIN = re.compile(r"[A-Za-z0-9_./:,@%+-]+\Z")
# Playbooks that answer a question: their tasks are of no interest.
BRIEF = ("runs", "status", "notify", "report")
# Signals that end this command end the playbook, too; a run goes on.
_PASSED_ON = (signal.SIGTERM, signal.SIGHUP)


@dataclass(frozen=True)
class Invocation:
    """One playbook with its options.

    extra: variables of -e. options: further words of ansible-playbook, such as --check.
    """

    verb: str
    site: Site | None
    extra: Mapping[str, Any] = field(default_factory=dict)
    options: Sequence[str] = ()
    detach: bool = False

    def argv(self, product: Product) -> list[str]:
        """Return the words of the command line, the program's name first."""
        words = ["ansible-playbook"]
        if self.site:
            words += ["-i", self.site.inventory]
        words.append(shown_path(product.playbook(self.verb)))
        for name, value in self.extra.items():
            words += ["-e", extra_word(name, value)]
        return [*words, *self.options]

    def environment(self, product: Product) -> dict[str, str]:
        """Return the variables that the command line needs here, beside the user's own."""
        variables = {}
        if Path.cwd() != product.root:
            variables["ANSIBLE_CONFIG"] = str(product.config)
        if self.site and self.site.project:
            variables["TRAINYARD_PROJECT"] = str(self.site.project)
        if self.detach:
            variables["TRAINYARD_DETACH"] = "1"
        return variables

    def shown(self, product: Product) -> str:
        """Return the complete command line, to paste into a shell in this directory."""
        variables = [
            f"{name}={shlex.quote(value)}" for name, value in self.environment(product).items()
        ]
        return " ".join([*variables, shlex.join(self.argv(product))])


def extra_word(name: str, value: Any) -> str:
    """Return a variable as a value of ansible-playbook's -e, as JSON if its text is not plain."""
    if isinstance(value, bool):
        return f"{name}={str(value).lower()}"
    if isinstance(value, (str, int)) and _PLAIN.match(str(value)):
        return f"{name}={value}"
    return json.dumps({name: value}, ensure_ascii=False)


def repeat(invocation: Invocation, product: Product, as_json: bool, seconds: int) -> Exit:
    """Run a playbook again and again, with pauses in seconds, until a signal or bad input ends it.

    With as_json there is one object after the other, see `run`. A failure is not the end:
    the next time may succeed.
    """
    seen: list[int] = []
    try:
        while True:
            end = run(invocation, product, as_json, seen)
            if seen:
                return Exit.COMPLETED
            if end is Exit.REFUSED:
                return end
            time.sleep(seconds)
    except KeyboardInterrupt:
        return Exit.COMPLETED


def run(
    invocation: Invocation, product: Product, as_json: bool, seen: list[int] | None = None
) -> Exit:
    """Run a playbook to its end and return how it ended.

    as_json: print the result as one JSON object on standard output, and everything else on standard
    error. seen: gets the numbers of the signals that this process has received meanwhile.
    """
    if seen is None:
        seen = []
    with tempfile.TemporaryDirectory(prefix="trainyard-") as folder:
        path = Path(folder, "result.json")
        code = _run_process(invocation, product, path, as_json, seen)
        result = _read_result(path)
    end = exit_code(code, result)
    if as_json:
        result["exit_code"] = int(end)
        json.dump(result, sys.stdout, indent=2, ensure_ascii=False)
        print()
    return end


def _run_process(
    invocation: Invocation, product: Product, path: Path, as_json: bool, seen: list[int]
) -> int:
    """Run ansible-playbook and return its exit code."""
    argv = invocation.argv(product)
    output = None
    if as_json:
        output = sys.stderr.fileno()
    brief = {}
    if invocation.verb in BRIEF:
        brief["TRAINYARD_BRIEF"] = "1"
    environment = {
        **brief,
        **os.environ,
        **invocation.environment(product),
        "TRAINYARD_RESULT": str(path),
        # Programs that came with this command, such as ssh's askpass of Ansible, are found first.
        "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ.get('PATH', os.defpath)}",
    }
    sys.stdout.flush()
    started: list[subprocess.Popen[bytes]] = []

    def pass_on(number: int, _frame: Any) -> None:
        seen.append(number)
        for process in started:
            process.send_signal(number)

    # Ctrl-C reaches the whole group: the playbook decides what it means.
    # A handler, since an ignored signal would be ignored by the child, too.
    handlers: dict[signal.Signals, Any] = dict.fromkeys(_PASSED_ON, pass_on)
    handlers[signal.SIGINT] = lambda number, _frame: seen.append(number)
    with _handled(handlers):
        process = subprocess.Popen([program(argv[0]), *argv[1:]], env=environment, stdout=output)
        started.append(process)
        for number in set(seen).intersection(_PASSED_ON):  # it came while the process began
            process.send_signal(number)
        return process.wait()


@contextlib.contextmanager
def _handled(handlers: Mapping[signal.Signals, Any]) -> Iterator[None]:
    """Handle signals for a while."""
    before = {number: signal.signal(number, handler) for number, handler in handlers.items()}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _read_result(path: Path) -> dict[str, Any]:
    """Return what the callback has written, {} if there is nothing."""
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    if isinstance(content, dict):
        return content
    return {}
