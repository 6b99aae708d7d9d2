# SPDX-License-Identifier: Apache-2.0
"""node_module.py beside Ansible's own AnsibleModule: the same arguments, programs and results."""

from __future__ import annotations

import contextlib
import itertools
import json
import runpy
import subprocess
import sys
import time
from pathlib import Path

import pytest
from ansible.module_utils import basic
from ansible.module_utils.common.arg_spec import ModuleArgumentSpecValidator
from ansible.module_utils.testing import patch_module_args
from ansible_collections.trainyard.cluster.plugins.module_utils.agent import node_module
from ansible_collections.trainyard.cluster.plugins.plugin_utils.agent import module_payload

ROOT = Path(__file__).resolve().parents[3]
RULES = ("required_if", "required_one_of", "required_together", "mutually_exclusive")
# Values of each type, and values that no argument of the type takes.
GOOD = {
    "str": ["word", "", 7, 1.5, True],
    "int": [0, 12, "12"],
    "float": [1.5, "1.5", 2],
    "bool": [True, False, "yes", "no", "1", 0],
    "list": [[], ["a"], "a,b"],
    "dict": [{}, {"a": 1}, '{"a": 1}'],
    "path": ["~/there", "/there", "$HOME/there"],
    "raw": [1, "a", [1]],
}
BAD = {
    "int": ["one", [1], {}, 1.5],
    "float": ["one", [1]],
    "bool": ["maybe", [True]],
    "list": [{"a": 1}],
    "dict": ["word", [1], 5],
}


class Specified(BaseException):
    """A module has named its arguments."""


def spec_of(name, monkeypatch):
    """Return (spec, rules) of a module."""

    def note(**given):
        raise Specified(given)

    monkeypatch.setattr(basic, "AnsibleModule", note)
    with pytest.raises(Specified) as found:
        runpy.run_path(str(ROOT / "library" / f"{name}.py"), run_name="__main__")
    given = found.value.args[0]
    rules = {rule: given.pop(rule) for rule in RULES if rule in given}
    assert set(given) <= {"argument_spec", "supports_check_mode"}
    return given["argument_spec"], rules


def both(spec, rules, given):
    """Return what ours and Ansible's make of arguments, None for a refusal."""
    try:
        ours = node_module.read_arguments(spec, dict(given), **rules)
    except node_module.ArgumentError:
        ours = None
    checks = {rule: rules.get(rule) for rule in RULES if rule != "mutually_exclusive"}
    validator = ModuleArgumentSpecValidator(spec, rules.get("mutually_exclusive"), **checks)
    theirs = None
    with contextlib.suppress(TypeError):  # Ansible stumbles over a list in the place of a mapping
        result = validator.validate(given)
        if not result.error_messages:
            theirs = dict(result.validated_parameters)
    return ours, theirs


def filled(spec):
    """Return arguments that have a value for every option that has none by itself."""
    given = {}
    for name, entry in spec.items():
        if entry.get("default") is None:
            chosen = entry.get("choices") or GOOD[entry.get("type", "str")][-1:]
            given[name] = chosen[0]
            if entry.get("elements") == "dict":
                given[name] = [filled(entry["options"])] if "options" in entry else [{"a": 1}]
    return given


@pytest.mark.parametrize("name", sorted(module_payload.node_modules() - {"ansible", "common"}))
def test_arguments_are_read_as_ansible_reads_them(name, monkeypatch):
    spec, rules = spec_of(name, monkeypatch)
    whole = filled(spec)
    cases = [{}, whole, {**whole, "nothing_like_it": 1}]
    for option, entry in spec.items():
        kind = entry.get("type", "str")
        cases.append({key: value for key, value in whole.items() if key != option})
        cases += [{**whole, option: None}]
        if entry.get("elements"):
            some = [*GOOD[entry["elements"]], *BAD.get(entry["elements"], ())]
            cases += [{**whole, option: [value]} for value in some]
        else:
            cases += [{**whole, option: value} for value in (*GOOD[kind], *BAD.get(kind, ()))]
        cases += [{**whole, option: value} for value in entry.get("choices") or ()]
    taken = 0
    for given in cases:
        ours, theirs = both(spec, rules, given)
        assert ours == theirs, given
        taken += ours is not None
    assert taken


