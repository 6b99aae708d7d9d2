# SPDX-License-Identifier: Apache-2.0
"""conform's checks of the Paddle documents' figures and advice: contract A8 to A10, B6, C5, C6.
Each takes the ground, its line and the findings.
"""

from __future__ import annotations

import os

from ..plan import scaling
from .fixtures import CARDS, MANY, job_of, machines_of


def advised(ground, job, count, line):
    """Return (advice, its text) of a job on machines with 8 cards."""
    made = ground.make(job, machines_of(line, count))
    return made.advice, "\n".join(made.plan["advice"])


def published(ground, line, found):
    """A8: the jobs with a row are those of the table, and each carries its row's figures and its
    setting.
    """
    table = ground.contract["published"]
    found.same(
        "jobs with a published row",
        sorted(table),
        [name for name in ground.jobs() if ground.job(name)["published"]],
    )
    for name, row in table.items():
        job = ground.job(name)
        document = job["document"]
        said = [
            dict({key: entry.get(key) for key in row}, config=os.path.basename(job["config"]))
            for entry in job["published"]
        ]
        found.same(f"{name}: the row", [row], said)
        setting = "%dx%d %s" % (document["machines"], document["devices"], document["card"])
        found.same(f"{name}: its setting", row["machines"], setting)
        found.same(
            f"{name}: in the plan",
            job["published"],
            ground.make(job, ["192.0.2.1"]).plan["job"]["published"],
        )
    found.say(
        "%d rows of %d figures as in the table", len(table), sum(len(row) for row in table.values())
    )


def slanet(ground, line, found):
    """A9: batch, learning rate and the figure of the default, on the row's machines; nothing on
    one.
    """
    job, wanted = job_of(ground, line), line["values"]
    made = ground.make(job, machines_of(line, line["machines"]))
    rate, batch = made.advice["settings"][0], made.advice["batch"]
    found.same(
        "batch a card", (wanted["batch"], wanted["batch"]), (batch["now"], batch["documented"])
    )
    expected = [wanted["factor"] * value for value in rate["now"]]
    found.same(
        "learning rate by the document",
        (expected, line["id"]),
        (rate["document"]["value"], rate["document"]["source"]),
    )
    found.same(
        "what the default gave",
        wanted["default"],
        {key: rate["document"]["default"].get(key) for key in wanted["default"]},
    )
    text = "[{}]".format(",".join(f"{value:g}" for value in expected))
    found.true(
        "the plan's command carries it",
        "{}={}".format(rate["key"], text) in made.plan["argv"],
        " ".join(made.plan["argv"]),
    )
    found.true(
        "the advice says both figures",
        all(
            word in "\n".join(made.plan["advice"])
            for word in (line["id"], wanted["default"]["accuracy"])
        ),
    )
    found.same(
        "what is applied on one machine",
        ({}, []),
        scaling.apply(advised(ground, job, 1, line)[0])[:2],
    )
    found.say("batch %d a card; %s x%d: %s", batch["now"], rate["key"], wanted["factor"], text)


def accuracy(ground, line, found, source=None):
    """A10: the plan of many machines warns and says what helps, with its source; the plan of one
    machine does not.
    """
    source, job = source or line["id"], job_of(ground, line)
    (many, text), (alone, quiet) = advised(ground, job, MANY, line), advised(ground, job, 1, line)
    found.same(
        "the warning's source on %d and on 1 machine" % MANY,
        (source, None),
        (many["accuracy"], alone["accuracy"]),
    )
    said = next((item.strip() for item in text.splitlines() if "accuracy" in item), "")
    found.true(
        "what the plan prints",
        "1 %" in said and "warm-up" in said and "epochs" in said and said.endswith(f"({source})"),
        said or "nothing",
    )
    found.true("nothing is said on one machine", "accuracy" not in quiet, quiet)
    found.say("on %d x %d the plan says: %s", MANY, CARDS, said)


