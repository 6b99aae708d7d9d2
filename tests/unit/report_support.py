# SPDX-License-Identifier: Apache-2.0
"""Runs for the tests of the report: real ones as they came home, one whose every text is hostile, a
day on many ranks.
"""

from __future__ import annotations

import json
import math
import shutil
from html.parser import HTMLParser

from ansible_collections.trainyard.cluster.plugins.plugin_utils.report import (
    html_page,
    load,
    report_view,
    run_comparison,
    series,
)
from core_support import ROOT

FIXTURES = ROOT / "tests" / "fixtures"
# What a log could try: to end the script, to be a template, to run, to move the terminal, to turn
# the text around, to be no text.
ATTACK = (
    "</script><script>window.pwned=1</script><img src=x onerror=window.pwned=1>{{ 7*7 }}{% raw"
    " %}\x1b[2J\x07\u202etxt\u2028 ]]><!-- javascript:alert(1) http://198.51.100.250/steal?x=1"
    " \x00\ud800"
)
NOW = 1795210000.0


def bring(runs_dir, name):
    """Copy a recorded run under its own id to runs_dir; return the id."""
    source = FIXTURES / name
    source = (
        source
        if (source / "run.json").exists()
        else next(path for path in sorted(source.iterdir()) if path.is_dir())
    )
    run = json.loads((source / "run.json").read_text(encoding="utf-8"))["run"]
    shutil.copytree(source, runs_dir / run)
    return run


def facts_of(runs_dir, run):
    return load.read(str(runs_dir), run, series.of_run)


def parts():
    return html_page.parts(str(ROOT / "roles" / "report"))


def page_of(facts):
    """Return the text of one run's page."""
    return html_page.render(report_view.view(facts, NOW), parts())


def comparison_of(all_facts):
    return html_page.render(run_comparison.view(all_facts, NOW), parts())


def poisoned(runs_dir):
    """A real failed run in which every text that nodes, logs and people write is an attack; return
    its id.
    """
    run = bring(runs_dir, "raised")
    folder = runs_dir / run
    for name in ("plan.json", "run.json"):
        data = json.loads((folder / name).read_text(encoding="utf-8"))
        if name == "plan.json":
            data["argv"] += ["--token", "canary-of-an-argument", ATTACK, "canary-of-the-site"]
            data["env"].update(
                {
                    "API_TOKEN": "canary-of-a-name",
                    "PLAIN": ATTACK,
                    "SITE_MARKED": "canary-of-the-site",
                    "PASSWORD": "cana7",
                }
            )
            data["secret_env"] = ["SITE_MARKED"]
            data["notes"], data["site"], data["job"]["name"] = [ATTACK], ATTACK, ATTACK
        else:
            verdict = data["attempts"][0]["verdict"]
            verdict.update(
                text="FAILED: " + ATTACK,
                remedy=ATTACK,
                evidence=[ATTACK, "password=canary-of-a-log " + ATTACK],
            )
            verdict["candidates"] = [
                dict(item, why=ATTACK, node=ATTACK) for item in verdict["candidates"]
            ]
            data["job"] = ATTACK
            for rank in data["attempts"][0]["ranks"]:
                rank.update(state=ATTACK, exit_code=None, signal=None)
        (folder / name).write_text(json.dumps(data), encoding="utf-8")
    (folder / "job.json").write_text(json.dumps({"description": ATTACK}), encoding="utf-8")
    log = folder / "attempt-1" / "rank-001.node2.log"
    lines = log.read_bytes().split(b"\n")
    lines[20] = ATTACK.encode("utf-8", "surrogatepass") + b" canary-of-the-site \xff\xfe"
    lines[25] = b"ValueError: " + ATTACK.encode("utf-8", "surrogatepass")
    log.write_bytes(b"\n".join(lines))
    return run


