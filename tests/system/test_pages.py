# SPDX-License-Identifier: Apache-2.0
"""Links of the pages lead somewhere, and a page in Chinese has what the page in English has."""

from __future__ import annotations

import re
from xml.etree import ElementTree

import pytest
from core_support import ROOT

CHINESE = ROOT / "docs" / "zh-CN"
README = ROOT / "docs" / "README.zh-CN.md"
LINK = re.compile(r"\]\(([^)\s]+)\)")
PAGES = sorted(
    path.relative_to(ROOT).as_posix()
    for path in [ROOT / "README.md", *(ROOT / "docs").rglob("*.md")]
)
PAIRS = {README.relative_to(ROOT).as_posix(): "README.md"}
PAIRS.update(
    (path.relative_to(ROOT).as_posix(), f"docs/{path.relative_to(CHINESE).as_posix()}")
    for path in sorted(CHINESE.rglob("*.md"))
)
# The tables of the generated page are in English only.
FRAMES = {"docs/zh-CN/messages.md"}


def read(page):
    return (ROOT / page).read_text(encoding="utf-8")


def blocks_of(text):
    """Return the code blocks, without comments: indented lines, and lines between fences."""
    blocks, block, fenced = [], [], False
    for line in [*text.splitlines(), ""]:
        if line.startswith("```"):
            fenced = not fenced
        elif fenced or line.startswith("    "):
            block.append(re.sub(r"(^|\s+)# .*", "", line.strip()))
            continue
        if block and (line or not fenced):
            blocks.append([words for words in block if words])
            block = []
    return blocks


def prose_of(text):
    """Return the lines outside of code blocks."""
    lines, fenced = [], False
    for line in text.splitlines():
        if line.startswith("```"):
            fenced = not fenced
        elif not fenced and not line.startswith("    "):
            lines.append(line)
    return lines


def headings_of(text):
    return [len(line) - len(line.lstrip("#")) for line in prose_of(text) if line.startswith("#")]


def rows_of(text):
    """Return the number of table rows below each heading."""
    numbers = [0]
    for line in prose_of(text):
        if line.startswith("#"):
            numbers.append(0)
        numbers[-1] += line.startswith("|")
    return numbers


def targets_of(page):
    """Return the files that a page links to; those in Chinese under their English names."""
    found = set()
    for link in LINK.findall("\n".join(prose_of(read(page)))):
        if ":" in link.split("/")[0] or link.startswith("#"):
            continue
        path = (ROOT / page).parent.joinpath(link.partition("#")[0]).resolve()
        name = path.relative_to(ROOT).as_posix()
        found.add(PAIRS.get(name, name))
    return found


def anchors_of(page):
    """Return the anchors of a page's headings, as GitHub makes them."""
    names = [line.lstrip("#").strip() for line in prose_of(read(page)) if line.startswith("#")]
    return {re.sub(r"[^\w\- ]", "", name.lower()).replace(" ", "-") for name in names}


@pytest.mark.parametrize("page", PAGES)
def test_every_link_leads_to_a_file_and_a_heading(page):
    lost = []
    for link in LINK.findall("\n".join(prose_of(read(page)))):
        if ":" in link.split("/")[0]:
            continue
        file, _mark, anchor = link.partition("#")
        path = (ROOT / page).parent.joinpath(file).resolve() if file else ROOT / page
        name = path.relative_to(ROOT).as_posix()
        if not path.exists() or (anchor and anchor not in anchors_of(name)):
            lost.append(link)
    assert lost == []


@pytest.mark.parametrize("chinese, english", PAIRS.items())
def test_a_page_in_chinese_has_the_headings_of_the_page_in_english(chinese, english):
    assert headings_of(read(chinese)) == headings_of(read(english))


@pytest.mark.parametrize("chinese, english", PAIRS.items())
def test_a_page_in_chinese_has_the_commands_of_the_page_in_english(chinese, english):
    assert blocks_of(read(chinese)) == blocks_of(read(english))


@pytest.mark.parametrize("chinese", sorted(set(PAIRS) - FRAMES))
def test_a_page_in_chinese_has_the_tables_and_links_of_the_page_in_english(chinese):
    assert rows_of(read(chinese)) == rows_of(read(PAIRS[chinese]))
    own = {chinese, PAIRS[chinese]}
    assert targets_of(chinese) - own == targets_of(PAIRS[chinese]) - own - {chinese}


def test_the_pages_of_every_day_are_there_in_chinese():
    names = "real-site train job check verdict resume".split()
    wanted = {f"docs/runbooks/{name}.md" for name in names} | {"docs/messages.md", "README.md"}
    wanted |= {f"docs/tutorials/{name}.md" for name in ("two-workstations", "four-by-eight")}
    assert wanted <= set(PAIRS.values())


def test_the_pictures_are_small_and_ask_no_server():
    pictures = [path for path in (ROOT / "docs" / "pictures").iterdir() if path.suffix != ".py"]
    assert {path.suffix for path in pictures} == {".png", ".svg"}
    assert sum(path.stat().st_size for path in pictures) < 250_000
    session = (ROOT / "docs" / "pictures" / "session.svg").read_text(encoding="utf-8")
    ElementTree.fromstring(session)
    assert not re.search(r"<script|<image|@import|url\(|href=\"[^#]", session)


def test_blocks_and_anchors_are_read_as_written():
    text = "a\n\n    one   # x\n    two\n\nb\n```sh\nthree # y\n\nfour\n```\n## A `b`, c!\n"
    assert blocks_of(text) == [["one", "two"], ["three", "four"]]
    assert headings_of(text) == [2] and rows_of("| a |\n# b\n| c |\n") == [1, 1]
