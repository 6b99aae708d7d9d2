# SPDX-License-Identifier: Apache-2.0
"""Pages, docstrings, comments, messages and task names use no word of words.yml more often.

word_counts.yml has how often each file may use one. The numbers may only become smaller. After a
correction, `python tests/system/test_words.py` writes the smaller numbers; it never raises one. A
file that was renamed takes its number with it.
"""

from __future__ import annotations

import io
import re
import subprocess
import sys
import tokenize
from pathlib import Path

import pytest
import yaml

ROOT = Path(__file__).resolve().parents[2]
COUNTS = Path(__file__).with_name("word_counts.yml")
WORDS = yaml.safe_load(Path(__file__).with_name("words.yml").read_text("utf-8"))["words"]
PATTERN = re.compile(rf"\b({'|'.join(word['pattern'] for word in WORDS)})\b", re.IGNORECASE)

# The same in C, where there is one: six times as fast.
LOADER = getattr(yaml, "CSafeLoader", yaml.SafeLoader)

FOLDERS = ("docs", "library", "playbooks", "plugins", "roles")
# What others have written, what is past, and what is not English.
EXCLUDED = {"docs/contract.md", "docs/README.zh-CN.md"}
# The values in YAML that a person reads. What is between braces is Jinja, where `is none` is a
# test.
KEYS = {"name", "description", "short_description", "msg", "fail_msg", "success_msg", "title"}
JINJA = re.compile(r"\{\{.*?\}\}|\{%.*?%\}", re.DOTALL)
COMMENT = re.compile(r"(?:^|\s)#.*")


def python_prose(source):
    """Return the comments and texts of Python source; `is None` is code."""
    tokens = tokenize.generate_tokens(io.StringIO(source).readline)
    kinds = [(tokenize.tok_name[token.type], token.string) for token in tokens]
    return [text for kind, text in kinds if kind in ("COMMENT", "STRING", "FSTRING_MIDDLE")]


def yaml_prose(source):
    """Return the comments of YAML, and the values that a person reads."""
    found = COMMENT.findall(source)
    nodes = [node for node in yaml.compose_all(source, LOADER) if node]
    while nodes:
        node = nodes.pop()
        if isinstance(node, yaml.SequenceNode):
            nodes += node.value
        if isinstance(node, yaml.MappingNode):
            nodes += [value for _key, value in node.value]
            found += [text for key, value in node.value for text in _texts(key, value)]
    return found


def _texts(key, value):
    """Return the texts of a value whose key says that a person reads it."""
    if key.value not in KEYS:
        return []
    items = [value]
    if isinstance(value, yaml.SequenceNode):
        items = value.value
    return [JINJA.sub("", item.value) for item in items if isinstance(item, yaml.ScalarNode)]


READERS = {".py": python_prose, ".yml": yaml_prose, ".md": lambda source: [source]}


def prose_files():
    """Return the files that the rule is for, as paths below the project."""
    done = subprocess.run(
        ["git", "ls-files", "--", *FOLDERS, "*.md"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=True,
    )
    return [
        name
        for name in done.stdout.splitlines()
        if name.startswith(tuple(f"{folder}/" for folder in FOLDERS)) or "/" not in name
        if Path(name).suffix in READERS and name not in EXCLUDED and name != "CHANGELOG.md"
        if (ROOT / name).is_file()
    ]


def matches(name, source):
    """Return the words of the list that a file uses."""
    prose = READERS[Path(name).suffix](source)
    return [match.group(0) for text in prose for match in PATTERN.finditer(text)]


def count_words():
    """Return how often each file uses a word of the list, without files that use none."""
    used = {name: matches(name, (ROOT / name).read_text("utf-8")) for name in prose_files()}
    return {name: words for name, words in used.items() if words}


def read_ceilings():
    """Return how often each file may use a word of the list."""
    return yaml.safe_load(COUNTS.read_text("utf-8")) or {}


def test_no_file_uses_more_words_of_the_list():
    ceilings = read_ceilings()
    more = [
        f"{name}: {len(words)} instead of at most {ceilings.get(name, 0)}: {sorted(set(words))}"
        for name, words in count_words().items()
        if len(words) > ceilings.get(name, 0)
    ]
    assert more == [], "see tests/system/words.yml"


@pytest.mark.parametrize(
    "name, source, words",
    [
        ("a.py", '"""Mend it."""\nx = y is None  # held against a limit\n', 2),
        ("a.py", 'x = f"{y} by itself"\n', 1),
        ("a.yml", "- name: Bring home logs\n  when: x is none\n", 1),
        ("a.yml", "# somebody's\n- msg: ['one a node', '{{ x is none }}']\n", 2),
        ("a.md", "One task a node. There is none.", 2),
        ("a.md", "Fix it automatically, one per node.", 0),
    ],
)
def test_what_counts(name, source, words):
    assert len(matches(name, source)) == words


def write_lower_counts():
    """Write today's numbers where they are smaller than the ceilings."""
    today = {name: len(words) for name, words in count_words().items()}
    if COUNTS.exists():
        ceilings = read_ceilings()
        today = {name: min(number, ceilings.get(name, 0)) for name, number in today.items()}
    kept = {name: number for name, number in sorted(today.items()) if number}
    head = "---\n# How often a file may use words of words.yml. See test_words.py.\n"
    COUNTS.write_text(head + yaml.safe_dump(kept), encoding="utf-8")
    print(f"{sum(kept.values())} words in {len(kept)} files")


if __name__ == "__main__":
    sys.exit(write_lower_counts())
