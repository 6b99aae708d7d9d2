# SPDX-License-Identifier: Apache-2.0
# /// script
# requires-python = ">=3.11"
# dependencies = ["pillow==13.0.0", "pyte==0.8.2", "selenium==4.51.0"]
# ///
"""Make the pictures of the README from a real run.

    uv run docs/pictures/make_pictures.py record session.cast -- ansible-playbook ...
    uv run docs/pictures/make_pictures.py session session.cast docs/pictures/session.svg
    uv run docs/pictures/make_pictures.py report runs/RUN/report.html docs/pictures/report.png

`record` runs a command in a pseudo-terminal and writes what it prints as asciicast, version 2.
`session` draws such a recording as one animated SVG. `report` photographs a report in headless
Chromium (.config/browser.sh installs it).
"""

from __future__ import annotations

import argparse
import codecs
import fcntl
import html
import io
import json
import os
import pty
import shlex
import shutil
import struct
import sys
import termios
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

COLUMNS, ROWS = 110, 30
# Of the animation: how much faster than the recording it is, and limits for one frame in seconds.
SPEED, SHORTEST, LONGEST, LAST = 6.0, 0.25, 1.5, 6.0
CELL_WIDTH, CELL_HEIGHT, FONT_SIZE, MARGIN = 7.8, 17, 13, 10
COLOURS = {
    "black": "#484f58",
    "red": "#ff7b72",
    "green": "#56d364",
    "brown": "#e3b341",
    "blue": "#79c0ff",
    "magenta": "#d2a8ff",
    "cyan": "#76e3ea",
    "white": "#e6edf3",
    "default": "#e6edf3",
}
BACKGROUND = "#0d1117"
# The picture of a report: its window, and the most that the file may have.
REPORT_SIZE, REPORT_BYTES = (1280, 1010), 160_000


def record(target: Path, command: list[str]) -> int:
    """Run a command in a terminal and write its output with times. Return its exit code."""
    process, terminal = pty.fork()
    if process == 0:
        os.environ["TERM"] = "xterm-256color"
        os.execvp(command[0], command)
    fcntl.ioctl(terminal, termios.TIOCSWINSZ, struct.pack("HHHH", ROWS, COLUMNS, 0, 0))
    start = time.monotonic()
    with target.open("w", encoding="utf-8") as cast:
        head = {"version": 2, "width": COLUMNS, "height": ROWS, "command": shlex.join(command)}
        cast.write(json.dumps(head) + "\n")
        for text in _read_terminal(terminal):
            sys.stdout.write(text)
            event = [round(time.monotonic() - start, 3), "o", text]
            cast.write(json.dumps(event, ensure_ascii=False) + "\n")
    _process, status = os.waitpid(process, 0)
    return os.waitstatus_to_exitcode(status)


def _read_terminal(terminal: int) -> Iterator[str]:
    """Yield what a process prints to a terminal until it ends."""
    decoder = codecs.getincrementaldecoder("utf-8")("replace")
    while True:
        try:
            data = os.read(terminal, 65536)
        except OSError:  # Linux says so at the end of the last process
            return
        if not data:
            return
        yield decoder.decode(data)


def read_frames(source: Path) -> tuple[str, list[tuple[float, list[list[tuple[str, str, bool]]]]]]:
    """Return (command, frames) of a recording.

    A frame is (seconds that it is shown, rows). A row is a list of (text, colour, bold).
    """
    import pyte

    lines = source.read_text(encoding="utf-8").splitlines()
    head = json.loads(lines[0])
    screen = pyte.Screen(head["width"], head["height"])
    stream = pyte.Stream(screen)
    stream.feed(f"$ {head['command']}\r\n")
    states = [(0.0, _rows_of(screen))]
    for line in lines[1:]:
        moment, _kind, text = json.loads(line)
        stream.feed(text)
        rows = _rows_of(screen)
        if rows == states[-1][1]:
            continue
        if (moment - states[-1][0]) / SPEED < SHORTEST:
            states[-1] = (states[-1][0], rows)
        else:
            states.append((moment, rows))
    frames = []
    for (moment, rows), (following, _rows) in zip(states, states[1:], strict=False):
        frames.append((min(LONGEST, max(SHORTEST, (following - moment) / SPEED)), rows))
    frames.append((LAST, states[-1][1]))
    return head["command"], frames


def _rows_of(screen: Any) -> list[list[tuple[str, str, bool]]]:
    """Return the screen's rows as runs of cells of one look."""
    rows = []
    for row in range(screen.lines):
        runs: list[tuple[str, str, bool]] = []
        for column in range(screen.columns):
            cell = screen.buffer[row][column]
            look = (cell.fg.replace("bright", ""), cell.bold)
            if runs and runs[-1][1:] == look:
                runs[-1] = (runs[-1][0] + cell.data, *look)
            else:
                runs.append((cell.data, *look))
        while runs and not runs[-1][0].strip():
            runs.pop()
        rows.append(runs)
    return rows