def day(ranks=64, per_node=8, hours=24, every=300, slow=17, late=41):
    """Facts of a run as long as a day: every rank prints, one is slow from noon on, one came late,
    evaluations all the time.
    """
    begin, seconds = 1795100000.0, hours * 3600
    points = load.points_for(ranks)
    curves, phases, planned, told = {}, [], [], []
    for rank in range(ranks):
        node, start = "node%d" % (rank // per_node + 1), begin + (70 if rank == late else 20)
        planned.append(
            {
                "rank": rank,
                "node": node,
                "local_rank": rank % per_node,
                "device": "0",
                "endpoint": "198.51.100.1:%d" % (17000 + rank),
            }
        )
        times = [begin + 90 + (seconds - 90) * i / points for i in range(points)]
        pace = [
            (1.6 if rank == slow and when > begin + seconds / 2 else 1.0)
            * (1 + 0.02 * math.sin(rank + 7 * i))
            for i, when in enumerate(times)
        ]
        part = [i / points for i in range(points)]
        curves[rank] = {
            "time": times,
            "step": [20 * (i + 1) for i in range(points)],
            "epoch": [i // 5 for i in range(points)],
            "loss": [
                1 + 3 * math.exp(-3 * done) + 0.01 * math.sin(rank + 9 * done) for done in part
            ],
            "lr": [0.01 * (1 - done) for done in part],
            "ips": [32.123456 / cost for cost in pace],
            "batch_cost": pace,
        }
        phases += [
            {"rank": rank, "phase": "start", "begin": begin, "end": start},
            {"rank": rank, "phase": "rendezvous", "begin": start, "end": begin + 80},
        ]
        phases.append({"rank": rank, "phase": "first_step", "begin": begin + 80, "end": begin + 90})
        for number in range(seconds // every):
            here = begin + 90 + number * every
            phases.append(
                {"rank": rank, "phase": "training", "begin": here, "end": here + 0.8 * every}
            )
            phases.append(
                {
                    "rank": rank,
                    "phase": "evaluation",
                    "begin": here + 0.8 * every,
                    "end": here + every,
                }
            )
        told.append(
            {
                "rank": rank,
                "exit_code": 0,
                "started": begin,
                "ended": begin + seconds,
                "last_step": {"loss": 1.0, "ips": 32.0},
            }
        )
    evaluations = [
        {
            "rank": 0,
            "time": begin + number * every,
            "step": number,
            "epoch": number,
            "figures": {"ap": 0.5, "fps": 9.0},
        }
        for number in range(seconds // every)
    ]
    sums = {"time": curves[0]["time"], "ips": [32.0 * ranks] * points}
    attempt = {
        "number": 1,
        "begin": begin,
        "end": begin + seconds,
        "series": curves,
        "phases": phases,
        "summed": sums,
        "evaluations": evaluations,
    }
    verdict = {"outcome": "completed", "text": "COMPLETED: all ended with exit code 0"}
    return {
        "run": "20261120-000000-day-0001", "job": {}, "indexes": {}, "excerpts": [], "notes": [],
        "files": [], "report": False,
        "plan": {"ranks": planned,
        "nodes": [{"name": "node%d" % (n + 1)} for n in range(ranks // per_node)], "epochs": 300},
        "record": {"job": "day", "started": begin, "attempts": [{"number": 1,
        "ended": begin + seconds, "verdict": verdict, "ranks": told}]},
        "series": {"attempts": [attempt], "settings": {}, "best": {}},
    }  # fmt: skip


class Page(HTMLParser):
    """A page taken apart: elements [(tag, attributes)], scripts [(attributes, text)], styles
    [text], text.
    """

    def __init__(self, text):
        super().__init__(convert_charrefs=True)
        self.elements, self.scripts, self.styles, self.words, self._open = [], [], [], [], None
        self.feed(text)
        self.close()

    def handle_starttag(self, tag, attrs):
        self.elements.append((tag, dict(attrs)))
        self._open = tag if tag in ("script", "style") else None
        if tag == "script":
            self.scripts.append([dict(attrs), ""])
        elif tag == "style":
            self.styles.append("")

    def handle_endtag(self, tag):
        self._open = None

    def handle_data(self, data):
        if self._open == "script":
            self.scripts[-1][1] += data
        elif self._open == "style":
            self.styles[-1] += data
        else:
            self.words.append(data)

    @property
    def text(self):
        return " ".join(" ".join(self.words).split())

    @property
    def data(self):
        """The block of JSON that the charts are drawn from."""
        return json.loads(
            next(text for attributes, text in self.scripts if attributes.get("id") == "data")
        )
