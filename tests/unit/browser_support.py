# SPDX-License-Identifier: Apache-2.0
"""A headless Chromium that writes down what a page says to its console and whom it asks for
anything.
"""

from __future__ import annotations

import base64
import json

from selenium import webdriver
from selenium.webdriver.chrome.service import Service

# Root in a container has no user namespaces and little shared memory. Nothing but our own file is
# opened, and no name is resolved.
SWITCHES = (
    "--headless=new", "--no-sandbox", "--disable-dev-shm-usage", "--disable-gpu",
    "--hide-scrollbars", "--no-first-run", "--disable-extensions",
    "--disable-background-networking", "--disable-component-update", "--disable-sync",
    "--host-resolver-rules=MAP * ~NOTFOUND",
)  # fmt: skip


class Browser:
    """One window. Every page is opened as a reader would: from its file."""

    def __init__(self, binary, driver):
        options = webdriver.ChromeOptions()
        options.binary_location = binary
        for switch in SWITCHES:
            options.add_argument(switch)
        options.set_capability("goog:loggingPrefs", {"browser": "ALL", "performance": "ALL"})
        self.driver = webdriver.Chrome(options=options, service=Service(driver))

    def tell(self, command, **arguments):
        """Send a command of the DevTools protocol; return its answer."""
        return self.driver.execute_cdp_cmd(command, arguments)

    def open(self, path, width=1280, height=900, scheme="light"):
        """Open a file in a window of this width, on a system of this colour scheme, and wait for
        its charts.
        """
        wishes = {"prefers-color-scheme": scheme, "prefers-reduced-motion": "reduce"}
        self.tell(
            "Emulation.setEmulatedMedia",
            features=[{"name": name, "value": value} for name, value in wishes.items()],
        )
        self.tell(
            "Emulation.setDeviceMetricsOverride",
            width=width,
            height=height,
            deviceScaleFactor=1,
            mobile=width < 600,
        )
        self.console(), self.asked()
        self.driver.get(f"file://{path}")
        self.settle()

    def settle(self):
        """Wait until what was asked for is drawn: two frames."""
        self.driver.execute_async_script(
            "const done = arguments[0]; requestAnimationFrame(() => requestAnimationFrame(() =>"
            " done()))"
        )

    def run(self, script, *arguments):
        return self.driver.execute_script(script, *arguments)

    def find(self, selector):
        return self.driver.find_element("css selector", selector)

    def all(self, selector):
        return self.driver.find_elements("css selector", selector)

    def click(self, element):
        """Bring an element to the window's middle, where nothing lies over it, and click it."""
        self.run("arguments[0].scrollIntoView({block: 'center'})", element)
        element.click()
        self.settle()

    def console(self):
        """Return what was said on the console since the last look."""
        return [
            "{} {}".format(entry["level"], entry["message"])
            for entry in self.driver.get_log("browser")
        ]

    def asked(self):
        """Return the addresses that were asked for anything since the last look."""
        messages = [
            json.loads(entry["message"])["message"] for entry in self.driver.get_log("performance")
        ]
        return [
            message["params"]["request"]["url"]
            for message in messages
            if message["method"] == "Network.requestWillBeSent"
        ]

    def pdf(self):
        """Print the page on A4; return the PDF's bytes."""
        answer = self.tell(
            "Page.printToPDF", printBackground=True, paperWidth=8.27, paperHeight=11.69
        )
        return base64.b64decode(answer["data"])

    def picture(self, chart):
        """Return a chart's pixels, to be compared with another time's."""
        return self.run(
            f"return document.querySelector('[data-chart=\"{chart}\"] canvas').toDataURL()"
        )

    def names(self):
        """Return [(role, name)] of all that can be used, as a screen reader is told."""
        wanted = (
            "button",
            "link",
            "radio",
            "checkbox",
            "combobox",
            "DisclosureTriangle",
            "image",
            "img",
            "table",
            "region",
        )
        nodes = self.tell("Accessibility.getFullAXTree")["nodes"]
        found = [
            (node["role"]["value"], node.get("name", {}).get("value", ""))
            for node in nodes
            if not node.get("ignored")
        ]
        return [pair for pair in found if pair[0] in wanted]
