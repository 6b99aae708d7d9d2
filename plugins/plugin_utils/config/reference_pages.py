# SPDX-License-Identifier: Apache-2.0
"""The pages of docs/reference/: every key of a site and of a job, and every option of a verb.

`make reference` writes them. Types and allowed values come from the schemas and from the roles'
argument specs, and the options of a verb from its playbook. reference_texts.yml has the sentences
and examples.
"""

from __future__ import annotations

import glob
import os
import re
import sys
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

import yaml
from ansible.plugins.filter import core as ansible_filters
from jinja2.nativetypes import NativeEnvironment

from .job import JOB_DEFAULTS, SITE_VARIABLES, load_schema

TEXTS = os.path.join(os.path.dirname(os.path.abspath(__file__)), "reference_texts.yml")
JOB_CONFIG = "trainyard.cluster.job_config"
NOTIFY = "trainyard_notify"
# The parts of the role preflight that read the command line, and whether they read it for a run
# that goes on.
# The one playbook of others that reads options for them.
READ_JOB = "includes/read_job.yml"
READERS = {"read": False, "validate_cli": True}
KINDS = {
    "string": "text",
    "integer": "whole number",
    "number": "number",
    "boolean": "true or false",
    "object": "mapping",
    "array": "list",
    "null": "null",
}
ROLE_KINDS = {
    "str": "text",
    "path": "path",
    "int": "whole number",
    "float": "number",
    "bool": "true or false",
    "dict": "mapping",
    "list": "list",
}
# What a template of a role's default falls back to.
FALLBACK = re.compile(
    r"\{\{ *\w+ \| default\((?:'([^']*)'|([0-9.]+|true|false))(?:, true)?\)(?: \| \w+)* *\}\}\Z"
)
HEAD = """\
<!-- Made by `make reference`. Change plugins/plugin_utils/config/reference_texts.yml instead. -->
"""
JOB_HEAD = """\
# Keys of a job

{head}
A job is one YAML file ([write a job](../runbooks/job.md)).
It says what is trained, and never where.
A key of a mapping is written with a dot here. In the file it is a nested key.
"""
SITE_HEAD = """\
# Keys of a site

{head}
A site is an inventory with its `group_vars` ([first day on a real site](../runbooks/real-site.md)).
Give a key once for the group, or as a host variable if one node differs.
"""
SUITE_HEAD = """\
## One suite

`trainyard_suites` has one entry per suite. The keys of an entry are:
"""
ROLE_HEAD = """\
## Variables of the roles

They change limits and habits. Give them in `group_vars/all.yml`, or with `-e` for one command.
"""
OPTION_HEAD = """\
# Options of the verbs

{head}
Every option is given as `-e NAME=VALUE`. A misspelt name is refused.
Each verb also takes the site's `trainyard_*` variables ([keys of a site](site-keys.md)) and the
variables of the roles. With `--check`, a verb shows what it would do.
"""
VERB_HEAD = """\
## Options of each verb
"""

Texts = dict[str, dict[str, dict[str, Any]]]


class Row(NamedTuple):
    """One key with the cells of its line."""

    key: str
    kind: str
    default: str
    allowed: str
    means: str
    example: str


def read_texts(path: str = TEXTS) -> Texts:
    """Return {section: {key: {means, example, ...}}} of the data file."""
    with open(path, encoding="utf-8") as handle:
        texts: Texts = yaml.safe_load(handle)
    return texts


def job_rows(texts: Texts) -> list[Row]:
    """Return one Row per key of a job, in the order of the schema."""
    schema = load_schema("job")
    rows = []
    for path, part, required in walk_schema(schema):
        entry = texts["job"].get(".".join(path), {})
        default = ""
        if len(path) == 1:
            default = _code_of(JOB_DEFAULTS.get(path[0]))
        if required:
            default = "required"
        rows.append(_row_of(path, part, entry, default, _example_of(texts["job"], path)))
    return rows


def suite_rows(texts: Texts) -> list[Row]:
    """Return one Row per key of an entry of trainyard_suites."""
    rows = []
    for path, part, required in walk_schema(load_schema("site")):
        entry = texts["suite"].get(".".join(path), {})
        default = ""
        if required:
            default = "required"
        rows.append(_row_of(path, part, entry, default, _example_of(texts["suite"], path)))
    return rows


