# SPDX-License-Identifier: Apache-2.0
"""The report in headless Chromium. Every switch is used, the console stays empty, the page asks no
server for anything, and no page is too wide.

.config/browser.sh installs the browser. `make test` says so if there is no browser, and sets
TRAINYARD_BROWSER if there must be one.
"""

from __future__ import annotations

import os
import shutil
import urllib.parse
from pathlib import Path

import pytest
from ansible_collections.trainyard.cluster.plugins.plugin_utils.report import (
    index_page,
    report_page,
)
from ansible_collections.trainyard.cluster.plugins.plugin_utils.runs import run_table
from core_support import ROOT
from report_support import ATTACK, NOW, bring, comparison_of, day, facts_of, page_of, poisoned
from selenium.webdriver import ActionChains, Keys

BINARY, DRIVER = shutil.which("chromium"), shutil.which("chromedriver")
pytestmark = pytest.mark.skipif(
    not (BINARY and DRIVER) and not os.environ.get("TRAINYARD_BROWSER"),
    reason="no chromium and chromedriver here; .config/browser.sh as root",
)
KINDS = ("failed", "completed", "compared", "hostile", "day")
# Whoever looks at a page that asks for something learns it here, even where the policy stopped it.
LISTEN = (
    "window.refused = []; document.addEventListener('securitypolicyviolation', (event) =>"
    " window.refused.push(event.violatedDirective))"
)


@pytest.fixture(scope="module")
def pages(tmp_path_factory):
    """{kind: path} of pages of real and made runs, each where it would lie beside its run's
    logs.
    """
    runs = tmp_path_factory.mktemp("runs")
    names = {"failed": "raised", "completed": "series/recognition", "other": "series/evaluated"}
    ids = {kind: bring(runs, name) for kind, name in names.items()}
    found = {kind: facts_of(runs, run) for kind, run in ids.items()}
    apart = tmp_path_factory.mktemp("hostile")
    ids["hostile"] = poisoned(apart)
    paths = {
        "failed": runs / ids["failed"] / "report.html",
        "completed": runs / ids["completed"] / "report.html",
    }
    paths.update(
        compared=runs / "compare.html",
        hostile=apart / ids["hostile"] / "report.html",
        day=runs / "day.html",
    )
    texts = {kind: page_of(found[kind]) for kind in ("failed", "completed")}
    texts.update(
        compared=comparison_of(list(found.values())),
        hostile=page_of(facts_of(apart, ids["hostile"])),
        day=page_of(day()),
    )
    for kind, text in texts.items():
        paths[kind].write_text(text, encoding="utf-8")
    return paths


@pytest.fixture(scope="module")
def window():
    from browser_support import Browser

    browser = Browser(BINARY, DRIVER)
    yield browser
    browser.driver.quit()


@pytest.fixture
def browser(window):
    """The window; at the test's end its console must be empty, and nobody but the page itself may
    have been asked for.
    """
    window.expected = []
    yield window
    assert [
        line for line in window.console() if not any(word in line for word in window.expected)
    ] == []
    others = [
        address
        for address in window.asked()
        if not address.startswith("file://") or not address.split("#")[0].endswith(".html")
    ]
    assert [
        address for address in others if not any(word in address for word in window.expected)
    ] == []


@pytest.fixture(scope="module")
def index(tmp_path_factory):
    """The page of two recorded runs and of one that goes on under hostile names."""
    runs = tmp_path_factory.mktemp("index")
    assets = str(ROOT / "roles" / "report")
    for name in ("raised", "series/recognition"):
        report_page.write_page(str(runs), bring(runs, name), [], assets, write=True)
    rows = run_table.merge({}, index_page.read_records(str(runs)), [])
    row = run_table.Row("20261120-103501-x-1f2e", job=ATTACK, state="running", owner=ATTACK)
    row.fraction = 0.4
    return index_page.write(str(runs), "lab", [row, *rows], assets, NOW, write_file=True)