def draw_session(source: Path, target: Path) -> None:
    """Draw a recording as an animated SVG. Each row is defined once, and frames refer to it."""
    command, frames = read_frames(source)
    names: dict[str, str] = {}
    groups, rules, begin = [], [], 0.0
    total = sum(seconds for seconds, _rows in frames)
    for number, (seconds, rows) in enumerate(frames):
        uses = []
        for index, runs in enumerate(rows):
            drawn = _draw_row(runs)
            if drawn:
                name = names.setdefault(drawn, f"r{len(names)}")
                uses.append(f'<use href="#{name}" y="{index * CELL_HEIGHT}"/>')
        groups.append(f'<g class="f" id="f{number}">{"".join(uses)}</g>')
        first, last = 100 * begin / total, 100 * (begin + seconds) / total
        rules.append(
            f"@keyframes k{number}{{0%,{first:.3f}%{{visibility:hidden}}"
            f"{first + 0.001:.3f}%,{last:.3f}%{{visibility:visible}}"
            f"{min(100, last + 0.001):.3f}%,100%{{visibility:hidden}}}}"
            f"#f{number}{{animation-name:k{number}}}"
        )
        begin += seconds
    width = COLUMNS * CELL_WIDTH + 2 * MARGIN
    height = ROWS * CELL_HEIGHT + 2 * MARGIN
    style = (
        f"text{{font:{FONT_SIZE}px 'DejaVu Sans Mono',Menlo,Consolas,monospace;"
        "white-space:pre}.b{font-weight:bold}"
        f".f{{visibility:hidden;animation-duration:{total:.2f}s;"
        "animation-iteration-count:infinite;animation-timing-function:step-end}"
        # Without motion the last frame stays.
        f"@media(prefers-reduced-motion:reduce){{.f{{animation:none!important}}"
        f"#f{len(frames) - 1}{{visibility:visible}}}}"
    )
    defs = "".join(f'<g id="{name}">{drawn}</g>' for drawn, name in names.items())
    target.write_text(
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width:.0f} {height:.0f}"'
        f' width="{width:.0f}" height="{height:.0f}" role="img">'
        f"<title>{html.escape(command)}</title><style>{style}{''.join(rules)}</style>"
        f'<rect width="100%" height="100%" rx="8" fill="{BACKGROUND}"/><defs>{defs}</defs>'
        f'<g transform="translate({MARGIN} {MARGIN + FONT_SIZE})">{"".join(groups)}</g></svg>\n',
        encoding="utf-8",
    )
    print(f"{target}: {len(frames)} frames, {total:.0f} s, {target.stat().st_size} bytes")


def _draw_row(runs: list[tuple[str, str, bool]]) -> str:
    """Return a row as texts of SVG, each at its column."""
    parts, column = [], 0
    for text, colour, bold in runs:
        shown = text.rstrip()
        if shown:
            marks = ""
            if bold:
                marks = ' class="b"'
            start = column + len(shown) - len(shown.lstrip())
            shown = shown.lstrip()
            parts.append(
                f'<text x="{start * CELL_WIDTH:.1f}" fill="{COLOURS.get(colour, "#e6edf3")}"'
                f'{marks} textLength="{len(shown) * CELL_WIDTH:.1f}">{html.escape(shown)}</text>'
            )
        column += len(text)
    return "".join(parts)


def photograph_report(page: Path, target: Path) -> None:
    """Write the top of a report as PNG with at most 256 colours."""
    from PIL import Image
    from selenium import webdriver
    from selenium.webdriver.chrome.service import Service

    options = webdriver.ChromeOptions()
    options.binary_location = str(shutil.which("chromium"))
    for switch in ("--headless=new", "--no-sandbox", "--disable-dev-shm-usage", "--disable-gpu"):
        options.add_argument(switch)
    options.add_argument("--hide-scrollbars")
    options.add_argument("--host-resolver-rules=MAP * ~NOTFOUND")
    driver = webdriver.Chrome(options=options, service=Service(shutil.which("chromedriver")))
    try:
        width, height = REPORT_SIZE
        driver.execute_cdp_cmd(
            "Emulation.setDeviceMetricsOverride",
            {"width": width, "height": height, "deviceScaleFactor": 1, "mobile": False},
        )
        driver.get(page.resolve().as_uri())
        driver.execute_async_script(
            "const done = arguments[0];"
            "requestAnimationFrame(() => requestAnimationFrame(() => done()))"
        )
        picture = Image.open(io.BytesIO(driver.get_screenshot_as_png()))
    finally:
        driver.quit()
    picture.convert("RGB").quantize(256).save(target, optimize=True)
    size = target.stat().st_size
    print(f"{target}: {size} bytes")
    if size > REPORT_BYTES:
        raise SystemExit(f"{target} has more than {REPORT_BYTES} bytes: choose a smaller window")


def main() -> int:
    """Do one of the three steps."""
    parser = argparse.ArgumentParser(description="Make the pictures of the README.")
    steps = parser.add_subparsers(dest="step", required=True)
    recording = steps.add_parser("record", help="run a command and record its terminal")
    recording.add_argument("target", type=Path)
    recording.add_argument("command", nargs=argparse.REMAINDER)
    for name, text in (("session", "draw a recording"), ("report", "photograph a report")):
        step = steps.add_parser(name, help=text)
        step.add_argument("source", type=Path)
        step.add_argument("target", type=Path)
    arguments = parser.parse_args()
    if arguments.step == "record":
        command = [word for word in arguments.command if word != "--"]
        return record(arguments.target, command)
    if arguments.step == "session":
        draw_session(arguments.source, arguments.target)
    else:
        photograph_report(arguments.source, arguments.target)
    return 0


if __name__ == "__main__":
    sys.exit(main())