def site_rows(texts: Texts) -> list[Row]:
    """Return one Row per variable of a site."""
    rows = []
    for name in SITE_VARIABLES:
        entry = texts["site"].get(name, {})
        rows.append(_row_of((name,), {}, entry, "", _example_of(texts["site"], (name,))))
        if name == NOTIFY:
            rows += _notify_rows(texts)
    return rows


def _notify_rows(texts: Texts) -> list[Row]:
    """Return one Row per key of an entry of trainyard_notify."""
    rows = []
    for (key,), part, _required in walk_schema(load_schema("notify")["items"]):
        path = (NOTIFY, key)
        entry = texts["site"].get(".".join(path), {})
        rows.append(_row_of(path, part, entry, "", _example_of(texts["site"], path)))
    return rows


def role_rows(project: str) -> list[Row]:
    """Return one Row per public variable of a role.

    project: the product's directory. What a playbook has to give is not a variable of a site.
    """
    rows = {}
    for path in sorted(
        glob.glob(os.path.join(project, "roles", "*", "meta", "argument_specs.yml"))
    ):
        with open(path, encoding="utf-8") as handle:
            specs = yaml.safe_load(handle)["argument_specs"]
        for entry in specs.values():
            for name, option in (entry.get("options") or {}).items():
                if option.get("required") or name.startswith("trainyard_"):
                    continue
                rows[name] = _role_row(name, option)
    return [rows[name] for name in sorted(rows)]


def _role_row(name: str, option: Mapping[str, Any]) -> Row:
    """Return the Row of a role's variable. option: its argument spec."""
    kind = ROLE_KINDS.get(option.get("type", "str"), "text")
    allowed = ", ".join(f"`{choice}`" for choice in option.get("choices") or [])
    if option.get("options"):
        allowed = "keys " + ", ".join(f"`{key}`" for key in option["options"])
    means = option["description"]
    if isinstance(means, list):
        means = " ".join(means)
    means = re.sub(r"\b[CO]\(([^)]*)\)", r"`\1`", means)  # Ansible's markup
    default = option.get("default")
    if isinstance(default, str) and "{{" in default:
        found = FALLBACK.match(default)
        if not found:
            return Row(name, kind, "set by the product", allowed, means, "")
        default = yaml.safe_load(found.group(1) or found.group(2) or "''")
    return Row(name, kind, _code_of(default), allowed, means, f"`{name}: {_flow(default)}`")


def walk_schema(
    schema: Mapping[str, Any], root: Mapping[str, Any] | None = None
) -> Iterator[tuple[tuple[str, ...], Mapping[str, Any], bool]]:
    """Yield (path, schema, whether it is required) of every named key of a JSON schema.

    root: the schema that the references start at. A key that the user names is `<name>`.
    """
    root = root or schema
    required = schema.get("required") or []
    for name, part in (schema.get("properties") or {}).items():
        part = _resolve(part, root)
        yield (name,), part, name in required
        for path, below, needed in _walk_below(part, root):
            yield (name, *path), below, needed


def _walk_below(
    part: Mapping[str, Any], root: Mapping[str, Any]
) -> Iterator[tuple[tuple[str, ...], Mapping[str, Any], bool]]:
    """Yield what walk_schema yields of a key's own keys."""
    yield from walk_schema(part, root)
    items = part.get("items")
    if isinstance(items, Mapping) and items.get("properties"):
        yield from walk_schema(items, root)
    named = part.get("additionalProperties")
    if isinstance(named, Mapping) and named.get("properties"):
        for path, below, needed in walk_schema(named, root):
            yield ("<name>", *path), below, needed