@pytest.mark.parametrize("width, scheme", [(1280, "light"), (390, "dark")])
def test_the_page_of_all_runs_is_filtered_and_fits(browser, index, width, scheme):
    browser.open(index, width=width, scheme=scheme)
    rows = browser.all("#runs tbody tr")
    assert len(rows) == 3 and browser.find(".spark polyline").get_attribute("points")
    assert browser.run("return document.documentElement.scrollWidth <= innerWidth")
    table = browser.find(".scroll")
    cut_off = browser.run("return arguments[0].scrollWidth - arguments[0].clientWidth", table)
    assert cut_off <= 0, "every column is seen without scrolling"
    assert browser.run("return window.pwned") is None
    for words, expected in (("failed", 1), ("FAILED nothing", 0), ("", 3)):
        field = browser.find("#filter")
        field.clear()
        field.send_keys(words + " ")
        browser.settle()
        assert sum(row.is_displayed() for row in rows) == expected
        assert browser.find("#count").text == str(expected)
    link = browser.find("#runs a")
    assert Path(urllib.parse.urlparse(link.get_attribute("href")).path).is_file()


@pytest.mark.parametrize("kind", KINDS)
def test_everything_that_can_be_clicked_is_clicked(browser, pages, kind):
    browser.open(pages[kind])
    assert len([one for one in browser.all("canvas") if one.is_displayed()]) >= (
        4 if kind != "hostile" else 1
    ), "the charts are drawn"
    for link in browser.all("nav a"):
        link.click()
        target = browser.find(link.get_attribute("href").split("/")[-1].split(".html")[-1])
        assert browser.run(
            "return arguments[0].getBoundingClientRect().top < innerHeight", target
        ), link.text
    for choice in browser.all("input[name=along]") + [browser.find("#logarithm")]:
        before = browser.picture("loss")
        browser.click(choice)
        assert choice.is_selected() and (
            choice.get_attribute("value") == "s" or browser.picture("loss") != before
        )
    for select in browser.all("select"):
        if select.is_displayed():
            options = select.find_elements("css selector", "option")
            assert len(options) > 1
            select.send_keys(Keys.END)
            browser.settle()
            assert options[-1].is_selected()
    browser.click(browser.find("#whole"))
    for button in browser.all("summary"):
        browser.click(button)
        assert button.find_element("xpath", "..").get_attribute("open") is not None


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("width", [320, 390, 768, 1280])
def test_no_page_is_wider_than_its_window(browser, pages, kind, width):
    browser.open(pages[kind], width=width)
    browser.run("document.querySelectorAll('details').forEach((one) => { one.open = true; })")
    browser.settle()
    wide = browser.run(
        "return Array.from(document.querySelectorAll('body *')).filter((one) =>"
        " one.getBoundingClientRect().right > innerWidth + 1 && !one.closest('.scroll, nav, .uplot,"
        " svg')).map((one) => one.tagName + '.' + one.className)"
    )
    assert browser.run("return document.documentElement.scrollWidth") <= width and wide == []


def test_the_theme_follows_the_system_until_the_switch_says_otherwise(browser, pages):
    ground = "return getComputedStyle(document.body).backgroundColor"
    browser.open(pages["failed"], scheme="light")
    light, drawn = browser.run(ground), browser.picture("loss")
    browser.open(pages["failed"], scheme="dark")
    dark = browser.run(ground)
    assert light != dark and browser.picture("loss") != drawn, "the charts change, too"
    switch = browser.find("#theme")
    seen = []
    for _turn in range(3):
        browser.click(switch)
        seen.append((switch.text, browser.run(ground), browser.picture("loss") == drawn))
    assert seen == [
        ("Theme: light", light, True),
        ("Theme: dark", dark, False),
        ("Theme: automatic", dark, False),
    ]
    switch.click()
    browser.driver.refresh()
    assert browser.run(ground) == light, "it is remembered"
    browser.run("localStorage.clear()")


