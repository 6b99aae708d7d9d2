# SPDX-License-Identifier: Apache-2.0
"""The page docs/messages.md: every message code with meaning and fix.

`make messages` writes it. message_catalogue.yml has the texts of findings and problems. The texts
of causes come from the failure catalogue, and the restart classes from the restart policy.
"""

from __future__ import annotations

import os
import sys
from typing import Any

import yaml
from ansible_collections.trainyard.cluster.plugins.module_utils.logs import failure_catalogue
from ansible_collections.trainyard.cluster.plugins.module_utils.recovery import restart_policy

TEXTS = os.path.splitext(os.path.abspath(__file__))[0] + ".yml"
# Of each restart class: whether a run starts again automatically.
RESTARTED = {
    restart_policy.RestartClass.AGAIN: "yes",
    restart_policy.RestartClass.TRAINED: "after a step",
    restart_policy.RestartClass.NEVER: "no",
}
HEAD = """\
# Messages

<!-- Made by `make messages`. Change plugins/plugin_utils/report/message_catalogue.yml instead. -->

Every message has a stable code `<area>.<reason>`. Read codes in scripts. The sentences may change.
"""
FINDINGS = """\
## Findings of a check

`check.yml` shows them, and so does every start. The part before the dot is the field `check`. A
`STOP` prevents the start. An automatic restart is tried again after it, five times in all
([resume](runbooks/resume.md)).
"""
PROBLEMS = """\
## Problems of job, site and command line

A command that finds one of them touches nothing. The field `codes` of its result has the codes, in
the order of the lines.
"""
REFUSALS = """\
## Refusals of attempts, checkpoints and restarts

The failed task shows the code, or the line ends with it. The last column says whether an automatic
restart that meets the refusal is tried again. `-` means that the message refuses nothing.
"""
VERDICTS = """\
## Verdicts

The verdict's `code` in [run.json](run-json.md) says which explanation of an end holds. See
[verdict](runbooks/verdict.md).
"""
RESTARTS = """\
## Decisions about a restart

`again.code` of an attempt in [run.json](run-json.md).
"""
CAUSES = """\
## Causes of a failure

The verdict's `cause` in [run.json](run-json.md) is the code without `cause.`. The last column says
whether a run with `max_restarts` starts again automatically. See [resume](runbooks/resume.md).
"""
ANSWERS = """\
## Answers of nodes

The failed task of the node shows the code. The other nodes go on. See [security](security.md).
"""
DRILLS = """\
## Problems of a drill

`drill.yml` finds them after a fault. The field `codes` of each result in `drill.json` has the
codes, in the order of `problems`. See [drill](runbooks/drill.md).
"""

Texts = dict[str, dict[str, dict[str, str]]]


def cause_code(cause: str) -> str:
    """Return the code of a cause."""
    return f"cause.{cause}"


def read_texts(path: str = TEXTS) -> Texts:
    """Return {section: {code: {means, fix}}} of the data file."""
    with open(path, encoding="utf-8") as handle:
        texts: Texts = yaml.safe_load(handle)
    return texts


def describe_causes() -> dict[str, dict[str, Any]]:
    """Return {code: {means, fix, restart}} of the causes that a verdict can name."""
    causes = {}
    for cause, entry in failure_catalogue.every().items():
        restart_class, _why = restart_policy.restart_class(cause)
        causes[cause_code(cause)] = {
            "means": entry["meaning"],
            "fix": entry["remedy"],
            "restart": RESTARTED[restart_class],
        }
    return causes


def render_page(texts: Texts) -> str:
    """Return the page as Markdown."""
    parts = [
        HEAD,
        FINDINGS,
        _render_table(texts["findings"], ("means", "fix")),
        PROBLEMS,
        _render_table(texts["problems"], ("means", "fix")),
        REFUSALS,
        _render_table(texts["refusals"], ("means", "fix", "restart")),
        VERDICTS,
        _render_table(texts["verdicts"], ("means", "fix")),
        RESTARTS,
        _render_table(texts["restarts"], ("means", "fix")),
        CAUSES,
        _render_table(describe_causes(), ("means", "fix", "restart")),
        ANSWERS,
        _render_table(texts["answers"], ("means", "fix")),
        DRILLS,
        _render_table(texts["drills"], ("means", "fix")),
    ]
    return "\n".join(parts)


TITLES = {"means": "what it means", "fix": "what to do", "restart": "restart"}


def _render_table(entries: dict[str, dict[str, Any]], columns: tuple[str, ...]) -> str:
    """Return a table with one row per code, sorted by the codes."""
    rows = [
        f"| code | {' | '.join(TITLES[column] for column in columns)} |",
        f"|{' --- |' * (len(columns) + 1)}",
    ]
    for code, entry in sorted(entries.items()):
        cells = [_escape(entry[column]) for column in columns]
        rows.append(f"| `{code}` | {' | '.join(cells)} |")
    return "\n".join(rows) + "\n"


def _escape(text: str) -> str:
    """Return a text as a table's cell."""
    return " ".join(text.split()).replace("|", "\\|")


if __name__ == "__main__":
    with open(sys.argv[1], "w", encoding="utf-8") as page:
        page.write(render_page(read_texts()))
