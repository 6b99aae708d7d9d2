# SPDX-License-Identifier: Apache-2.0
"""`trainyard why`: the verdict of a run from its record on this machine."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import click

from .exit_codes import OF_OUTCOME, Exit
from .playbook import Invocation
from .product import Product, import_collection, shown_path
from .site_choice import Site

# The record's format that is read here, see docs/run-json.md.
_VERSIONS = (1, 2)


class NoVerdict(Exception):
    """There is no verdict to show. The message says how to get one."""


def show(product: Product, site: Site, run: str | None, as_json: bool) -> Exit:
    """Print the verdict of a run, the newest one for None, and return how it ended."""
    folder = _runs_dir(product, site)
    name = run or _newest(folder)
    record = _read_record(product, site, folder, name)
    attempt = next(iter(record["attempts"][-1:]), None)
    if attempt is None or not attempt["verdict"]:
        command = Invocation("follow", site, {"run": name}).shown(product)
        raise NoVerdict(_unjudged(name, record["attempts"], command))
    end = OF_OUTCOME.get(attempt["verdict"]["outcome"], Exit.UNKNOWN)
    if as_json:
        click.echo(json.dumps(_result(folder, name, attempt, end), indent=2, ensure_ascii=False))
    else:
        for line in _lines(product, site, folder, name, attempt):
            click.echo(line)
    return end


def _unjudged(name: str, attempts: list[dict[str, Any]], command: str) -> str:
    """Return what is known of a run whose newest attempt has no verdict. It is safe to print."""
    from ansible_collections.trainyard.cluster.plugins.module_utils.base.sanitize import printable

    which = name
    if attempts:
        which = f"attempt {attempts[-1]['number']} of {name}"
    lines = [f"{which} has no verdict: it goes on, or nobody has followed it to its end"]
    lines += [
        printable(f"attempt {item['number']} before it: {item['verdict']['text']}", limit=4000)
        for item in attempts[:-1]
        if item["verdict"]
    ]
    return "\n".join([*lines, f"follow it: {command}"])


def _result(folder: Path, name: str, attempt: dict[str, Any], end: Exit) -> dict[str, Any]:
    """Return the object that `--json` prints for every verb."""
    from ansible_collections.trainyard.cluster.plugins.plugin_utils.live import result_model
    from ansible_collections.trainyard.cluster.plugins.plugin_utils.report import load

    result = result_model.PlaybookResult()
    data = {key: attempt.get(key) for key in ("verdict", "again")}
    result.add("run_record", "localhost", {"run": name, "attempt": attempt["number"], **data})
    page = folder / name / load.PAGE
    if page.is_file():
        result.add("run_report", "localhost", {"report": str(page)})
    return {**result.as_json(), "exit_code": int(end)}


def _runs_dir(product: Product, site: Site) -> Path:
    """Return the controller's directory of runs, as the site sets it."""
    import_collection(product)
    base = site.project or product.root
    setting = _setting(site, "trainyard_runs_dir")
    return base / Path(setting or "runs").expanduser()


def _setting(site: Site, name: str) -> str | None:
    """Return a variable of a site as Ansible resolves it, None if it is not set."""
    from ansible.inventory.manager import InventoryManager
    from ansible.parsing.dataloader import DataLoader
    from ansible.template import Templar
    from ansible.vars.manager import VariableManager

    loader = DataLoader()
    inventory = InventoryManager(loader=loader, sources=[site.inventory])
    manager = VariableManager(loader=loader, inventory=inventory)
    hosts = inventory.get_hosts("trainers")
    if not hosts:
        return None
    variables = manager.get_vars(host=hosts[0], include_hostvars=False)
    value = variables.get(name)
    if value is None:
        return None
    return str(Templar(loader=loader, variables=variables).template(value))


def _newest(folder: Path) -> str:
    """Return the id of the newest run that has a record."""
    names = sorted(path.parent.name for path in folder.glob("*/run.json"))
    if not names:
        raise NoVerdict(f"{shown_path(folder)} has no run. Train one first: trainyard train JOB")
    return names[-1]


