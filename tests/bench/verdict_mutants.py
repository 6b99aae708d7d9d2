#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Remove or invert each rule of the weighing, one at a time, and see whether a test fails.

    python tests/bench/verdict_mutants.py [--only candidates.py] [--one-of N] [--out FILE]
    python tests/bench/verdict_mutants.py --survivors-of FILE

A mutant is the source of one module with one change: a condition that is always true or false, an
operand of `and` or `or` less, a return value inverted, a call for its effect left out, an entry of
a table left out or two rules swapped. Words are not mutated. Each mutant lives in a child process
and in no file. First the attempts that the corpus' tests judged are judged again, from findings
that were read once, with the bounds of these tests. Then the tests of the module run until one
fails. The last line has k of n. Exit code 1: a mutant survived that is not named in EQUIVALENT.
"""

from __future__ import annotations

import argparse
import ast
import contextlib
import copy
import os
import shutil
import signal
import sys
import tempfile
import time
import traceback
import typing
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
CORE = "plugins/module_utils"
PACKAGE = "ansible_collections.trainyard.cluster.plugins.module_utils"
DIAGNOSIS = ("tests/unit/diagnosis", "tests/unit/attempts/test_guard_findings.py")
LOGS = ("tests/unit/logs", "tests/system/test_corpus.py")


class Module(typing.NamedTuple):
    """A module whose rules are mutated."""

    path: str
    users: tuple[str, ...]  # the modules that have imported names from it, in their order
    tests: tuple[str, ...]
    judges: bool  # whether it judges findings and does not make them


WEIGHING = (f"{CORE}/diagnosis/candidates.py", f"{CORE}/diagnosis/verdict.py")
MODULES = (
    Module(WEIGHING[0], WEIGHING[1:], DIAGNOSIS, True),
    Module(f"{CORE}/diagnosis/rank_rules.py", WEIGHING, DIAGNOSIS, True),
    Module(f"{CORE}/diagnosis/clocks.py", WEIGHING, DIAGNOSIS, True),
    Module(f"{CORE}/diagnosis/common_failures.py", WEIGHING[1:], DIAGNOSIS, True),
    Module(f"{CORE}/diagnosis/handled_errors.py", WEIGHING, DIAGNOSIS, True),
    Module(f"{CORE}/diagnosis/named_peers.py", WEIGHING, DIAGNOSIS, True),
    Module(WEIGHING[1], (), DIAGNOSIS, True),
    Module(f"{CORE}/diagnosis/wording.py", WEIGHING[1:], DIAGNOSIS, True),
    Module(
        f"{CORE}/logs/root_error.py",
        (f"{CORE}/logs/error_scanner.py", f"{CORE}/logs/parser.py", f"{CORE}/attempts/evidence.py"),
        LOGS,
        False,
    ),
    Module(
        f"{CORE}/logs/closing_lines.py",
        (f"{CORE}/logs/parser.py", f"{CORE}/attempts/evidence.py"),
        LOGS,
        False,
    ),
    Module(
        f"{CORE}/recovery/restart_policy.py",
        (),
        ("tests/unit/recovery/test_restart_policy.py",),
        False,
    ),
)
CORPUS = (
    "tests/system/test_corpus.py",
    "tests/system/test_corpus_noise.py",
    "tests/system/test_corpus_wide.py",
    "tests/unit/logs/test_library_lines.py",
)
# Attempts of the larger tests, fewer than in CI: each mutant judges all of them again.
SAMPLE = {"TRAINYARD_WIDE": "160", "TRAINYARD_NOISE_ONE_OF": "400"}
# Functions that choose words and decide nothing.
WORDS = frozenset(
    """_describe_times _evidence _line _list_candidates _log _memory_lines _name_voters _nan_lines
    _not_asked _publish _quote_error _ranks _same_error_lines _voters_line count_of describe_end
    describe_exit end_key evidence_lines group_line list_names name_of stop_line""".split()
)
SECONDS = 120  # for the tests of one mutant; one that runs longer is killed by them


class Mutant(typing.NamedTuple):
    """One change of one module."""

    module: Module
    line: int
    change: str
    source: str

    def __str__(self):
        return f"{self.module.path}:{self.line}: {self.change}"


# What no test can tell from the original, by (file, words of the change), with the reason.
EQUIVALENT: dict[tuple[str, str], str] = {
    ("named_peers.py", "without `not address`"): "no rank is at the address None",
    (
        "rank_rules.py",
        "RANK_RULES: _rule(RankEvidence.has_shared_error, SHARED, 'met a condition that all"
        " ranks sh one earlier",
    ): "an error that was handled is primary, so none is both",
    (
        "candidates.py",
        "without `other['weight'] < DECIDES`",
    ): "the best one weighs more, and kills that are rivals do",
}


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


def mutants_of(module):
    """Return the mutants of a module, in the order of its lines."""
    tree = ast.parse((ROOT / module.path).read_text())
    places = _Places()
    places.visit(tree)
    original = ast.unparse(tree)
    found = []
    for node, field, index, new, words, line in places.found:
        with changed(node, field, index, new):
            source = ast.unparse(ast.fix_missing_locations(tree))
        if source != original:
            found.append(Mutant(module, line, words, source))
    return sorted(found, key=lambda mutant: (mutant.line, mutant.change))


# --- tests


class Workshop:
    """A plugin of pytest that runs the tests once, and then the mutants instead of the tests."""

    def __init__(self, mutants, report, folder):
        self.mutants, self.report, self.folder = mutants, report, Path(folder)
        self.rows = []  # of each attempt that a test of the corpus graded
        self.failed = self.test = self.last = None

    def pytest_collection_finish(self, session):
        """Note what the nodes of each attempt answered, which answer is right, and the grade."""
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
        self.restore = lambda: vars(corpus).update(judge_nodes=judge, grade=grade)

    def pytest_runtest_setup(self, item):
        self.test = item.location[0]

    def pytest_runtest_logreport(self, report):
        if report.failed and not self.failed:
            self.failed = report.nodeid

    def pytest_runtestloop(self, session):
        """Run all tests, then each mutant."""
        self.run(session.items)
        if self.failed:
            raise SystemExit(f"fails without a mutant: {self.failed}")
        self.restore()
        failed = judge_again(self.rows)
        if failed:
            raise SystemExit(f"fails without a mutant: {failed}")
        self.report(f"{len(self.mutants)} mutants, {len(self.rows)} attempts of the corpus")
        for mutant in self.mutants:
            self.report(mutant, self.find_killer(session, mutant))
        return True

    def run(self, items):
        """Run tests until one fails."""
        for item, following in zip(items, [*items[1:], None]):
            item.config.hook.pytest_runtest_protocol(item=item, nextitem=following)
            if self.failed:
                return

    def find_killer(self, session, mutant):
        """Return what kills a mutant, None where it survives."""
        reader, writer = os.pipe()
        child = os.fork()
        if not child:
            os.close(reader)
            signal.alarm(SECONDS)
            session.config._tmp_path_factory._basetemp = self.folder / str(os.getpid())
            (self.folder / str(os.getpid())).mkdir()
            os.dup2(1, 2)
            try:
                said = self.kill(session, mutant)
            except BaseException:
                said = traceback.format_exc().strip().splitlines()[-1]
            os.write(writer, (said or "").encode()[:4000])
            os._exit(0)
        os.close(writer)
        with os.fdopen(reader) as answer:
            said = answer.read()
        _pid, status = os.waitpid(child, 0)
        shutil.rmtree(self.folder / str(child), ignore_errors=True)
        if status:
            return f"ended with {status}"
        return said or None

    def kill(self, session, mutant):
        """Return the first test that fails with a mutant, or None. In a child process."""
        module = mutant.module
        execute(module.path, mutant.source)
        for path in module.users:
            execute(path, (ROOT / path).read_text())
        said = judge_again(self.rows) if module.judges else None
        if not said:
            tests = module.tests
            self.run([item for item in session.items if item.nodeid.startswith(tests)])
        return said or self.failed


def execute(path, source):
    """Execute a module's source in the place of the module."""
    name = path[len(CORE) + 1 : -3].replace("/", ".")
    module = sys.modules[f"{PACKAGE}.{name}"]
    exec(compile(source, path, "exec"), vars(module))  # noqa: S102 - of this tree


