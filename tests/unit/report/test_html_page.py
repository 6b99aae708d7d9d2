# SPDX-License-Identifier: Apache-2.0
"""The report as text: what it says about real runs, what a hostile log can do to it, and its size.
test_report_browser.py opens it in a browser.
"""

from __future__ import annotations

import base64
import hashlib
import json
import re
import shutil

import pytest
from ansible_collections.trainyard.cluster.plugins.plugin_utils.report import (
    html_page,
    report_view,
    run_comparison,
)
from core_support import ROOT
from report_support import (
    ATTACK,
    Page,
    bring,
    comparison_of,
    day,
    facts_of,
    page_of,
    parts,
    poisoned,
)

REAL = (
    "raised",
    "series/failed",
    "series/evaluated",
    "series/recognition",
    "series/msrun",
    "series/stopped",
    "series/lost",
)
ASSETS = ROOT / "roles" / "report" / "files"


@pytest.fixture
def raised(tmp_path):
    """The page of a real run in which rank 1 raised an exception."""
    return Page(page_of(facts_of(tmp_path, bring(tmp_path, "raised"))))


def test_a_failed_run_is_told_from_verdict_to_files(raised):
    said = raised.text
    assert "FAILED rank 1 on node2 " in said
    assert "ValueError: image 000000012.jpg " in said and "(exit code 1)" in said
    assert "Remedy: mend" in said
    assert "(local rank 0), exit code 1 at +0.0 s" in said and "error of its own" in said
    hits = [
        attributes
        for tag, attributes in raised.elements
        if tag == "li" and attributes.get("class") == "hit"
    ]
    # The lines around the evidence are shown.
    assert len(hits) == 1 and 'raise ValueError("image 000000012.jpg ' in said
    assert (
        "fleetrun --ips=198.51.100.101,198.51.100.102 --nproc_per_node=1 tools/train.py -c"
        " configs/faults/raise.yml" in said
    )
    assert "6a4ec3deca1686ec4f4420ce5716e65039d0632961006a409f11834656abb083" in said, (
        "the plan's digest"
    )
    assert "0d0bc17524b51fd9ef2a54ad9a3d98b8e4174d61ff86288bc5c72c1467bc0a42" in said, (
        "the log's digest"
    )
    assert "rank 1 node2" in said and "first fault" in said and "0:13" in said
    links = {attributes["href"] for tag, attributes in raised.elements if tag == "a"}
    logs = {"rank-000.node1.log", "rank-001.node2.log", "launcher.node1.log", "launcher.node2.log"}
    assert {"./attempt-1/" + name for name in logs} <= links
    # The loss that rank 0 printed.
    assert raised.data["curves"][0]["loss"] == [
        3.6156,
        4.0606,
        4.0171,
    ]


@pytest.mark.parametrize("name", REAL)
def test_a_page_asks_nobody_and_is_built_for_everybody(tmp_path, name):
    facts = facts_of(tmp_path, bring(tmp_path, name))
    page = Page(page_of(facts))
    assert facts["notes"] == []
    for tag, attributes in page.elements:
        assert not set(attributes) & {"src", "style", "srcset", "action", "background"} and not [
            a for a in attributes if a.startswith("on")
        ], tag
        assert attributes.get("href", "#").startswith(("#", "./")), attributes
        if (
            tag == "svg"
            and not attributes.get("aria-hidden")
            and "class" in attributes
            and attributes["class"] == "track"
        ):
            assert attributes["role"] == "img" and attributes["aria-label"]
        if tag == "th":
            assert attributes["scope"] in ("row", "col")
    tags = [tag for tag, _attributes in page.elements]
    assert (
        tags.count("h1") == 1
        and tags.count("main") == 1
        and tags.count("table") == tags.count("caption")
    )
    names = [attributes["id"] for _tag, attributes in page.elements if "id" in attributes]
    assert len(names) == len(set(names))
    anchors = {
        attributes["href"][1:]
        for tag, attributes in page.elements
        if tag == "a" and attributes["href"].startswith("#")
    }
    assert anchors <= set(names)
    levels = [int(tag[1]) for tag in tags if re.match(r"h[1-6]$", tag)]
    # No level of a heading is left out.
    assert all(after - before <= 1 for before, after in zip(levels, levels[1:]))