def _read_record(product: Product, site: Site, folder: Path, name: str) -> dict[str, Any]:
    """Return run.json of a run."""
    from ansible_collections.trainyard.cluster.plugins.module_utils.attempts.attempt_dir import (
        RUN_ID,
    )
    from ansible_collections.trainyard.cluster.plugins.module_utils.records import run_json

    if not RUN_ID.match(name):
        raise NoVerdict(f"{name!r} is no run id; it looks like 20261120-103501-ppyoloe-1f2e")
    record = run_json.read(str(folder / name))
    if record:
        return dict(record)
    known = sorted(path.parent.name for path in folder.glob("*/run.json"))
    command = Invocation("follow", site, {"run": name}).shown(product)
    raise NoVerdict(
        f"{shown_path(folder)} has no record of {name}; known: {', '.join(known[-5:]) or 'none'}."
        f"\nIf another controller started it: {command}"
    )


def _lines(
    product: Product, site: Site, folder: Path, name: str, attempt: dict[str, Any]
) -> list[str]:
    """Return the verdict as a block: what, who, where, what to do, the next commands."""
    from ansible_collections.trainyard.cluster.plugins.module_utils.base.sanitize import printable
    from ansible_collections.trainyard.cluster.plugins.plugin_utils.live.command_line import (
        CommandLine,
    )

    commands = CommandLine(
        inventories=(site.inventory,),
        playbook=shown_path(product.playbook("follow")),
        environ=Invocation("follow", site).environment(product),
    )
    verdict = attempt["verdict"]
    code = verdict.get("code") or ""
    if verdict.get("cause"):
        code = f"cause.{verdict['cause']}"
    rows = [(str(verdict["outcome"]).upper(), f"{name} attempt {attempt['number']}  [{code}]")]
    rows.append(("what", _without_parts(verdict)))
    if verdict.get("rank") is not None:
        rows.append(("who", f"rank {verdict['rank']} on {verdict['node']}"))
    elif verdict.get("node"):
        rows.append(("who", verdict["node"]))
    if verdict.get("log"):
        log = folder / name / f"attempt-{attempt['number']}" / Path(verdict["log"]).name
        rows.append(("log", shown_path(log) + _line_of(verdict)))
    if verdict.get("remedy"):
        rows.append(("do", commands.complete(str(verdict["remedy"]))))
    again = attempt.get("again") or {}
    if again.get("why"):
        rows.append(("restart", commands.complete(str(again["why"]))))
    for verb, extra in _next_verbs(name, verdict):
        rows.append(("next", Invocation(verb, site, extra).shown(product)))
    width = max(len(label) for label, _text in rows)
    return [f"{label:<{width}}  {printable(str(text), limit=4000)}" for label, text in rows]


def _without_parts(verdict: dict[str, Any]) -> str:
    """Return the sentence of a verdict without log and remedy, which have rows of their own."""
    text = str(verdict["text"])
    for part in (f"; remedy: {verdict.get('remedy')}", f"; log {verdict.get('log')}"):
        text = text.replace(part + _line_of(verdict), "").replace(part, "")
    return text


def _line_of(verdict: dict[str, Any]) -> str:
    """Return the line of a verdict's log as in `log:12`, '' without one."""
    if verdict.get("line"):
        return f":{verdict['line']}"
    return ""


def _next_verbs(name: str, verdict: dict[str, Any]) -> list[tuple[str, dict[str, Any]]]:
    """Return the verbs that help after a verdict, with their variables."""
    verbs: list[tuple[str, dict[str, Any]]] = []
    if verdict["outcome"] != "completed":
        if verdict.get("rank") is not None:
            verbs.append(("logs", {"run": name, "rank": verdict["rank"], "lines": 50}))
        verbs.append(("resume", {"run": name}))
    verbs.append(("report", {"run": name}))
    return verbs