def judge_again(rows):
    """Return why the corpus' tests would fail now, or None."""
    import corpus_support as corpus
    from system import test_corpus, test_corpus_noise, test_corpus_wide

    loss = {
        CORPUS[1]: 1 - test_corpus_noise.SHARE,
        CORPUS[2]: 1 - test_corpus_wide.SHARE,
    }
    for test in CORPUS:
        grades, right_before = [], 0
        for _test, plan, nodes, right, before in (row for row in rows if row[0] == test):
            after = corpus.grade(corpus.judge_nodes(plan, nodes), right)
            grades.append(after[0])
            right_before += before[0] == "right"
            if after[0] == "wrong" and after != before:
                return f"{test}: wrong"
        least = right_before - loss.get(test, 0) * len(grades)
        if test == CORPUS[0]:
            least = test_corpus.RIGHT
        if grades.count("right") < least:
            return f"{test}: {grades.count('right')} right"
    return None


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0])
    parser.add_argument("--only", default="", help="modules whose path holds this")
    parser.add_argument("--one-of", type=int, default=1, help="every Nth mutant only")
    parser.add_argument("--survivors-of", type=Path, help="those only that survived in this file")
    parser.add_argument("--out", type=Path, help="write a line per mutant to this file as well")
    options = parser.parse_args()
    modules = [module for module in MODULES if options.only in module.path]
    mutants = [m for module in modules for m in mutants_of(module)][:: options.one_of]
    if options.survivors_of:
        before = options.survivors_of.read_text().splitlines()
        kept = {line.split(":", 2)[2].strip() for line in before if ": SURVIVED" in line}
        mutants = [m for m in mutants if f"{m.change}: SURVIVED" in kept]
    lines, survivors, started = [], [], time.monotonic()

    def report(mutant, killer=""):
        line = str(mutant)
        if isinstance(mutant, Mutant):
            reason = EQUIVALENT.get((Path(mutant.module.path).name, mutant.change))
            line += f": {killer or 'SURVIVED'}"
            if not killer:
                survivors.append(reason)
                line += f" ({reason})" * bool(reason)
            lines.append(line)
        print(line, file=output, flush=True)

    output = os.fdopen(os.dup(1), "w")
    os.environ.update(SAMPLE)
    os.chdir(ROOT)
    os.dup2(os.open(os.devnull, os.O_WRONLY), 1)  # the tests' own words
    tests = sorted({*CORPUS, *(test for module in modules for test in module.tests)})
    with tempfile.TemporaryDirectory() as folder:
        plugin = Workshop(mutants, report, folder)
        words = ["-q", "-p", "no:cacheprovider", "--no-header", f"--basetemp={folder}/first"]
        code = pytest.main([*words, *tests], plugins=[plugin])
    if options.out:
        options.out.write_text("\n".join(lines) + "\n")
    unexplained = survivors.count(None)
    report(
        f"{len(lines) - len(survivors)} of {len(lines)} mutants are killed,"
        f" {len(survivors) - unexplained} survivors are equivalent,"
        f" {unexplained} are not explained ({time.monotonic() - started:.0f} s)"
    )
    return bool(unexplained or code or len(lines) < len(mutants))


if __name__ == "__main__":
    sys.exit(main())
