# SPDX-License-Identifier: Apache-2.0
"""The environment's core: what a site may ask for, pinned lists, digests, and what a node has."""

from __future__ import annotations

import json
import os
import pathlib
import sys

import packaging.markers
import pytest
from ansible_collections.trainyard.cluster.plugins.module_utils.environments import (
    python_env as core,
)

ROOT = pathlib.Path(__file__).resolve().parents[3]
ASKED = {"package": "paddlepaddle", "version": "2.6.2", "requirements": ["a.txt"]}


def refused(value):
    with pytest.raises(core.EnvironmentRefused) as error:
        core.read_environment(value)
    return error.value.problems


def test_every_key_is_there_afterwards():
    assert core.read_environment({"package": "paddlepaddle", "version": "2.6.2"}) == {
        "package": "paddlepaddle",
        "version": "2.6.2",
        "index_url": None,
        "requirements": [],
        "python": None,
        "container": None,
        "mounts": [],
    }
    assert (
        core.read_environment({"python": "/opt/venv/bin/python"})["python"]
        == "/opt/venv/bin/python"
    )


@pytest.mark.parametrize(
    "value, words",
    [
        ("paddlepaddle", "want keys package"),
        (
            {},
            (
                "package: want paddlepaddle or paddlepaddle-gpu or mindspore or mindspore-ascend or"
                " mindspore-gpu; got None"
            ),
        ),
        ({"package": "paddle", "version": "2.6.2"}, "mindspore-gpu; got 'paddle'"),
        ({"package": "paddlepaddle", "version": 3.1}, '3.1 is a number; quote it: "3.1"'),
        ({"package": "paddlepaddle", "version": ">=2.6"}, 'want one version such as "2.6.2"'),
        (
            {"package": "paddlepaddle", "version": "2.6.2", "requirement": []},
            "did you mean requirements?",
        ),
        (
            {"package": "paddlepaddle", "version": "2.6.2", "requirements": "a.txt"},
            "want a list of files",
        ),
        (
            {"package": "paddlepaddle", "version": "2.6.2", "index_url": "the vendor"},
            "want the http(s) address",
        ),
        (
            {
                "package": "paddlepaddle",
                "version": "2.6.2",
                "index_url": "https://me:secret@index.invalid/simple",
            },
            "put it into ~/.netrc",
        ),
        (
            {
                "package": "paddlepaddle",
                "version": "2.6.2",
                "index_url": "https://me:se/cret@index.invalid/simple",
            },
            "put it into ~/.netrc",
        ),
        (
            {
                "package": "paddlepaddle",
                "version": "2.6.2",
                "index_url": "https://index.invalid/simple?token=abc",
            },
            "put it into ~/.netrc",
        ),
        (
            {
                "package": "paddlepaddle",
                "version": "2.6.2",
                "index_url": "ftp://me:hunter22@index.invalid/T0p",
            },
            "got 'ftp://index.invalid'",
        ),
        ({"python": "venv/bin/python"}, "want the absolute path"),
        (
            {"python": "/opt/venv/bin/python", "requirements": ["a.txt"]},
            "nothing is ever installed into a Python of your own",
        ),
    ],
)
def test_what_a_site_may_not_ask_for(value, words):
    problems = refused(value)
    assert len(problems) == (2 if value == {} else 1)
    assert words in problems[0]
    assert "secret" not in problems[0]


def test_all_problems_come_at_once():
    assert (
        len(refused({"package": "x", "version": 1, "index_url": 3, "requirements": 4, "pakage": 1}))
        == 5
    )


def test_pins_with_markers_extras_and_comments():
    pins, problems = core.parse_requirements(
        "# a lock\n\nNumPy==1.26.4\nruamel.yaml[jinja2] == 0.18.6  # why\ntomli==2.0.1 ;"
        ' python_version < "3.11"\n',
        "a.txt",
    )
    assert problems == []
    assert [(p["name"], p["version"], p["marker"], p["line"]) for p in pins] == [
        ("numpy", "1.26.4", None, 3),
        ("ruamel-yaml", "0.18.6", None, 4),
        ("tomli", "2.0.1", 'python_version < "3.11"', 5),
    ]