def test_visualdl_records_are_linked(tmp_path):
    run = bring(tmp_path, "raised")
    assert "VisualDL" not in Page(page_of(facts_of(tmp_path, run))).text
    (tmp_path / run / "attempt-1" / "vdlrecords-1795201789.node1.log").write_bytes(b"x")
    page = Page(page_of(facts_of(tmp_path, run)))
    assert f"visualdl --logdir runs/{run}/attempt-1" in page.text
    assert "./attempt-1/" in {attributes["href"] for tag, attributes in page.elements if tag == "a"}


def test_the_policy_allows_the_pages_own_script_and_style_only(raised):
    policy = next(
        attributes["content"]
        for _tag, attributes in raised.elements
        if attributes.get("http-equiv") == "Content-Security-Policy"
    )
    rules = dict(rule.split(" ", 1) for rule in policy.split("; "))
    assert rules["default-src"] == rules["base-uri"] == rules["form-action"] == "'none'" and set(rules) == {
        "default-src", "base-uri", "form-action", "script-src", "style-src",
    }  # fmt: skip

    def sources(texts):
        return {
            f"'sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}'"
            for text in texts
        }

    assert set(rules["style-src"].split()) == sources(raised.styles)
    assert set(rules["script-src"].split()) == sources(
        text for attributes, text in raised.scripts if attributes.get("type") != "application/json"
    )


def test_hostile_text_is_only_text(tmp_path):
    text = page_of(facts_of(tmp_path, poisoned(tmp_path)))
    page = Page(text)
    assert len(page.scripts) == 3 and not [
        tag for tag, _attributes in page.elements if tag == "img"
    ]
    assert not re.search(
        "[\x00-\x08\x0b-\x1f\x7f\u202a-\u202e\u2028\u2066-\u2069\ufffe\ud800-\udfff]", text
    )
    shown = (
        "</script><script>window.pwned=1</script><img src=x onerror=window.pwned=1>{{ 7*7 }}{% raw"
        " %}\\x1b[2J\\x07\\u202etxt\\u2028"
    )
    # It stands there, to be read.
    assert page.text.count(shown) >= 8
    # The charts' data is whole.
    assert page.data
    assert "&lt;/script&gt;" in text and text.count("</script>") == 3
    text.encode("utf-8")


def test_secrets_are_masked(tmp_path):
    text = page_of(facts_of(tmp_path, poisoned(tmp_path)))
    assert (
        "canary" not in text
        and "cana7" not in text
        and "SITE_MARKED" in text
        and "API_TOKEN" in text
    )


def test_data_of_the_charts_cannot_end_their_element():
    quoted = html_page.quoted({"label": ATTACK, "line": "<!--<script>&\u2028"})
    assert not re.search("[<>&\u2028]", quoted) and "\\u003c/script\\u003e" in quoted
    with pytest.raises(ValueError):
        html_page.quoted({"loss": float("nan")})
    with pytest.raises(ValueError, match="end of its own element"):
        html_page.render({"data": {}}, dict(parts(), script="'</script>'"))


def test_not_a_number_leaves_a_gap_and_no_broken_page():
    facts = day(ranks=8, hours=1)
    facts["series"]["attempts"][0]["series"][0]["loss"][3:5] = [float("nan"), float("inf")]
    facts["record"]["attempts"][0]["ranks"][0]["last_step"]["loss"] = float("nan")
    page = Page(page_of(facts))
    assert page.data["curves"][0]["loss"][3:5] == [None, None] and "nan" in page.text