def _resolve(part: Any, root: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return the schema of a key, with its reference followed."""
    if "$ref" not in part:
        return dict(part)
    found: Any = root
    for name in part["$ref"].removeprefix("#/").split("/"):
        found = found[name]
    return dict(found)


def describe_kind(part: Mapping[str, Any]) -> str:
    """Return the type of a schema in words."""
    if "anyOf" in part and "type" not in part:
        kinds = [describe_kind(choice) for choice in part["anyOf"]]
        return " or ".join(dict.fromkeys(kinds))
    if "enum" in part or "const" in part:
        values = part.get("enum", [part.get("const")])
        if all(isinstance(value, bool) for value in values):
            return KINDS["boolean"]
        return KINDS["string"]
    names = part.get("type", [])
    if isinstance(names, str):
        names = [names]
    kinds = [KINDS[name] for name in names]
    items = part.get("items")
    if kinds == ["list"] and isinstance(items, Mapping) and isinstance(items.get("type"), str):
        return f"list of {KINDS[items['type']]}s"
    return ", ".join(kinds) or "text or mapping"


def describe_allowed(part: Mapping[str, Any]) -> str:
    """Return the allowed values of a schema in words, or an empty text."""
    if "anyOf" in part:
        parts = [describe_allowed(choice) for choice in part["anyOf"]]
        return ", ".join(text for text in dict.fromkeys(parts) if text)
    if "enum" in part:
        return ", ".join(_code_of(value) for value in part["enum"])
    if "const" in part:
        return _code_of(part["const"])
    least, most = part.get("minimum"), part.get("maximum")
    if least is not None and most is not None:
        return f"{least} to {most}"
    if least is not None:
        return f"{least} or more"
    if "exclusiveMinimum" in part:
        return f"more than {part['exclusiveMinimum']}"
    return ""


def verb_options(project: str) -> dict[str, list[str]]:
    """Return {verb: [options]} of the playbooks that users call."""
    verbs = {}
    for path in sorted(glob.glob(os.path.join(project, "playbooks", "*.yml"))):
        with open(path, encoding="utf-8") as handle:
            plays = yaml.safe_load(handle)
        options = list(_options_of(plays, project))
        verbs[os.path.basename(path)] = list(dict.fromkeys(options))
    return verbs


def _options_of(entries: Any, project: str) -> Iterator[str]:
    """Yield the options that a playbook's tasks read from the command line."""
    for entry in entries or []:
        if not isinstance(entry, dict):
            continue
        if entry.get("ansible.builtin.import_playbook") == READ_JOB:
            with open(os.path.join(project, "playbooks", READ_JOB), encoding="utf-8") as handle:
                yield from _options_of(yaml.safe_load(handle), project)
        yield from (entry.get(JOB_CONFIG) or {}).get("extra") or []
        role = entry.get("ansible.builtin.import_role") or {}
        if role.get("name") == "preflight" and role.get("tasks_from") in READERS:
            resumed = READERS[role["tasks_from"]]
            if not resumed:
                yield "config"
            yield from preflight_options(project, resumed)
        for part in ("tasks", "pre_tasks", "post_tasks", "block", "rescue", "always"):
            yield from _options_of(entry.get(part), project)


def preflight_options(project: str, resumed: bool) -> list[str]:
    """Return the options of a verb that reads a job, as the role preflight lists them.

    resumed: whether the verb goes on with a run.
    """
    path = os.path.join(project, "roles", "preflight", "vars", "main.yml")
    with open(path, encoding="utf-8") as handle:
        variables = yaml.safe_load(handle)
    environment = NativeEnvironment()  # the product's own expressions, never a user's text
    environment.filters.update(ansible_filters.FilterModule().filters())
    context = {"__preflight_words": variables["__preflight_words"]}
    if resumed:
        context["launch_resume_decision"] = {}
    options = environment.from_string(variables["__preflight_extra"]).render(context)
    return [str(name) for name in options]


def missing_texts(texts: Texts, project: str) -> list[str]:
    """Return the keys and options that have no sentence or no example in the data file."""
    missing = []
    rows = {"job": job_rows(texts), "suite": suite_rows(texts), "site": site_rows(texts)}
    rows["options"] = option_rows(texts, project)
    for section, found in rows.items():
        missing += [f"{section}: {row.key}" for row in found if not (row.means and row.example)]
    return missing


def option_rows(texts: Texts, project: str) -> list[Row]:
    """Return one Row per option of a verb."""
    names = {name for options in verb_options(project).values() for name in options}
    schema = load_schema("job")["properties"]
    rows = []
    for name in sorted(names):
        entry = texts["options"].get(name, {})
        example = entry.get("example", "")
        if example:
            example = f"`{example}`"
        rows.append(_row_of((name,), schema.get(name, {}), entry, "", example))
    return rows


def _row_of(
    path: tuple[str, ...],
    part: Mapping[str, Any],
    entry: Mapping[str, Any],
    default: str,
    example: str,
) -> Row:
    """Return a Row. What the data file says of a key replaces what its schema says."""
    kind = entry.get("type")
    if kind is None:
        kind = describe_kind(part)
    allowed = entry.get("allowed")
    if allowed is None:
        allowed = describe_allowed(part)
    return Row(
        ".".join(path),
        kind,
        str(entry.get("default", default)),
        allowed,
        entry.get("means", ""),
        example,
    )


def _example_of(entries: Mapping[str, Mapping[str, Any]], path: tuple[str, ...]) -> str:
    """Return a key's example as YAML, its own or the part of one above it."""
    for length in range(len(path), 0, -1):
        entry = entries.get(".".join(path[:length]), {})
        if "example" not in entry:
            continue
        value = entry["example"]
        for name in path[length:]:
            value = _part_of(value, name)
        if value is None:
            continue
        return f"`{path[-1]}: {_flow(value)}`"
    return ""


def _part_of(value: Any, name: str) -> Any:
    """Return a part of an example, or None. `<name>` is the first key of a mapping."""
    if isinstance(value, list) and value:
        value = value[0]
    if not isinstance(value, Mapping):
        return None
    if name == "<name>":
        return next(iter(value.values()), None)
    return value.get(name)


def _flow(value: Any) -> str:
    """Return a value as YAML in one line."""
    text = yaml.safe_dump(
        value, default_flow_style=True, width=10_000, allow_unicode=True, sort_keys=False
    )
    return " ".join(text.removesuffix("...\n").split())


def _code_of(value: Any) -> str:
    """Return a value as code of Markdown, an empty one as an empty text."""
    if value is None or value == "":
        return ""
    return f"`{_flow(value)}`"


def _render_table(rows: list[Row], key: str) -> str:
    """Return a table of rows. key: the title of the first column."""
    lines = [f"| {key} | type | default | allowed | meaning | example |", "|" + " --- |" * 6]
    for row in rows:
        cells = [f"`{row.key}`", *row[1:]]
        shown = [" ".join(cell.split()).replace("|", "\\|") or "-" for cell in cells]
        lines.append(f"| {' | '.join(shown)} |")
    return "\n".join(lines) + "\n"


def render_pages(texts: Texts, project: str) -> dict[str, str]:
    """Return {file name: page} of docs/reference/."""
    verbs = ["| verb | options |", "| --- | --- |"]
    for verb, options in verb_options(project).items():
        shown = ", ".join(f"`{name}`" for name in options) or "-"
        verbs.append(f"| `{verb}` | {shown} |")
    return {
        "job-keys.md": "\n".join(
            [JOB_HEAD.format(head=HEAD), _render_table(job_rows(texts), "key")]
        ),
        "site-keys.md": "\n".join(
            [
                SITE_HEAD.format(head=HEAD),
                _render_table(site_rows(texts), "key"),
                SUITE_HEAD,
                _render_table(suite_rows(texts), "key"),
                ROLE_HEAD,
                _render_table(role_rows(project), "variable"),
            ]
        ),
        "options.md": "\n".join(
            [
                OPTION_HEAD.format(head=HEAD),
                _render_table(option_rows(texts, project), "option"),
                VERB_HEAD,
                "\n".join(verbs) + "\n",
            ]
        ),
    }


def main(folder: str) -> None:
    """Write the pages. folder: docs/reference of the product."""
    project = os.path.dirname(os.path.dirname(os.path.abspath(folder)))
    os.makedirs(folder, exist_ok=True)
    for name, page in render_pages(read_texts(), project).items():
        with open(os.path.join(folder, name), "w", encoding="utf-8") as handle:
            handle.write(page)


if __name__ == "__main__":
    main(sys.argv[1])
