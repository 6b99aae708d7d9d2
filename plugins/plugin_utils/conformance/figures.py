# SPDX-License-Identifier: Apache-2.0
"""conform's checks of the Paddle documents' figures and advice.

They are contract A8 to A10, B6, C5 and C6. Each takes the fixtures, its line of contract.yml and
the findings.
"""

from __future__ import annotations

import os
from typing import Any

from ansible_collections.trainyard.cluster.plugins.module_utils.plan import scaling

from .findings_check import Findings
from .fixtures import CARDS, MANY, Fixtures, Job, Line, job_of, machines_of, replaced


def advised(fixtures: Fixtures, job: Job, count: int, line: Line) -> tuple[dict[str, Any], str]:
    """Return (advice, its text) of a job on machines with 8 cards."""
    compiled_job = fixtures.make(job, machines_of(line, count))
    return compiled_job.advice, "\n".join(compiled_job.plan["advice"])


def published(fixtures: Fixtures, line: Line, findings: Findings) -> None:
    """Check A8: the jobs with a published row are those of the table.

    Each has its row's figures and its setting.
    """
    table = fixtures.contract["published"]
    findings.same(
        "jobs with a published row",
        sorted(table),
        [name for name in fixtures.jobs() if fixtures.job(name)["published"]],
    )
    for name, row in table.items():
        job = fixtures.job(name)
        document = job["document"]
        published_rows = [
            dict({key: entry.get(key) for key in row}, config=os.path.basename(job["config"]))
            for entry in job["published"]
        ]
        findings.same(f"{name}: the row", [row], published_rows)
        setting = f"{document['machines']}x{document['devices']} {document['card']}"
        findings.same(f"{name}: its setting", row["machines"], setting)
        findings.same(
            f"{name}: in the plan",
            job["published"],
            fixtures.make(job, ["192.0.2.1"]).plan["job"]["published"],
        )
    findings.say(
        f"{len(table)} rows of {sum(len(row) for row in table.values())} figures as in the table"
    )


def slanet(fixtures: Fixtures, line: Line, findings: Findings) -> None:
    """Check A9: batch, learning rate and the figure of the default.

    They are those of the row's machines. On one machine nothing is applied.
    """
    job, promise = job_of(fixtures, line), line["values"]
    compiled_job = fixtures.make(job, machines_of(line, line["machines"]))
    rate, batch = compiled_job.advice["settings"][0], compiled_job.advice["batch"]
    findings.same(
        "batch per card",
        (promise["batch"], promise["batch"]),
        (batch["now"], batch["documented"]),
    )
    expected = [promise["factor"] * value for value in rate["now"]]
    findings.same(
        "documented learning rate",
        (expected, line["id"]),
        (rate["document"]["value"], rate["document"]["source"]),
    )
    findings.same(
        "what the default gave",
        promise["default"],
        {key: rate["document"]["default"].get(key) for key in promise["default"]},
    )
    text = f"[{','.join(f'{value:g}' for value in expected)}]"
    findings.true(
        "the plan's command carries it",
        f"{rate['key']}={text}" in compiled_job.plan["argv"],
        " ".join(compiled_job.plan["argv"]),
    )
    findings.true(
        "the advice says both figures",
        all(
            word in "\n".join(compiled_job.plan["advice"])
            for word in (line["id"], promise["default"]["accuracy"])
        ),
    )
    findings.same(
        "what is applied on one machine",
        ({}, []),
        scaling.apply(advised(fixtures, job, 1, line)[0])[:2],
    )
    findings.say(f"batch {batch['now']} per card; {rate['key']} x{promise['factor']}: {text}")


def accuracy(fixtures: Fixtures, line: Line, findings: Findings, source: str | None = None) -> None:
    """Check A10: the plan of many machines warns, with its source.

    It names a remedy. The plan of one machine does not warn.
    """
    source, job = source or line["id"], job_of(fixtures, line)
    (many, text), (alone, quiet) = (
        advised(fixtures, job, MANY, line),
        advised(fixtures, job, 1, line),
    )
    findings.same(
        f"the warning's source on {MANY} and on 1 machine",
        (source, None),
        (many["accuracy"], alone["accuracy"]),
    )
    warning = next((item.strip() for item in text.splitlines() if "accuracy" in item), "")
    findings.true(
        "what the plan prints",
        "1 %" in warning
        and "warm-up" in warning
        and "epochs" in warning
        and warning.endswith(f"({source})"),
        warning or "nothing",
    )
    findings.true("nothing is said on one machine", "accuracy" not in quiet, quiet)
    findings.say(f"on {MANY} x {CARDS} the plan says: {warning}")