@pytest.mark.parametrize(
    "line, words",
    [
        ("numpy", "want name==version"),
        ("numpy>=1.26", "want name==version"),
        ("numpy==1.26.4,<2", "want name==version"),
        ("numpy===1.26.4", "want name==version"),
        ("numpy==1.*", "a wildcard pins nothing"),
        ("-r other.txt", "pip options do not belong"),
        ("--index-url https://index.invalid/simple", "pip options do not belong"),
        ("numpy==1.26.4 --hash=md5:" + "a" * 32, "want --hash=sha256:"),
        ("numpy==1.26.4 --hash=sha256:" + "A" * 64, "want --hash=sha256:"),
        ("--hash=sha256:" + "a" * 64, "pip options do not belong"),
        ("x @ https://host.invalid/x.whl", "an address or a path is not a pin"),
        ("./x.whl", "an address or a path is not a pin"),
    ],
)
def test_lines_that_are_no_pins_are_named(line, words):
    pins, problems = core.parse_requirements(f"a==1\n{line}\n", "lists/a.txt")
    assert len(pins) == 1
    assert (
        problems[0].startswith("lists/a.txt:2: ")
        and words in problems[0]
        and repr(line) in problems[0]
    )


def test_a_pin_may_lock_its_files():
    one, two = "1" * 64, "2" * 64
    text = (
        f"a==1 \\\n    --hash=sha256:{two} \\\n    --hash=sha256:{one}\n    # via b\nb==2 ;"
        f" python_version >= '3' --hash sha256:{one}\nc==3\n"
    )
    pins, problems = core.parse_requirements(text, "a.txt")
    assert problems == []
    assert [(pin["name"], pin["hashes"], pin["line"]) for pin in pins] == [
        ("a", [one, two], 1),
        ("b", [one], 5),
        ("c", [], 6),
    ]
    assert pins[1]["marker"] == "python_version >= '3'"
    _pins, problems = core.parse_requirements("a==1 \\\nb==2\n", "a.txt")
    assert problems[0].startswith("a.txt:1: want name==version")


def test_what_two_lists_lock_is_what_both_allow():
    one, two, three = "1" * 64, "2" * 64, "3" * 64
    asked = core.read_environment(dict(ASKED, requirements=["a.txt", "b.txt"]))
    lists = [
        (
            f"paddlepaddle==2.6.2 --hash=sha256:{one}\na==1 --hash=sha256:{one}"
            f" --hash=sha256:{two}\nb==1\nc==1\n"
        ),
        f"a==1 --hash=sha256:{three} --hash=sha256:{two}\nb==1 --hash=sha256:{three}\n",
    ]
    assert core.allowed_hashes(asked, lists, "3.11", "x86_64") == {
        "paddlepaddle": [one],
        "a": [two],
        "b": [three],
    }
    assert core.environment_digest(asked, lists, "3.11", "x86_64") == core.environment_digest(
        asked, ["paddlepaddle==2.6.2\na==1\nb==1\nc==1\n", ""], "3.11", "x86_64"
    )
    with pytest.raises(core.EnvironmentRefused) as error:
        core.allowed_hashes(
            asked, [f"a==1 --hash=sha256:{one}\n", f"a==1 --hash=sha256:{two}\n"], "3.11", "x86_64"
        )
    (problem,) = error.value.problems
    assert problem.startswith("b.txt:1: a ") and problem.endswith(" a.txt:1")
    assert "no sha256 in common" in problem


def test_a_list_is_parsed_once_for_all_kinds_of_nodes(monkeypatch):
    parsed, made = [], []
    lines, marker = core._logical_lines, packaging.markers.Marker
    monkeypatch.setattr(core, "_logical_lines", lambda text: parsed.append(text) or lines(text))
    monkeypatch.setattr(packaging.markers, "Marker", lambda text: made.append(text) or marker(text))
    text = 'seldom==1.0; python_version >= "3.9"\n'
    for python in ("3.8", "3.9", "3.10"):
        expected = {} if python == "3.8" else {"seldom": "1.0"}
        found = core.resolve(ASKED, [text], python, "x86_64")
        assert found == {"paddlepaddle": "2.6.2", **expected}
    assert (len(parsed), len(made)) == (1, 1)


def test_what_a_caller_does_with_the_pins_stays_with_the_caller():
    text = "numpy==1.26.4 --hash=sha256:" + "a" * 64
    for pins in (core.parse_requirements(text, "list.txt")[0] for _ in range(2)):
        assert pins[0]["hashes"] == ["a" * 64]
        pins[0]["hashes"] = []