def seg_advice(ground, line, found):
    """B6: A10's warning, and the iterations of both SegFormer rows on their machines."""
    accuracy(ground, line, found)
    for name, value in line["values"].items():
        made = ground.make(ground.job(name), machines_of(line, line["machines"]))
        setting = next(item for item in made.advice["settings"] if item["name"] == "iterations")
        found.same(
            f"{name}: iterations by the document",
            (value, line["id"]),
            (setting["document"]["value"], setting["document"]["source"]),
        )
        found.same(f"{name}: in the command", ["--iters", str(value)], made.plan["argv"][-2:])
    found.evidence[-1:] = [
        "warns on many cards; --iters %s on %d machines"
        % (", ".join(map(str, line["values"].values())), line["machines"])
    ]


def detection_advice(ground, line, found):
    """C6: every PP-YOLOE row keeps batch and learning rate, and shows the repository's formula
    beside them.
    """
    wanted, shown = line["values"], []
    rows = [
        name
        for name, row in ground.contract["published"].items()
        if row["model"].startswith("PP-YOLOE")
    ]
    for name in rows:
        job = ground.job(name)
        advice, text = advised(ground, job, job["document"]["machines"], line)
        rate = advice["settings"][0]
        found.same(
            f"{name}: batch a card",
            (wanted["batch"], wanted["batch"], line["id"]),
            (advice["batch"]["now"], advice["batch"]["documented"], advice["batch"]["source"]),
        )
        found.same(
            f"{name}: learning rate",
            (wanted["learning_rate"], line["id"]),
            (rate["document"]["value"], rate["document"]["source"]),
        )
        found.same(
            f"{name}: words that change the command",
            ({}, []),
            (advice["overrides"], advice["arguments"]),
        )
        other = rate["upstream"] or {}
        found.true(
            f"{name}: upstream's formula gives another",
            other.get("value")
            and other["value"] != rate["now"]
            and other["source"] == wanted["upstream"],
            other,
        )
        found.true(
            f"{name}: both are printed",
            "({})".format(line["id"]) in text and "({})".format(wanted["upstream"]) in text,
            text,
        )
        shown.append("%g" % (other.get("value") or 0))
    found.say(
        "%d jobs: batch %d, rate %g kept; upstream's %s beside it",
        len(rows),
        wanted["batch"],
        wanted["learning_rate"],
        " or ".join(sorted(set(shown))),
    )


def other_data(ground, line, found):
    """C5: a job for other data differs from COCO's in where the data is, and in what that implies."""
    coco = job_of(ground, line)
    names = [
        name
        for name, row in ground.contract["published"].items()
        if row["model"].startswith("PP-YOLOE") and row["data"] != "COCO"
    ]
    suite = ground.suite(coco["suite"])
    keys = {
        key
        for entry in suite["data"]["keys"]
        for key in [entry.get("root"), *(entry.get("paths") or [])]
        if key
    }
    base = ground.make(coco, machines_of(line, MANY)).plan["argv"]
    for name in names:
        job = ground.job(name)
        argv = ground.make(job, machines_of(line, MANY)).plan["argv"]
        cut = argv.index(suite["override_flag"])
        same_config = [job["config"] if word == coco["config"] else word for word in base]
        found.words(f"{name}, before its overrides", same_config, argv[:cut])
        changed = {word.partition("=")[0] for word in argv[cut + 1 :]}
        found.same(
            f"{name}: other keys than the data's",
            line["values"]["implied"],
            sorted(changed - keys),
        )
        found.true(
            f"{name}: the config is COCO's", job["config"].endswith("_coco.yml"), job["config"]
        )
    found.true("there are such jobs", names)
    found.say(
        "%d jobs: COCO's config, other %s",
        len(names),
        " and ".join(["data paths", *line["values"]["implied"]]),
    )


CHECKS = {
    "A8": published,
    "A9": slanet,
    "A10": accuracy,
    "B6": seg_advice,
    "C5": other_data,
    "C6": detection_advice,
}