def seg_advice(fixtures: Fixtures, line: Line, findings: Findings) -> None:
    """Check B6: A10's warning, and the iterations of both SegFormer rows.

    They are those of the rows' machines.
    """
    accuracy(fixtures, line, findings)
    for name, value in line["values"].items():
        compiled_job = fixtures.make(fixtures.job(name), machines_of(line, line["machines"]))
        setting = next(
            item for item in compiled_job.advice["settings"] if item["name"] == "iterations"
        )
        findings.same(
            f"{name}: documented iterations",
            (value, line["id"]),
            (setting["document"]["value"], setting["document"]["source"]),
        )
        findings.same(
            f"{name}: in the command", ["--iters", str(value)], compiled_job.plan["argv"][-2:]
        )
    findings.evidence[-1:] = [
        f"warns on many cards; --iters {', '.join(map(str, line['values'].values()))}"
        f" on {line['machines']} machines"
    ]


def detection_advice(fixtures: Fixtures, line: Line, findings: Findings) -> None:
    """Check C6: every PP-YOLOE row keeps batch and learning rate.

    The repository's formula is shown beside them.
    """
    promise, shown = line["values"], []
    rows = [
        name
        for name, row in fixtures.contract["published"].items()
        if row["model"].startswith("PP-YOLOE")
    ]
    for name in rows:
        job = fixtures.job(name)
        advice, text = advised(fixtures, job, job["document"]["machines"], line)
        rate = advice["settings"][0]
        findings.same(
            f"{name}: batch per card",
            (promise["batch"], promise["batch"], line["id"]),
            (advice["batch"]["now"], advice["batch"]["documented"], advice["batch"]["source"]),
        )
        findings.same(
            f"{name}: learning rate",
            (promise["learning_rate"], line["id"]),
            (rate["document"]["value"], rate["document"]["source"]),
        )
        findings.same(
            f"{name}: words that change the command",
            ({}, []),
            (advice["overrides"], advice["arguments"]),
        )
        other = rate["upstream"] or {}
        findings.true(
            f"{name}: upstream's formula gives another",
            other.get("value")
            and other["value"] != rate["now"]
            and other["source"] == promise["upstream"],
            other,
        )
        findings.true(
            f"{name}: both are printed",
            f"({line['id']})" in text and f"({promise['upstream']})" in text,
            text,
        )
        shown.append(f"{other.get('value') or 0:g}")
    findings.say(
        f"{len(rows)} jobs: batch {promise['batch']}, rate {promise['learning_rate']:g} kept;"
        f" upstream's {' or '.join(sorted(set(shown)))} beside it"
    )


def other_data(fixtures: Fixtures, line: Line, findings: Findings) -> None:
    """Check C5: a job for other data differs from COCO's in the data alone.

    That is the paths of the data, and the keys that they imply.
    """
    coco = job_of(fixtures, line)
    names = [
        name
        for name, row in fixtures.contract["published"].items()
        if row["model"].startswith("PP-YOLOE") and row["data"] != "COCO"
    ]
    suite = fixtures.suite(coco["suite"])
    keys = {
        key
        for entry in suite["data"]["keys"]
        for key in [entry.get("root"), *(entry.get("paths") or [])]
        if key
    }
    base = fixtures.make(coco, machines_of(line, MANY)).plan["argv"]
    for name in names:
        job = fixtures.job(name)
        argv = fixtures.make(job, machines_of(line, MANY)).plan["argv"]
        cut = argv.index(suite["override_flag"])
        expected = replaced(base, coco["config"], job["config"])
        findings.words(f"{name}, before its overrides", expected, argv[:cut])
        changed = {word.partition("=")[0] for word in argv[cut + 1 :]}
        findings.same(
            f"{name}: other keys than the data's",
            line["values"]["implied"],
            sorted(changed - keys),
        )
        findings.true(
            f"{name}: the config is COCO's", job["config"].endswith("_coco.yml"), job["config"]
        )
    findings.true("there are such jobs", names)
    findings.say(
        f"{len(names)} jobs: COCO's config,"
        f" other {' and '.join(['data paths', *line['values']['implied']])}"
    )


CHECKS = {
    "A8": published,
    "A9": slanet,
    "A10": accuracy,
    "B6": seg_advice,
    "C5": other_data,
    "C6": detection_advice,
}