@pytest.mark.parametrize("name", ["mindocr", "paddledetection", "paddleocr", "paddleseg", "uv"])
def test_every_shipped_list_is_locked(name):
    text = (ROOT / "roles" / "runtime" / "files" / f"{name}.txt").read_text(encoding="utf-8")
    pins, problems = core.parse_requirements(text, name)
    assert pins and problems == [] and [pin["name"] for pin in pins if not pin["hashes"]] == []


def test_markers_are_those_of_the_node_not_of_the_controller():
    text = (
        'old==1 ; python_version < "3.9"\nnew==2 ; python_version >= "3.9"\n'
        'arm==3 ; platform_machine == "aarch64"\nwin==4 ; sys_platform == "win32"\n'
    )
    asked = core.read_environment(ASKED)
    assert core.resolve(asked, [text], "3.8", "aarch64") == {
        "paddlepaddle": "2.6.2",
        "old": "1",
        "arm": "3",
    }
    assert core.resolve(asked, [text], "3.12", "x86_64") == {"paddlepaddle": "2.6.2", "new": "2"}


def test_lists_that_contradict_each_other_or_the_site():
    asked = core.read_environment(dict(ASKED, requirements=["a.txt", "b.txt"]))
    with pytest.raises(core.EnvironmentRefused) as error:
        lists = [
            "numpy==1.26.4\npaddlepaddle-gpu==2.6.2\n",
            "numpy==2.0\npaddlepaddle==3.0\nx==1 ; nonsense\n",
        ]
        core.resolve(asked, lists, "3.11", "x86_64")
    problems = error.value.problems
    assert [problem.split(": ")[0] for problem in problems] == [
        "a.txt:2",
        "b.txt:1",
        "b.txt:2",
        "b.txt:3",
    ]
    expected = [
        ("paddlepaddle-gpu,", "paddlepaddle 2.6.2"),
        ("numpy ", " 2.0 ", " 1.26.4 ", "a.txt:1"),
        ("paddlepaddle ", " 3.0 ", " 2.6.2 ", "the site's version"),
        (" marker ", "'nonsense'"),
    ]
    for problem, parts in zip(problems, expected):
        assert all(part in problem for part in parts), problem


def test_a_digest_depends_on_what_is_installed_and_on_nothing_else():
    base = core.environment_digest(ASKED, ["numpy==1.26.4\n"], "3.11", "x86_64")
    assert core.DIGEST.fullmatch(base)
    assert (
        core.environment_digest(
            ASKED,
            ["# comment\nNumPy == 1.26.4\ntomli==2 ; python_version < '3.11'\n"],
            "3.11",
            "x86_64",
        )
        == base
    )
    assert (
        core.environment_digest(
            dict(ASKED, requirements=["b.txt"]), ["numpy==1.26.4\n"], "3.11", "x86_64"
        )
        == base
    )
    others = [
        core.environment_digest(ASKED, ["numpy==1.26.3\n"], "3.11", "x86_64"),
        core.environment_digest(ASKED, ["numpy==1.26.4\n"], "3.12", "x86_64"),
        core.environment_digest(ASKED, ["numpy==1.26.4\n"], "3.11", "aarch64"),
        core.environment_digest(
            dict(ASKED, version="2.6.1"), ["numpy==1.26.4\n"], "3.11", "x86_64"
        ),
        core.environment_digest(
            dict(ASKED, package="paddlepaddle-gpu"), ["numpy==1.26.4\n"], "3.11", "x86_64"
        ),
        core.environment_digest(
            dict(ASKED, index_url="https://vendor.invalid/cu118/"),
            ["numpy==1.26.4\n"],
            "3.11",
            "x86_64",
        ),
        core.environment_digest({"python": "/opt/venv/bin/python"}, [], "3.11", "x86_64"),
    ]
    assert len({base, *others}) == 8


def test_a_digest_of_a_bad_list_is_refused():
    with pytest.raises(core.EnvironmentRefused, match=r"a\.txt:1: want name==version"):
        core.environment_digest(ASKED, ["numpy\n"], "3.11", "x86_64")