def test_rules_between_arguments():
    spec = {name: {"type": "str"} for name in "abc"}
    spec["state"] = {"type": "str", "default": "off"}
    for rules in (
        {"required_if": [("state", "on", ("a", "b"))]},
        {"required_one_of": [("a", "b")]},
        {"required_together": [("a", "b")]},
        {"mutually_exclusive": [("a", "b")]},
    ):
        found = set()
        for count in range(4):
            for names in itertools.combinations("abc", count):
                for state in ({}, {"state": "on"}):
                    ours, theirs = both(spec, rules, {**dict.fromkeys(names, "x"), **state})
                    assert ours == theirs
                    found.add(ours is None)
        assert found == {True, False}, rules


def test_a_spec_with_a_key_that_is_not_known():
    with pytest.raises(LookupError):
        node_module.read_arguments({"a": {"type": "str", "aliases": ["b"]}}, {})


def run(monkeypatch, capsys, arguments, main):
    """Return (exit code, result) of a module's main with these arguments."""
    monkeypatch.setattr(sys, "argv", ["module", json.dumps(arguments)])
    with pytest.raises(SystemExit) as end:
        main()
    return end.value.code, json.loads(capsys.readouterr().out)


def test_results(monkeypatch, capsys):
    def main():
        module = node_module.AnsibleModule({"a": {"type": "int", "default": 1}})
        module.warn("slow")
        module.exit_json(got=module.params, check=module.check_mode)

    code, result = run(monkeypatch, capsys, {"_ansible_verbosity": 3}, main)
    assert code == 0
    assert result == {"changed": False, "got": {"a": 1}, "check": False, "warnings": ["slow"]}
    code, result = run(monkeypatch, capsys, {"b": 1}, main)
    assert code == 1 and result["failed"] and "b" in result["msg"] and result["changed"] is False
    code, result = run(monkeypatch, capsys, {"_ansible_check_mode": True}, main)
    assert code == 0 and result["skipped"]


PROGRAMS = [
    (["sh", "-c", "printf out; printf err >&2; exit 3"], None),
    (["cat"], "text of\ntwo lines"),
    (["sh", "-c", "printf '%s|' \"$@\"", "sh", "~", "$HOME", "a b"], None),
    (["sh", "-c", "printf '\\377' ; echo $TRAINYARD_TRIED"], None),
    ("echo 'one word' two", None),
]


@pytest.mark.parametrize("argv, data", PROGRAMS)
def test_programs_run_as_ansible_runs_them(argv, data, monkeypatch):
    monkeypatch.setattr(sys, "argv", ["module", "{}"])
    more = {"data": data, "environ_update": {"TRAINYARD_TRIED": "yes"}}
    ours = node_module.AnsibleModule({}).run_command(argv, **more)
    with patch_module_args({}):
        theirs = basic.AnsibleModule({}).run_command(argv, **more)
    assert ours == theirs


def test_a_program_that_is_missing(monkeypatch, capsys):
    monkeypatch.setattr(sys, "argv", ["module", "{}"])
    module = node_module.AnsibleModule({})
    with pytest.raises(FileNotFoundError):
        module.run_command(["/no/such/program"], handle_exceptions=False)
    with pytest.raises(SystemExit):
        module.run_command(["/no/such/program"])
    assert json.loads(capsys.readouterr().out)["rc"] == 2


def test_a_child_that_goes_on_is_not_waited_for(monkeypatch):
    monkeypatch.setattr(sys, "argv", ["module", "{}"])
    begun = time.monotonic()
    code, out, _err = node_module.AnsibleModule({}).run_command(
        ["sh", "-c", "echo here; sleep 9 &"]
    )
    assert (code, out) == (0, "here\n") and time.monotonic() - begun < 6


def test_it_imports_nothing_of_the_product():
    """It takes the place of a source of Ansible's in the archive."""
    code = "import sys, runpy; runpy.run_path(sys.argv[1]); print('ansible' in sys.modules)"
    done = subprocess.run(
        [sys.executable, "-I", "-c", code, node_module.__file__], capture_output=True, text=True
    )
    assert done.stdout == "False\n", done.stderr
