#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Remove or invert each rule of the weighing, one at a time, and see whether a test fails.

    python tests/bench/verdict_mutants.py [--only candidates.py] [--out FILE] [--survivors]

A mutant is the source of one module with one change: a condition that is always true or false, an
operand of `and` or `or` less, a return value inverted, a call that changes weights left out, an
entry of a table left out or two rules swapped. Words are not mutated. Each mutant lies in a copy of
the tree. First the attempts that the corpus' tests judged are judged again, from findings that were
read once, with the bounds of these tests. Then the unit tests of the module run. The last line has
k of n. Exit code 1: a mutant survived that is not named in EQUIVALENT.
"""

from __future__ import annotations

import argparse
import ast
import contextlib
import copy
import io
import os
import pickle
import shutil
import subprocess
import sys
import tempfile
import time
import traceback
import typing
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
CORE = "plugins/module_utils"
PATHS = ("collections", "library", "src", "tests", "tests/unit")
COPIED = ("collections", "library", "playbooks", "plugins", "src", "tests", "pyproject.toml")
PACKAGE = "ansible_collections.trainyard.cluster.plugins.module_utils"
UNIT = ("tests/unit/diagnosis", "tests/unit/attempts/test_guard_findings.py")
LOGS = ("tests/unit/logs", "tests/system/test_corpus.py")
# Each module with its tests, and whether the findings of the corpus are read without it.
MODULES = {
    f"{CORE}/diagnosis/candidates.py": (UNIT, True),
    f"{CORE}/diagnosis/handled_errors.py": (UNIT, True),
    f"{CORE}/diagnosis/named_peers.py": ((*UNIT, "tests/unit/logs/test_library_lines.py"), True),
    f"{CORE}/diagnosis/verdict.py": (UNIT, True),
    f"{CORE}/logs/root_error.py": (LOGS, False),
    f"{CORE}/recovery/restart_policy.py": (("tests/unit/recovery",), False),
}
CORPUS = (
    "tests/system/test_corpus.py",
    "tests/system/test_corpus_noise.py",
    "tests/system/test_corpus_wide.py",
    "tests/unit/logs/test_library_lines.py",
)
# Attempts of the larger tests, smaller than in CI: each mutant judges all of them again.
SAMPLE = {"TRAINYARD_WIDE": "200", "TRAINYARD_NOISE_ONE_OF": "70"}
# Functions that choose words and decide nothing.
WORDS = frozenset(
    """_count _describe_exit _describe_times _end_key _evidence _group_line _line _list
    _list_candidates _log _memory_lines _name_voters _nan_lines _not_asked _publish _quote_error
    _ranks _same_error_lines _stop_line _voters_line _what _who evidence_lines""".split()
)
SECONDS = 120  # for the tests of one mutant; one that runs longer is killed by them


class Mutant(typing.NamedTuple):
    """One change of one module."""

    path: str
    line: int
    change: str
    source: str

    def __str__(self):
        return f"{self.path}:{self.line}: {self.change}"


# What no test can tell from the original, by (file, words of the change), with the reason.
EQUIVALENT: dict[tuple[str, str], str] = {}


# --- mutants


def short(node):
    """Return the text of a piece of code on one line."""
    return " ".join(ast.unparse(node).split())[:80]


class _Places(ast.NodeVisitor):
    """The places of a module that can be changed: (node, field, index, new value, words)."""

    def __init__(self):
        self.found = []
        self.function = None

    def add(self, node, field, index, new, words, line=None):
        self.found.append((node, field, index, new, words, line or node.lineno))

    def visit_FunctionDef(self, node):
        if node.name in WORDS:
            return
        outer, self.function = self.function, node
        self.generic_visit(node)
        self.function = outer

    def condition(self, node, field, index=None):
        """A condition that always holds, or never. One of several parts never holds."""
        value = getattr(node, field)
        if index is not None:
            value = value[index]
        for constant in (False,) if isinstance(value, ast.BoolOp) else (True, False):
            words = f"`{short(value)}` is always {constant}"
            self.add(node, field, index, ast.Constant(constant), words, value.lineno)

    def visit_If(self, node):
        self.condition(node, "test")
        self.generic_visit(node)

    def visit_IfExp(self, node):
        self.condition(node, "test")
        self.generic_visit(node)

    def visit_comprehension(self, node):
        for index in range(len(node.ifs)):
            self.condition(node, "ifs", index)
        self.generic_visit(node)

    def visit_BoolOp(self, node):
        """One part less. `x or {}` only gives a value where there is none."""
        if isinstance(
            node.values[-1], (ast.Dict, ast.Tuple, ast.List, ast.Constant, ast.Attribute)
        ):
            self.generic_visit(node)
            return
        for index, value in enumerate(node.values):
            rest = node.values[:index] + node.values[index + 1 :]
            self.add(node, "values", None, rest, f"without `{short(value)}`", value.lineno)
        self.generic_visit(node)

    def visit_Return(self, node):
        value = node.value
        is_boolean = isinstance(value, (ast.Compare, ast.BoolOp)) or (
            isinstance(value, ast.UnaryOp) and isinstance(value.op, ast.Not)
        )
        if isinstance(value, ast.Call) and isinstance(value.func, ast.Name):
            is_boolean = value.func.id in ("any", "all", "bool")
        if is_boolean:
            self.condition(node, "value")
        self.generic_visit(node)

    def visit_Expr(self, node):
        """A call as a statement is there for its effect."""
        if self.function and isinstance(node.value, ast.Call):
            self.add(node, "value", None, ast.Constant(None), f"without `{short(node)}`")
        self.generic_visit(node)

    def visit_Assign(self, node):
        if self.function is None:
            self.table(node.value, short(node.targets[0]))
        self.generic_visit(node)

    def table(self, value, name):
        """An entry less of a table of rules, or two rules swapped."""
        if isinstance(value, ast.Call) and short(value.func) == "frozenset" and value.args:
            value = value.args[0]
        if name in ("_CANDIDATE_KEYS", "_RESULT_KEYS", "_END_KEYS"):
            return
        if isinstance(value, ast.Dict):
            for index, key in enumerate(value.keys):
                self.add(value, "entry", index, None, f"{name} without {short(key)}", key.lineno)
        if isinstance(value, ast.Tuple) and len(value.elts) > 1:
            for index, item in enumerate(value.elts):
                rest = value.elts[:index] + value.elts[index + 1 :]
                self.add(value, "elts", None, rest, f"{name} without {short(item)}", item.lineno)
                if isinstance(item, ast.Call) and index:
                    swapped = list(value.elts)
                    swapped[index - 1 : index + 1] = [item, swapped[index - 1]]
                    self.add(value, "elts", None, swapped, f"{name}: {short(item)} one earlier")


@contextlib.contextmanager
def changed(node, field, index, new):
    """Change a node of a tree for the length of a block."""
    if field == "entry":
        saved = node.keys, node.values
        node.keys = node.keys[:index] + node.keys[index + 1 :]
        node.values = node.values[:index] + node.values[index + 1 :]
        yield
        node.keys, node.values = saved
    elif index is not None:
        items = getattr(node, field)
        saved, items[index] = items[index], new
        yield
        items[index] = saved
    else:
        saved = getattr(node, field)
        setattr(node, field, new)
        yield
        setattr(node, field, saved)


def mutants_of(path):
    """Return the mutants of a module, in the order of its lines."""
    tree = ast.parse((ROOT / path).read_text())
    places = _Places()
    places.visit(tree)
    original = ast.unparse(tree)
    found = []
    for node, field, index, new, words, line in places.found:
        with changed(node, field, index, new):
            source = ast.unparse(ast.fix_missing_locations(tree))
        if source != original:
            found.append(Mutant(path, line, words, source))
    return sorted(found, key=lambda mutant: (mutant.line, mutant.change))


# --- tests


def record(copy_of_tree, file):
    """Run the corpus' tests, and keep what their attempts' nodes said and which answer is right."""
    program = f"import verdict_mutants; verdict_mutants.record_here({str(file)!r})"
    path = os.pathsep.join(str(copy_of_tree / p) for p in (*PATHS, "tests/bench"))
    environment = dict(os.environ, **SAMPLE, PYTHONPATH=path, PYTHONDONTWRITEBYTECODE="1")
    subprocess.run([sys.executable, "-c", program], cwd=copy_of_tree, env=environment, check=True)


class _Recorder:
    """A plugin of pytest that notes every attempt that a test grades."""

    def __init__(self):
        self.rows, self.test, self.last = [], None, None

    def pytest_runtest_setup(self, item):
        self.test = item.location[0]

    def pytest_sessionstart(self):
        import corpus_support as corpus

        judge, grade = corpus.judge_nodes, corpus.grade

        def judge_and_note(plan, nodes):
            self.last = copy.deepcopy((plan, nodes))
            return judge(plan, nodes)

        def grade_and_note(decided, right):
            result = grade(decided, right)
            if self.last:
                self.rows.append((self.test, *self.last, right, result))
            self.last = None
            return result

        corpus.judge_nodes, corpus.grade = judge_and_note, grade_and_note


def record_here(file):
    """Record in this process, and write the rows to a file."""
    import pytest

    recorder = _Recorder()
    if pytest.main(["-q", "-p", "no:cacheprovider", *CORPUS], plugins=[recorder]):
        raise SystemExit("the tests of the corpus fail without a mutant")
    Path(file).write_bytes(pickle.dumps(recorder.rows))


def judge_again(rows):
    """Return why the corpus' tests would fail now, or None."""
    import corpus_support as corpus
    from system import test_corpus, test_corpus_noise, test_corpus_wide

    scores: dict[str, list[tuple[str, str]]] = {}
    for test, plan, nodes, right, before in rows:
        after = corpus.grade(corpus.judge_nodes(plan, nodes), right)
        scores.setdefault(test, []).append(after)
        if after[0] == "wrong" and before[0] != "wrong":
            return f"{test}: wrong"
        if "library_lines" in test and after[0] != "right":
            return f"{test}: {after[0]}"
    for test, grades in scores.items():
        count = sum(grade == "right" for grade, _why in grades)
        least = test_corpus.RIGHT
        if "noise" in test:
            least = test_corpus_noise.SHARE * len(grades)
        elif "wide" in test:
            least = test_corpus_wide.SHARE * len(grades)
        elif "library_lines" in test:
            continue
        if count < least:
            return f"{test}: {count} right"
    return None