def test_where_pinned_lists_lie(monkeypatch):
    monkeypatch.setenv("HOME", "/home/me")
    assert (
        core.requirement_path("paddledetection.txt", "/role/files", "/project")
        == "/role/files/paddledetection.txt"
    )
    assert (
        core.requirement_path("examples/x/requirements.txt", "/role/files", "/project")
        == "/project/examples/x/requirements.txt"
    )
    assert core.requirement_path("/etc/lock.txt", "/role/files", "/project") == "/etc/lock.txt"
    assert core.requirement_path("~/lock.txt", "/role/files", "/project") == "/home/me/lock.txt"


def test_the_python_of_a_node():
    found = core.node_python(sys.executable)
    assert found["python"] == ".".join(map(str, sys.version_info[:2]))
    assert found["machine"] == os.uname().machine
    with pytest.raises(OSError):
        core.node_python("/no/such/python")


def test_the_python_of_a_node_is_asked_without_what_the_user_puts_before_it(monkeypatch, tmp_path):
    (tmp_path / "json.py").write_text("raise SystemExit(3)\n")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    assert core.node_python(sys.executable)["python"]


def test_installed_packages_by_directory_names(tmp_path):
    first, second = tmp_path / "first", tmp_path / "second"
    for path in (
        "first/numpy-1.26.4.dist-info",
        "first/PyYAML-6.0.dist-info",
        "second/numpy-1.20.0.dist-info",
        "second/ruamel.yaml-0.17.21-py3.11.egg-info",
        "second/numpy",
        "second/x.dist-info",
    ):
        (tmp_path / path).mkdir(parents=True)
    assert core.installed_packages([str(first), str(second), str(tmp_path / "none")]) == {
        "numpy": "1.26.4",
        "pyyaml": "6.0",
        "ruamel-yaml": "0.17.21",
    }


def test_fingerprints_are_about_content_not_order():
    assert (
        core.fingerprint({"a": "1", "b": "2"})
        == core.fingerprint({"b": "2", "a": "1"})
        != core.fingerprint({"a": "1", "b": "3"})
    )


def test_differences_are_named_and_counted():
    assert core.compare_packages({"a": "1", "b": "2"}, {"a": "1", "b": "2"}) == []
    differences = core.compare_packages({"a": "1", "b": "2"}, {"b": "3", "c": "4"})
    assert differences == ["a is missing (want 1)", "b is 3 (want 2)", "c 4 is not in the list"]
    assert core.compare_packages({str(n): "1" for n in range(9)}, {})[-1] == "and 4 more"


CPU = {"version": "2.6.2", "cuda": False, "cuda_version": None}
GPU = {"version": "2.6.2", "cuda": True, "cuda_version": "11.7"}
MIND = {"version": "2.7.0", "targets": ["CPU", "Ascend"], "commit": "7edec76e"}


@pytest.mark.parametrize(
    "package, version, found, words",
    [
        ("paddlepaddle", "2.6.2", CPU, None),
        ("paddlepaddle-gpu", "2.6.2", GPU, None),
        ("paddlepaddle-gpu", "2.6.2.post117", GPU, None),
        ("paddlepaddle-gpu", "2.6.2+cu118", GPU, None),
        (None, None, CPU, None),
        ("paddlepaddle-gpu", "2.6.2", CPU, "what was imported is built for CPU"),
        ("paddlepaddle", "2.6.2", GPU, "what was imported is built for CUDA"),
        ("paddlepaddle", "3.0.0", CPU, "asked for 3.0.0, but what was imported is 2.6.2"),
        (
            "paddlepaddle-gpu",
            "2.6.2.post120",
            GPU,
            "built for CUDA 12.0, but what was imported is built for 11.7",
        ),
        ("mindspore", "2.7.0", MIND, None),
        ("mindspore-ascend", "2.7.0", MIND, None),
        (None, "2.7.0", MIND, None),
        ("mindspore", "2.7.0", dict(MIND, targets=["CPU"]), None),
        (
            "mindspore-ascend",
            "2.7.0",
            dict(MIND, targets=["CPU"]),
            "which is built for Ascend, but what was imported is built for CPU",
        ),
        ("mindspore-gpu", "2.7.0", MIND, "is built for CPU and Ascend"),
        ("mindspore", "2.6.0", MIND, "asked for 2.6.0, but what was imported is 2.7.0"),
        ("mindspore", "2.6.2", CPU, "asked for mindspore, but what was imported is Paddle 2.6.2"),
        (
            "paddlepaddle",
            "2.7.0",
            MIND,
            "asked for paddlepaddle, but what was imported is MindSpore 2.7.0",
        ),
    ],
)
def test_what_is_imported_is_what_was_asked_for(package, version, found, words):
    wrong = core.check_import(package, version, found)
    assert (wrong is None) if words is None else (words in wrong)


