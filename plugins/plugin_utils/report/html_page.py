# SPDX-License-Identifier: Apache-2.0
"""The report as one HTML file that loads nothing from elsewhere. Pure.

A Content-Security-Policy allows the page's script and style by their sha256 and nothing else. So
even a script that a log line smuggled in unescaped could not run. Data for the charts stand in a
block of JSON without any `<`.
"""

from __future__ import annotations

import base64
import hashlib
import json
import os
from collections.abc import Mapping
from typing import Any

import jinja2
from markupsafe import Markup

# The page's parts below the role's directory: name -> path.
PARTS = {
    "template": "templates/report.html.j2",
    "style": "files/report.css",
    "script": "files/report.js",
    "chart_style": "files/uplot/uPlot.min.css",
    "chart_script": "files/uplot/uPlot.iife.min.js",
}


def parts(folder: str) -> dict[str, str]:
    """Return {name: text} of the page's parts, read from the role's directory."""
    texts = {}
    for name, path in PARTS.items():
        with open(os.path.join(folder, path), encoding="utf-8") as handle:
            texts[name] = handle.read()
    return texts


def quoted(data: object) -> str:
    """Return data as JSON for a script element.

    Nothing in it can end the element. Raises ValueError for NaN and infinite numbers.
    """
    text = json.dumps(data, allow_nan=False, ensure_ascii=True, separators=(",", ":"))
    return text.replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026")


def digest(text: str) -> str:
    """Return a Content-Security-Policy source for an inline element with this content."""
    sha256 = hashlib.sha256(text.encode("utf-8")).digest()
    return "'sha256-{}'".format(base64.b64encode(sha256).decode("ascii"))


def policy(page: Mapping[str, str]) -> str:
    """Return the Content-Security-Policy for the page's parts."""
    scripts = " ".join(digest(page[name]) for name in ("chart_script", "script"))
    styles = " ".join(digest(page[name]) for name in ("chart_style", "style"))
    rest = "base-uri 'none'; form-action 'none'"
    return f"default-src 'none'; script-src {scripts}; style-src {styles}; {rest}"


def render(view: Mapping[str, Any], page: Mapping[str, str]) -> str:
    """Return the page's text.

    view: report_view.view's or run_comparison.view's, as its `kind` says. page: the result of
    parts(). Raises ValueError for a part that holds the end of its element.
    """
    for name in ("chart_script", "script", "chart_style", "style"):
        text = page[name].lower()
        if "</script" in text or "</style" in text:
            raise ValueError(f"{PARTS[name]} holds the end of its own element")
    environment = jinja2.Environment(
        autoescape=True, undefined=jinja2.StrictUndefined, trim_blocks=True, lstrip_blocks=True
    )
    shown = dict(view, data=Markup(quoted(view["data"])), policy=policy(page))
    shown.update({name: Markup(page[name]) for name in PARTS if name != "template"})
    return environment.from_string(page["template"]).render(shown)
