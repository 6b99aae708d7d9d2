# SPDX-License-Identifier: Apache-2.0
"""A command in a printed text is complete: the terminal adds the inventory in use to it."""

from __future__ import annotations

import ast
import re

import pytest
from core_support import ROOT

# An inventory stands where the one in use would be the wrong one.
BARE = re.compile(
    r"(?<!ansible-playbook )(?<!-i INVENTORY )(?<!-i inventory/local )"
    r"(?<![\w/.~-])playbooks/[a-z_]+\.yml"
)
FOLDERS = ("plugins", "library", "src")
# Paths that are not printed.
PATHS = ("playbooks/train.yml",)
# These strings of a module or plugin are read as pages.
PAGES = ("DOCUMENTATION", "EXAMPLES", "RETURN")


def is_page(node):
    return isinstance(node, ast.Assign) and getattr(node.targets[0], "id", "") in PAGES


def texts(source):
    """Yield (line, text) of each string of a Python file that is neither docstring nor page.

    Adjacent strings are one. A value in braces becomes `{}`.
    """
    tree = ast.parse(source)
    skipped = {
        id(node.value) for node in ast.walk(tree) if isinstance(node, ast.Expr) or is_page(node)
    }
    for node in ast.walk(tree):
        if isinstance(node, ast.JoinedStr):
            skipped.update(map(id, node.values))
    for node in ast.walk(tree):
        if isinstance(node, ast.JoinedStr):
            parts = [part.value if isinstance(part, ast.Constant) else "{}" for part in node.values]
            yield node.lineno, "".join(parts)
        elif isinstance(node, ast.Constant) and isinstance(node.value, str):
            if id(node) not in skipped:
                yield node.lineno, node.value


def bare_commands(source):
    return [(line, text) for line, text in texts(source) if BARE.search(text) and text not in PATHS]


def test_no_text_of_a_program_names_a_playbook_without_its_command():
    files = [path for folder in FOLDERS for path in sorted((ROOT / folder).rglob("*.py"))]
    assert len(files) > 300
    wrong = {str(path): bare_commands(path.read_text("utf-8")) for path in files}
    assert {path: found for path, found in wrong.items() if found} == {}


def test_no_message_of_a_role_names_a_playbook_without_its_command():
    lines = [
        f"{path}: {line.strip()}"
        for path in sorted((ROOT / "roles").glob("*/tasks/*.yml"))
        for line in path.read_text("utf-8").splitlines()
        if not line.lstrip().startswith("#") and BARE.search(line)
    ]
    # The guard of a role that was imported whole is for those who write playbooks.
    assert [line for line in lines if "tasks_from" not in line] == []


@pytest.mark.parametrize(
    ("source", "count"),
    [
        ('x = f"stop it: playbooks/stop.yml -e run={run}"', 1),
        ('x = ("run ansible-playbook" " playbooks/stop.yml")', 0),
        ('x = "stop it:" " playbooks/stop.yml"', 1),
        ('"""See playbooks/stop.yml."""', 0),
        ('x = "/opt/playbooks/stop.yml"', 0),
        ('DOCUMENTATION = "see playbooks/stop.yml"', 0),
    ],
)
def test_the_search_finds_what_it_looks_for(source, count):
    assert len(bare_commands(source)) == count