def test_a_chart_is_looked_into_with_mouse_and_keys(browser, pages):
    browser.open(pages["completed"])
    plot, all_of_it, speed = (
        browser.find("[data-chart=loss]"),
        browser.picture("loss"),
        browser.picture("ips"),
    )
    plot.send_keys(Keys.ARROW_RIGHT, Keys.ARROW_RIGHT)
    browser.settle()
    value = [cell.text for cell in plot.find_elements("css selector", ".u-value")]
    # The legend shows the figures under the cursor.
    assert all(text and text != "–" for text in value)
    over = plot.find_element("css selector", ".u-over")
    ActionChains(browser.driver).move_to_element_with_offset(
        over, -60, 0
    ).click_and_hold().move_by_offset(120, 5).release().perform()
    browser.settle()
    # All charts look at the same part.
    assert browser.picture("loss") != all_of_it and browser.picture("ips") != speed
    plot.send_keys(Keys.ESCAPE)
    browser.settle()
    assert browser.picture("loss") == all_of_it and browser.picture("ips") == speed


def test_every_control_has_a_name_for_who_does_not_see_it(browser, pages):
    for kind in ("failed", "compared"):
        browser.open(pages[kind])
        found = browser.names()
        assert len(found) > 20 and [pair for pair in found if not pair[1].strip()] == []
        # A chart says what it shows.
        assert "from" in browser.find("[data-chart=loss]").get_attribute("aria-label")
    browser.open(pages["failed"])
    lanes = [name for _role, name in browser.names() if name.startswith("rank 1 on node2")]
    assert lanes and "rendezvous" in lanes[0] and "ValueError: image 000000012.jpg " in lanes[0]


@pytest.mark.parametrize("kind", ["failed", "completed", "compared"])
def test_links_lead_to_files_that_are_there(browser, pages, kind):
    browser.open(pages[kind])
    links = [link.get_attribute("href") for link in browser.all("main a")]
    assert links
    for link in links:
        path = Path(urllib.parse.unquote(urllib.parse.urlsplit(link).path))
        assert path.exists() and pages[kind].parent in path.parents, link


def test_paper_is_light_and_whole(browser, pages):
    browser.open(pages["failed"], scheme="dark")
    browser.run(
        "addEventListener('beforeprint', () => { window.printed ="
        " [document.querySelectorAll('details:not([open])').length,"
        " document.documentElement.dataset.theme]; })"
    )
    paper = browser.pdf()
    assert (
        paper.startswith(b"%PDF")
        and paper.count(b"/Type /Page\n") + paper.count(b"/Type /Page ") >= 2
    )
    assert browser.run("return window.printed") == [0, "light"]
    assert browser.run(
        "return document.documentElement.dataset.theme || null"
    ) is None and browser.all("details:not([open])"), "as it was"


def test_what_a_log_smuggles_in_does_nothing(browser, pages):
    browser.open(pages["hostile"])
    assert (
        browser.run("return window.pwned") is None
        and len(browser.all("script")) == 3
        and not browser.all("main img")
    )
    assert (
        "</script><script>window.pwned=1</script><img src=x onerror=window.pwned=1>{{ 7*7 }}"
        in browser.find("main").text
    )


def test_the_policy_holds_even_where_escaping_would_not(browser, pages):
    browser.open(pages["failed"])
    browser.expected = [
        "Content Security Policy",
        "127.0.0.1:9",
    ]  # said, and refused before it leaves
    browser.run(
        LISTEN
        + "; const bad = document.createElement('script'); bad.textContent = 'window.pwned = 1';"
        " document.body.append(bad); document.body.insertAdjacentHTML('beforeend', '<img"
        ' src="http://127.0.0.1:9/x" onerror="window.pwned = 2"><p style="color:'
        " red\">x</p>'); fetch('http://127.0.0.1:9/').catch(() => {})"
    )
    browser.driver.set_script_timeout(20)
    seen = browser.driver.execute_async_script(
        "const done = arguments[0]; const look = () => window.refused.length >= 4 ?"
        " done(window.refused) : setTimeout(look, 50); look()"
    )
    assert {"script-src-elem", "img-src", "style-src-attr", "connect-src"} <= set(
        seen
    ) and browser.run("return window.pwned") is None
