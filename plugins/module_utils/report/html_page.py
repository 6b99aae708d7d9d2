# SPDX-License-Identifier: Apache-2.0
"""The report as one HTML file that asks nobody for anything. Pure: a view and the page's parts in,
text out; controller only (jinja2).

A Content-Security-Policy allows the page's own script and style by their sha256 and nothing else:
what a log line smuggles in could not run even if it were not escaped. Data for the charts stand in
a block of JSON in which no `<` is left.
"""

from __future__ import annotations

import base64
import hashlib
import json
import os

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


def parts(folder):
    """Return {name: text} of the page's parts, read from the role's directory."""
    found = {}
    for name, path in PARTS.items():
        with open(os.path.join(folder, path), encoding="utf-8") as handle:
            found[name] = handle.read()
    return found


def quoted(data):
    """Return data as JSON that can stand in a script element: nothing in it can end the element,
    and there is no NaN.
    """
    text = json.dumps(data, allow_nan=False, ensure_ascii=True, separators=(",", ":"))
    return text.replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026")


def digest(text):
    """Return a Content-Security-Policy source for an inline element with this content."""
    return "'sha256-{}'".format(
        base64.b64encode(hashlib.sha256(text.encode("utf-8")).digest()).decode("ascii")
    )


def policy(page):
    """Return the Content-Security-Policy for the page's parts."""
    scripts = " ".join(digest(page[name]) for name in ("chart_script", "script"))
    styles = " ".join(digest(page[name]) for name in ("chart_style", "style"))
    rest = "base-uri 'none'; form-action 'none'"
    return f"default-src 'none'; script-src {scripts}; style-src {styles}; {rest}"


def render(view, page):
    """Return the page's text. view: report_view.view's or report_compare.view's; page: what parts()
    returned; `kind` says which it is.
    """
    for name in ("chart_script", "script", "chart_style", "style"):
        if "</" in page[name] and (
            "</script" in page[name].lower() or "</style" in page[name].lower()
        ):
            raise ValueError(f"{PARTS[name]} holds the end of its own element")
    environment = jinja2.Environment(
        autoescape=True, undefined=jinja2.StrictUndefined, trim_blocks=True, lstrip_blocks=True
    )
    shown = dict(view, data=Markup(quoted(view["data"])), policy=policy(page))
    shown.update({name: Markup(page[name]) for name in PARTS if name != "template"})
    return environment.from_string(page["template"]).render(shown)