def test_a_day_on_64_ranks_is_small_and_shows_who_is_slow():
    text = page_of(day(every=120))
    page = Page(text)
    print("a day on 64 ranks with %d evaluations each: %.2f MB" % (24 * 30, len(text) / 1e6))
    assert len(text.encode()) < 2_000_000
    lanes = [
        attributes["class"]
        for tag, attributes in page.elements
        if tag == "div" and attributes.get("class", "").startswith("lane ")
    ]
    assert [name for name in lanes if "behind" in name] == ["lane behind"] * 2
    assert "steps 1.6x the median" in page.text and "50 s late to its peers" in page.text.replace(
        "0:50", "50 s"
    )
    slow = [
        attributes["d"]
        for tag, attributes in page.elements
        if tag == "path" and attributes.get("class") == "slow"
    ]
    starts = [float(place) for place in re.findall(r"M([\d.]+) ", slow[0])]
    assert len(slow) == 1 and 480 < min(starts) < 530 and max(starts) > 960, "from noon to the end"
    assert (
        sum(curve["hot"] for curve in page.data["curves"]) == 2 and len(page.data["curves"]) == 64
    )


def test_two_attempts_are_told_apart(tmp_path):
    run = bring(tmp_path, "raised")
    folder = tmp_path / run
    shutil.copytree(folder / "attempt-1", folder / "attempt-2")
    record = json.loads((folder / "run.json").read_text(encoding="utf-8"))
    again = dict(
        record["attempts"][0],
        number=2,
        verdict={"outcome": "completed", "text": "COMPLETED: the second time"},
    )
    (folder / "run.json").write_text(
        json.dumps(dict(record, attempts=record["attempts"] + [again])), encoding="utf-8"
    )
    page = Page(page_of(facts_of(tmp_path, run)))
    # The last one counts.
    assert page.text.index("COMPLETED the second time") < page.text.index("FAILED rank 1 ")
    assert [curve["label"] for curve in page.data["curves"]] == [
        "rank 0, attempt 1",
        "rank 0, attempt 2",
    ]
    assert page.text.count("Attempt 2") >= 2 and "./attempt-2/rank-001.node2.log" in {
        a["href"] for tag, a in page.elements if tag == "a"
    }


def test_damage_is_named_and_the_rest_is_told(tmp_path):
    run = bring(tmp_path, "raised")
    (tmp_path / run / "run.json").write_text('{"attempts": [', encoding="utf-8")
    (tmp_path / run / "attempt-1" / "ranks.json").write_text("[]", encoding="utf-8")
    (tmp_path / run / "attempt-1" / "rank-000.node1.log").write_bytes(b"\x00\xff" * 5000)
    page = Page(page_of(facts_of(tmp_path, run)))
    assert "not complete. run.json could not" in page.text
    assert "attempt-1/ranks.json could not" in page.text
    assert "UNKNOWN nothing was recorded" in page.text and "fleetrun --ips" in page.text


def test_a_comparison_lays_curves_over_each_other_and_shows_only_what_differs(tmp_path):
    runs = [bring(tmp_path, name) for name in ("raised", "series/recognition", "series/msrun")]
    found = [facts_of(tmp_path, run) for run in runs]
    found[1]["report"] = True
    page = Page(comparison_of(found))
    assert [curve["label"] for curve in page.data["curves"]] == [
        "raise 1b3e",
        "recognition 5963",
        "msrun 5553",
    ]
    assert [curve["run"] for curve in page.data["sums"]] == runs
    settings = page.text.split("settings differ")[1]
    assert (
        "suite paddledetection paddleocr mindocr" in settings
        and "accelerator" not in settings
        and "launcher fleetrun paddle msrun" in settings
    )
    assert {attributes["href"] for tag, attributes in page.elements if tag == "a"} >= {
        f"./{runs[1]}/report.html"
    }
    assert f"./{runs[0]}/attempt-1/rank-001.node2.log" in {
        attributes["href"] for tag, attributes in page.elements if tag == "a"
    }


@pytest.mark.parametrize("started, ended", [("x", 5.0), (5.0, [1]), (True, 5.0), (5.0, 1e400)])
def test_a_time_that_is_not_a_number_costs_its_figure_and_no_page(tmp_path, started, ended):
    facts = facts_of(tmp_path, bring(tmp_path, "series/failed"))
    facts["record"]["started"], facts["record"]["attempts"][-1]["ended"] = started, ended
    assert "took" not in [figure["label"] for figure in report_view.view(facts, 0)["figures"]]
    view = run_comparison.view([facts, facts], 0)
    took = view["measures"].index("took")
    assert [row["figures"][took] for row in view["runs"]] == [None, None]