@pytest.fixture
def installed(tmp_path):
    """A complete environment under digest a*16; returns (home, marker path, site-packages)."""
    directory = tmp_path / "env" / ("a" * 16)
    packages = directory / "lib/python3.11/site-packages"
    (packages / "numpy-1.26.4.dist-info").mkdir(parents=True)
    marker = {
        "version": 1,
        "digest": "a" * 16,
        "interpreter": sys.executable,
        "paths": [str(packages)],
        "packages": {"numpy": "1.26.4"},
    }
    path = directory / core.MARKER
    path.write_text(json.dumps(marker))
    return str(tmp_path), path, packages


def test_a_complete_environment_is_ready(installed):
    home, _, _ = installed
    assert core.inspect_environment(home, "a" * 16)["state"] == "ready"
    assert core.inspect_environment(home, "a" * 16)["marker"]["packages"] == {"numpy": "1.26.4"}


def test_a_marker_of_the_first_release_still_counts(installed):
    home, path, _ = installed
    path.write_text(json.dumps(dict(json.loads(path.read_text()), paddle=CPU)))
    assert core.inspect_environment(home, "a" * 16)["marker"]["imported"] == CPU


def test_no_environment_is_absent(tmp_path):
    assert core.inspect_environment(str(tmp_path), "b" * 16)["state"] == "absent"
    assert core.inspect_environment(str(tmp_path), "b" * 16)["marker"] is None


@pytest.mark.parametrize(
    "content", [None, "", "[]", '{"version": 0}', '{"version": 1, "digest": "cccccccccccccccc"}']
)
def test_without_a_good_marker_it_is_incomplete(installed, content):
    home, path, _ = installed
    path.unlink()
    if content is not None:
        path.write_text(content)
    assert core.inspect_environment(home, "a" * 16)["state"] == "incomplete"
    assert core.inspect_environment(home, "a" * 16)["marker"] is None


def test_another_version_on_one_node_is_noticed(installed):
    home, _, packages = installed
    (packages / "numpy-1.26.4.dist-info").rename(packages / "numpy-2.0.0.dist-info")
    found = core.inspect_environment(home, "a" * 16)
    assert (found["state"], found["marker"]) == ("changed", None)
    assert found["why"].startswith("numpy is 2.0.0 ") and "want 1.26.4" in found["why"]


def test_a_python_that_went_away_is_noticed(installed):
    home, path, _ = installed
    path.write_text(path.read_text().replace(sys.executable, "/no/such/python"))
    found = core.inspect_environment(home, "a" * 16)
    why = found["why"]
    assert found == {"state": "changed", "why": why, "marker": None}
    assert why.startswith("/no/such/python ") and "cannot be run" in why


def test_nodes_that_differ_are_named_with_the_package():
    one = {"packages": {"numpy": "1.26.4"}, "imported": CPU}
    assert core.compare_nodes({"node1": one, "node2": one}) == []
    lines = core.compare_nodes(
        {
            "node1": one,
            "node2": {"packages": {"numpy": "1.26.0"}, "imported": CPU},
            "node3": dict(one, imported=GPU),
        }
    )
    assert lines[0].startswith("node2 ") and "node1" in lines[0]
    assert "numpy is 1.26.0 " in lines[0] and "want 1.26.4" in lines[0]
    assert lines[1].startswith("node3 ") and "what is imported" in lines[1] and len(lines) == 2
    assert core.compare_nodes({}) == []


def test_a_list_may_name_what_has_no_wheel():
    text = "--no-binary seqeval\n--no-binary=Some_Thing, other  # pure Python\nseqeval==1.2.2\n"
    pins, problems = core.parse_requirements(text, "a.txt")
    assert [pin["name"] for pin in pins] == ["seqeval"] and problems == []
    assert core.source_packages([text, "numpy==1\n"]) == ["other", "seqeval", "some-thing"]
    pins, (problem,) = core.parse_requirements("--no-binary :all:", "a.txt")
    assert pins == [] and problem.startswith("a.txt:1: ") and "pip options" in problem