def test_mutant(copy_of_tree, mutant, rows):
    """Return what killed a mutant, None where it survived. It is tested in a child process."""
    tests, is_cached = MODULES[mutant.path]
    place = copy_of_tree / mutant.path
    original = place.read_text()
    place.write_text(mutant.source)
    reader, writer = os.pipe()
    child = os.fork()
    if not child:
        os.close(reader)
        os.write(writer, (_run(copy_of_tree, tests, rows * is_cached) or "").encode()[:4000])
        os._exit(0)
    os.close(writer)
    with os.fdopen(reader) as answer:
        said = answer.read()
    _pid, status = os.waitpid(child, 0)
    place.write_text(original)
    if status:
        return f"ended with {status}"
    return said or None


def _run(copy_of_tree, tests, rows):
    """Return what fails, in a child process of its own."""
    import signal

    import pytest

    signal.alarm(SECONDS)
    os.chdir(copy_of_tree)
    sys.path[:0] = [str(copy_of_tree / path) for path in PATHS]
    words = io.StringIO()
    try:
        with contextlib.redirect_stdout(words), contextlib.redirect_stderr(words):
            failed = judge_again(rows) if rows else None
            if failed:
                return failed
            options = ["-q", "-x", "-p", "no:cacheprovider", "--no-header", "--tb=no"]
            code = pytest.main([*options, *tests])
    except BaseException:
        return traceback.format_exc().strip().splitlines()[-1]
    if not code:
        return None
    lines = words.getvalue().splitlines()
    return next((line for line in lines if line.startswith(("FAILED", "ERROR"))), f"pytest {code}")


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0])
    parser.add_argument("--only", default="", help="modules whose path holds this")
    parser.add_argument("--out", type=Path, help="write a line per mutant to this file as well")
    parser.add_argument("--survivors", action="store_true", help="print the survivors only")
    options = parser.parse_args()
    mutants = [m for path in MODULES if options.only in path for m in mutants_of(path)]
    sys.dont_write_bytecode = True
    import ansible.plugins.loader  # noqa: F401 - what all children need is imported once
    import pytest  # noqa: F401

    lines, survivors, started = [], [], time.monotonic()
    with tempfile.TemporaryDirectory() as folder:
        copy_of_tree = Path(folder) / "tree"
        copy_of_tree.mkdir()
        ignored = shutil.ignore_patterns("__pycache__", ".git", "*.pyc")
        for name in COPIED:
            source, target = ROOT / name, copy_of_tree / name
            if source.is_dir():
                shutil.copytree(source, target, symlinks=True, ignore=ignored)
            else:
                shutil.copy(source, target)
        file = Path(folder) / "rows.pickle"
        record(copy_of_tree, file)
        rows = pickle.loads(file.read_bytes())
        print(f"{len(mutants)} mutants, {len(rows)} attempts of the corpus", flush=True)
        for mutant in mutants:
            killer = test_mutant(copy_of_tree, mutant, rows)
            reason = EQUIVALENT.get((Path(mutant.path).name, mutant.change))
            line = f"{mutant}: {killer or 'SURVIVED'}"
            if not killer:
                survivors.append((mutant, reason))
                line += f" ({reason})" * bool(reason)
            lines.append(line)
            if not (killer and options.survivors):
                print(line, flush=True)
            if options.out:
                options.out.write_text("\n".join(lines) + "\n")
    unexplained = [mutant for mutant, reason in survivors if not reason]
    print(
        f"{len(mutants) - len(survivors)} of {len(mutants)} mutants are killed,"
        f" {len(survivors) - len(unexplained)} survivors are equivalent,"
        f" {len(unexplained)} are not explained ({time.monotonic() - started:.0f} s)"
    )
    return bool(unexplained)


if __name__ == "__main__":
    sys.exit(main())