def test_equal_settings_are_said_to_be_equal():
    rows, count = run_comparison.differing([{"a": 1, "b": 2}, {"a": 1, "b": 2}])
    assert (rows, count) == ([], 2)
    assert run_comparison.differing([{"a": 1}, {"b": 2}])[0] == [("a", [1, None]), ("b", [None, 2])]


def test_the_chart_library_is_the_one_that_its_readme_names():
    said = re.findall(
        r"sha256 ([0-9a-f]{64})  (\S+)",
        (ASSETS / "uplot" / "README.md").read_text(encoding="utf-8"),
    )
    assert len(said) == 2
    for digest, name in said:
        assert hashlib.sha256((ASSETS / "uplot" / name).read_bytes()).hexdigest() == digest
    assert "MIT License" in (ASSETS / "uplot" / "LICENSE").read_text(encoding="utf-8")


# --- colours

PAIRS = [
    (ink, ground)
    for ink in ("ink", "muted", "accent", "good", "bad", "warn")
    for ground in ("card", "ground")
]
PAIRS += [(tone, tone + "-soft") for tone in ("good", "bad", "warn")] + [
    ("ink", "bad-soft"),
    ("muted", "bad-soft"),
]


def luminance(colour):
    """Relative luminance as WCAG 2.2 defines it."""
    parts_ = [int(colour[i : i + 2], 16) / 255 for i in (1, 3, 5)]
    red, green, blue = [
        part / 12.92 if part <= 0.04045 else ((part + 0.055) / 1.055) ** 2.4 for part in parts_
    ]
    return 0.2126 * red + 0.7152 * green + 0.0722 * blue


def contrast(one, other):
    low, high = sorted((luminance(one), luminance(other)))
    return (high + 0.05) / (low + 0.05)


@pytest.mark.parametrize("theme", ["light", "dark"])
def test_text_stands_out_from_its_ground(theme):
    """WCAG 2.2, 1.4.3 (text, 4.5) and 1.4.11 (curves and phases, 3), in both themes."""
    style = (ASSETS / "report.css").read_text(encoding="utf-8")
    palettes = [
        dict(re.findall(r"--([\w-]+): (#[0-9a-f]{6})", block))
        for block in re.findall(r":root[^{]*\{([^}]*)\}", style)
    ]
    palettes = [palette for palette in palettes if palette]
    # Dark by the system and dark by the switch are one.
    assert len(palettes) == 3 and palettes[1] == palettes[2]
    colours = palettes[0] if theme == "light" else dict(palettes[0], **palettes[1])
    for text, ground in PAIRS:
        assert contrast(colours[text], colours[ground]) >= 4.5, (text, ground)
    for number in range(8):
        assert contrast(colours["c%d" % number], colours["card"]) >= 3, number


@pytest.mark.parametrize(
    "value", ["1e13", "-1e13", "1e308", "-1e308", "Infinity", "-Infinity", "NaN", "9" * 400]
)
@pytest.mark.parametrize("name", ["series/failed", "series/stopped"])
def test_a_time_that_a_node_invents_costs_no_page(tmp_path, name, value):
    """The node writes the file itself, and json.loads accepts more than valid JSON."""
    run = bring(tmp_path, name)
    for path in (tmp_path / run).glob("attempt-1/exit.*.json"):
        text = json.dumps(dict(json.loads(path.read_text()), time="TIME", service_result="oom"))
        path.write_text(text.replace('"TIME"', value))
    page = page_of(facts_of(tmp_path, run))
    assert len(page) < 2_000_000 and "lanes" in page


@pytest.mark.parametrize("value", ["1e13", "1e308", "Infinity", "NaN", "9" * 400])
def test_a_rank_time_that_a_node_invents_costs_no_page(tmp_path, value):
    run = bring(tmp_path, "series/failed")
    for path in (tmp_path / run).glob("attempt-1/ranks.*.jsonl"):
        events = [dict(json.loads(line), time="TIME") for line in path.read_text().splitlines()]
        lines = [json.dumps(event).replace('"TIME"', value) for event in events]
        path.write_text("\n".join(lines) + "\n")
    assert len(page_of(facts_of(tmp_path, run))) < 2_000_000
