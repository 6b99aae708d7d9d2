# SPDX-License-Identifier: Apache-2.0
"""The pages of docs/reference/ have every key and option, and examples that the product accepts."""

from __future__ import annotations

import re

import pytest
import yaml
from ansible_collections.trainyard.cluster.plugins.plugin_utils.base import yaml_source
from ansible_collections.trainyard.cluster.plugins.plugin_utils.config import (
    extra_vars,
    reference_pages,
)
from ansible_collections.trainyard.cluster.plugins.plugin_utils.config import job as jobs
from ansible_collections.trainyard.cluster.plugins.plugin_utils.config import site as sites
from core_support import ROOT

PAGES = ROOT / "docs" / "reference"
TEXTS = reference_pages.read_texts()
JOB = {"suite": "paddledetection", "launcher": "paddle", "config": "configs/a.yml"}
SITE = {
    "trainyard_accelerator": "gpu",
    "trainyard_devices": 8,
    "trainyard_suites": TEXTS["site"]["trainyard_suites"]["example"],
}
WITH_EXAMPLE = {
    section: [key for key, entry in entries.items() if "example" in entry]
    for section, entries in TEXTS.items()
}


@pytest.mark.parametrize("name, page", reference_pages.render_pages(TEXTS, str(ROOT)).items())
def test_a_page_is_the_generated_one(name, page):
    assert (PAGES / name).read_text(encoding="utf-8") == page, "make reference"


def test_every_key_and_option_has_a_sentence_and_an_example():
    """Add it to plugins/plugin_utils/config/reference_texts.yml, and run `make reference`."""
    assert reference_pages.missing_texts(TEXTS, str(ROOT)) == []


def test_the_texts_are_of_keys_and_options_that_exist():
    rows = {
        "job": reference_pages.job_rows(TEXTS),
        "suite": reference_pages.suite_rows(TEXTS),
        "site": reference_pages.site_rows(TEXTS),
        "options": reference_pages.option_rows(TEXTS, str(ROOT)),
    }
    for section, found in rows.items():
        assert set(TEXTS[section]) <= {row.key for row in found}, section
    known = {"means", "example", "type", "default", "allowed"}
    assert all(set(entry) <= known for entries in TEXTS.values() for entry in entries.values())


@pytest.mark.parametrize("key", WITH_EXAMPLE["job"])
def test_the_example_of_a_job_key_is_valid(key):
    job = {**JOB, key: TEXTS["job"][key]["example"]}
    assert yaml_source.validate(job, jobs.load_schema("job"), {}, "job") == []


# These are valid beside an address or a path only.
PARTS = ("version", "placement", "follow_links")


@pytest.mark.parametrize("key", [key for key in WITH_EXAMPLE["suite"] if not key.endswith(PARTS)])
def test_the_example_of_a_suites_key_is_valid(key):
    name, _dot, part = key.partition(".")
    entry = dict(SITE["trainyard_suites"]["paddledetection"])
    value = TEXTS["suite"][key]["example"]
    if part:
        value = {part: value}
    if key == "code.git":
        value["version"] = TEXTS["suite"]["code.version"]["example"]
    entry[name] = value
    assert yaml_source.validate(entry, jobs.load_schema("site"), {}, "site") == []


@pytest.mark.parametrize("name", [name for name in WITH_EXAMPLE["site"] if "." not in name])
def test_the_example_of_a_site_variable_is_valid(name):
    variables = {**SITE, name: TEXTS["site"][name]["example"], "ansible_host": "192.0.2.1"}
    hostvars = {"node1": variables}
    _site, problems = sites.read_site({"all": ["node1"], "trainers": ["node1"]}, hostvars)
    assert problems == []


@pytest.mark.parametrize("name", WITH_EXAMPLE["options"])
def test_the_example_of_an_option_is_one_that_the_verbs_accept(name):
    example = TEXTS["options"][name]["example"]
    value = re.fullmatch(rf"-e (?:'\{{\"{name}\": (.*)\}}'|{name}='?(.*?)'?)", example)
    assert value, example
    parsed = yaml.safe_load(value.group(1)) if value.group(1) else value.group(2)
    assert extra_vars.validate({name: parsed}, [name], {}) == []


def test_the_options_of_a_verb_are_what_its_playbook_passes():
    options = reference_pages.verb_options(str(ROOT))
    assert options["logs.yml"] == ["run", "rank", "node", "lines", "follow", "query"]
    assert {"config", "nodes", "verify", *jobs.OVERRIDING} <= set(options["train.yml"])
    assert "run" in options["resume.yml"] and "config" not in options["resume.yml"]
    assert options["local_down.yml"] == []
