# SPDX-License-Identifier: Apache-2.0
"""What nodes train with, on real directories of packages: an environment of ours with its marker,
and a real Python of the user's own.
"""

import base64
import hashlib
import json
import os
import shutil
import subprocess
import sys
import time
from pathlib import Path

import pytest
from ansible_collections.trainyard.cluster.plugins.module_utils.environments import (
    installed_files,
    native_libraries,
    python_env,
)
from ansible_collections.trainyard.cluster.plugins.module_utils.preflight import probe
from ansible_collections.trainyard.cluster.plugins.module_utils.preflight import (
    software as installed,
)
from core_support import ROOT

DIGEST = "a" * 16
CODE = "paddle/nn/layer.py"
SITE = "lib/python3/site-packages"


def run(argv):
    """Run a program as a module does."""
    try:
        done = subprocess.run(
            argv, capture_output=True, text=True, check=False, stdin=subprocess.DEVNULL
        )
    except OSError as error:
        return 127, "", str(error)
    return done.returncode, done.stdout, done.stderr


def package(site, name, version, files):
    """Lay a package down as an installer does: its files, then its RECORD."""
    inside = f"{name}-{version}.dist-info"
    (site / inside).mkdir(parents=True)
    rows = []
    for path, text in {
        **files,
        f"../../../bin/{name}": f"#!{site}/python\n",
    }.items():  # a script differs with the home directory
        (site / path).parent.mkdir(parents=True, exist_ok=True)
        (site / path).write_text(text)
        checksum = (
            base64.urlsafe_b64encode(hashlib.sha256(text.encode()).digest()).rstrip(b"=").decode()
        )
        rows.append("%s,sha256=%s,%d" % (path, checksum, len(text.encode())))
    (site / inside / "RECORD").write_text("\n".join([*rows, f"{inside}/RECORD,,"]) + "\n")


def mark(target):
    """Write the marker, as the last step of an installation does, one tick of the file system's
    clock after everything else.
    """
    site = target / SITE
    time.sleep(0.02)
    content = {
        "version": python_env.FORMAT, "digest": DIGEST, "interpreter": sys.executable, "managed": True, "python": "%d.%d.%d" % sys.version_info[:3],
        "packages": python_env.installed_packages([str(site)]), "paths": [str(site)], "fingerprint": "f", "imported": {"version": "2.6.2"},
    }  # fmt: skip
    (target / python_env.MARKER).write_text(json.dumps(content))


def make(base):
    """Make an environment of ours below a product directory; return its directory of packages."""
    target = base / "env" / DIGEST
    site = target / SITE
    package(
        site,
        "paddlepaddle",
        "2.6.2",
        {
            CODE: "x = 1\n",
            "paddle/__init__.py": "",
            "paddle/version/__init__.py": "full_version     = '2.6.2'\n",
        },
    )
    package(site, "numpy", "1.26.4", {"numpy/__init__.py": "", "numpy/core/_c.so": "elf"})
    (site / "_virtualenv.py").write_text("# uv's own\n")
    (target / "pyvenv.cfg").write_text("home = /usr/bin\ninclude-system-site-packages = false\n")
    mark(target)
    return site


@pytest.fixture(name="nodes")
def two_nodes(tmp_path):
    """Return {node: (its product directory, its directory of packages)} of two nodes with the same
    environment.
    """
    return {name: (tmp_path / name, make(tmp_path / name)) for name in ("node1", "node2")}


def looked(nodes, **asked):
    """Return the facts of the nodes, as node_info does."""
    return {
        name: {"installed": installed.look(run, str(base), asked), "libc": "2.36"}
        for name, (base, _site) in nodes.items()
    }


def judged(facts, accelerator="cpu", **allowed):
    """Return the findings: [(level, nodes, code, text)]."""
    nodes = [{"name": name, "accelerator": accelerator} for name in facts]
    return [
        (item["level"], item["nodes"], item["code"], item["text"])
        for item in installed.judge(nodes, facts, allowed)
    ]


def edit_unseen(path, text):
    """Write other content of the same size in place, and set the time of modification back."""
    before = path.stat()
    assert len(text) == before.st_size
    time.sleep(0.02)
    path.write_text(text)
    os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))


def other_version(site):
    """Do what `pip install paddlepaddle==2.6.1` does to an environment with another version."""
    shutil.rmtree(site / "paddlepaddle-2.6.2.dist-info")
    package(
        site,
        "paddlepaddle",
        "2.6.1",
        {
            CODE: "x = 1\n",
            "paddle/__init__.py": "",
            "paddle/version/__init__.py": "full_version     = '2.6.1'\n",
        },
    )


def test_equal_and_unchanged_environments_say_nothing(nodes):
    facts = looked(nodes)
    state = facts["node1"]["installed"]["environments"][DIGEST]
    assert state["packages"] == {"paddlepaddle": "2.6.2", "numpy": "1.26.4"} and state[
        "frameworks"
    ] == {"paddle": {"version": "2.6.2"}}
    assert (state["want"], state["wrong"], state["bytes"], state["files"]) == ({}, {}, 0, 6)
    assert judged(facts) == []
    assert judged(looked(nodes, verify="full"), verify="cached") == []


def test_another_version_on_one_node_is_named_with_both(nodes):
    other_version(nodes["node2"][1])
    ((level, odd, code, text),) = judged(looked(nodes))
    assert (level, odd) == ("stop", ["node1", "node2"])
    assert code == "environment.packages_differ" and text.startswith("paddlepaddle ")
    assert "2.6.2 on node1" in text and "2.6.1 on node2" in text
    other_version(nodes["node1"][1])
    found = judged(looked(nodes))
    assert [item[:3] for item in found] == [
        ("stop", [name], "environment.version_changed") for name in nodes
    ]
    assert all(
        "paddlepaddle is 2.6.1" in text and text.endswith(" 2.6.2") for *_fields, text in found
    )


def test_one_version_of_two_builds_is_noticed(nodes):
    base, site = nodes["node2"]
    package(site, "numpy", "1.26.4+local", {"numpy/__init__.py": "other"})
    (site / "numpy-1.26.4+local.dist-info" / "RECORD").replace(
        site / "numpy-1.26.4.dist-info" / "RECORD"
    )
    (site / "numpy-1.26.4+local.dist-info").rmdir()
    mark(base / "env" / DIGEST)
    ((level, odd, code, text),) = judged(looked(nodes))
    assert (level, odd, code) == ("stop", ["node1", "node2"], "environment.packages_differ")
    assert text.startswith("numpy 1.26.4 (files, ")


def test_builds_of_a_framework_that_lists_no_files_are_told_apart_by_its_own_words(nodes):
    for commit, (base, site) in zip(("1a2b", "3c4d"), nodes.values()):
        (
            site / "paddlepaddle-2.6.2.dist-info" / "RECORD"
        ).unlink()  # as where it was built from source
        (site / "paddle/version/__init__.py").write_text(
            f"full_version = '2.6.2'\ncommit = '{commit}'\n"
        )
        mark(base / "env" / DIGEST)
    ((level, odd, code, text),) = judged(looked(nodes))
    assert (level, odd, code) == ("stop", ["node1", "node2"], "environment.build_differs")
    assert "paddle" in text and "commit 1a2b version 2.6.2 on node1" in text
    assert text.endswith("commit 3c4d version 2.6.2 on node2")


def test_of_many_packages_that_differ_the_rest_is_counted(nodes):
    for number in range(installed.NAMED + 3):
        package(nodes["node2"][1], "extra%d" % number, "1.0", {})
    mark(nodes["node2"][0] / "env" / DIGEST)
    found = judged(looked(nodes))
    assert {item[2] for item in found} == {"environment.packages_differ"}
    assert len(found) == installed.NAMED + 1 and found[-1][3].startswith("3 more packages ")


def test_unequal_images_are_named():
    facts = {
        name: {"installed": {"libraries": {}}, "containers": {DIGEST: {"image_sha256": said}}}
        for name, said in (("node1", "aa"), ("node2", "bb"))
    }
    ((level, odd, code, text),) = judged(facts)
    assert (level, odd, code) == ("stop", ["node1", "node2"], "environment.image_differs")
    assert "aa on node1" in text and "bb on node2" in text
    facts["node2"]["containers"][DIGEST]["image_sha256"] = "aa"
    assert judged(facts) == []


def test_a_file_with_other_content_and_the_same_size_and_time_is_named(nodes):
    edit_unseen(nodes["node2"][1] / CODE, "x = 2\n")
    ((level, odd, code, text),) = judged(looked(nodes))
    assert (level, odd, code) == ("stop", ["node2"], "environment.files_changed")
    assert text.endswith(f": {CODE}")


def test_new_and_missing_files_are_named(nodes):
    site = nodes["node2"][1]
    time.sleep(0.02)
    (site / "sitecustomize.py").write_text("import os\n")
    (site / "paddle/version/__init__.py").unlink()
    (site / "paddle/version").rmdir()
    (site / "numpy/core/_c.so").unlink()
    found = judged(looked(nodes))
    ((_level, odd, code, text),) = found
    assert odd == ["node2"]
    assert code == "environment.files_changed"
    assert text.partition(": ")[2].split(", ") == [
        "numpy/core/_c.so (missing)",
        "paddle/version/__init__.py (missing)",
        "sitecustomize.py (new)",
    ]


def test_late_times_without_a_change_are_read_once(nodes):
    site = nodes["node1"][1]
    time.sleep(0.02)
    (site / CODE).chmod(0o600)  # another ctime, the same content
    (site / "paddle/__pycache__").mkdir()
    (site / "paddle/__pycache__/layer.pyc").write_text("")
    time.sleep(0.02)
    first, second = (
        installed.look(run, str(nodes["node1"][0]), {})["environments"][DIGEST] for _ in range(2)
    )
    assert (first["bytes"], first["wrong"]) == (6, {}) and (second["bytes"], second["wrong"]) == (
        0,
        {},
    )
    edit_unseen(site / CODE, "x = 3\n")
    assert installed.look(run, str(nodes["node1"][0]), {})["environments"][DIGEST][
        "wrong"
    ].keys() == {CODE}


def test_what_changed_before_the_marker_needs_the_full_look(nodes):
    base, site = nodes["node2"]
    (site / CODE).write_text("x = 4\n")
    mark(base / "env" / DIGEST)  # a disk that returns another byte, a clock that was turned back
    assert judged(looked(nodes)) == []
    facts = looked(nodes, verify="full")
    stop, note = judged(facts, verify="full")
    assert stop[:3] == ("stop", ["node2"], "environment.files_changed")
    assert stop[3].endswith(f": {CODE}")
    assert (note[0], note[2]) == ("note", "environment.verified")
    assert "read 0 MB in 9 files " in note[3]
    assert python_env.inspect_environment(str(base), DIGEST)["state"] == "ready"
    found = python_env.inspect_environment(str(base), DIGEST, "full")
    assert found["state"] == "changed" and found["why"].endswith(f": {CODE}")


def test_a_changed_file_is_provisioned_again_and_sync_goes_on(nodes, monkeypatch):
    base, site = nodes["node2"]
    edit_unseen(site / CODE, "x = 2\n")
    assert python_env.inspect_environment(str(base), DIGEST)["why"].endswith(f": {CODE}")
    assert judged(looked(nodes), repair=True) == []
    monkeypatch.setattr(probe, "SUBJECTS", {"installed": installed})
    (base / "env" / DIGEST / "bin/python").symlink_to(sys.executable)
    assert probe.look(run, str(base), [], [], questions={"verify": "cached"})["environments"] == {}
    (site / CODE).write_text("x = 1\n")
    assert probe.look(run, str(base), [], [], questions={"verify": "cached"})["environments"] == {
        DIGEST: "f"
    }


def test_the_systems_packages_let_in_and_another_python_are_named(nodes):
    target = nodes["node2"][0] / "env" / DIGEST
    (target / "pyvenv.cfg").write_text("include-system-site-packages = true\n")
    marker = json.loads((target / python_env.MARKER).read_text())
    (target / python_env.MARKER).write_text(json.dumps(dict(marker, python="3.2.1")))
    ((_level, odd, code, text),) = judged(looked(nodes))
    assert (
        (odd, code) == (["node2"], "environment.files_changed")
        and "its Python is %d.%d" % sys.version_info[:2] in text
        and "was 3.2.1" in text
        and "pyvenv.cfg" in text
    )


def test_only_the_jobs_environment_is_looked_at(nodes):
    assert looked(nodes, environments=["b" * 16])["node1"]["installed"]["environments"] == {}
    wanted = {
        "package": "paddlepaddle",
        "version": "2.6.2",
        "requirements": ["paddledetection.txt"],
    }
    digest = python_env.environment_digest(
        wanted,
        python_env.requirement_texts(wanted["requirements"], str(ROOT), str(ROOT)),
        "3.11",
        "x86_64",
    )
    assert (
        digest in installed.possible_digests(wanted, str(ROOT), str(ROOT))
        and len(installed.possible_digests(wanted, str(ROOT), str(ROOT))) > 2
    )
    assert (
        installed.possible_digests(dict(wanted, requirements=["nowhere.txt"]), str(ROOT), str(ROOT))
        == []
    )


@pytest.fixture(name="owns")
def two_own_pythons(tmp_path):
    """Return {node: (product directory, packages, interpreter)} of two real virtual environments of
    the user's own.
    """
    found = {}
    for name in ("node1", "node2"):
        place = tmp_path / name / "venv"
        subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(place)], check=True)
        (site,) = place.glob("lib/python3*/site-packages")
        package(site, "paddlepaddle", "2.6.2", {CODE: "x = 1\n", "paddle/data.bin": "1"})
        found[name] = (tmp_path / name, site, str(place / "bin/python"))
    return found


def own_facts(owns, **asked):
    """Return the facts of nodes with a Python of the user's own."""
    return {
        name: {"installed": installed.look(run, str(base), dict(asked, python=python))}
        for name, (base, _site, python) in owns.items()
    }


def test_the_users_own_python_is_compared_and_not_written_to(owns, monkeypatch):
    monkeypatch.delenv("PYTHONDONTWRITEBYTECODE", raising=False)
    (owns["node1"][1] / "sitecustomize.py").write_text(
        "x = 1\n"
    )  # every start imports it, and would keep its bytecode
    before = sorted(str(path) for path in owns["node1"][0].rglob("*"))
    facts = own_facts(owns)
    assert (
        facts["node1"]["installed"]["own"]["packages"] == {"paddlepaddle": "2.6.2"}
        and judged(facts) == []
    )
    assert sorted(str(path) for path in owns["node1"][0].rglob("*")) == before
    package(owns["node2"][1], "numpy", "2.0.0", {"numpy/__init__.py": ""})
    ((level, odd, code, text),) = judged(own_facts(owns))
    assert (level, odd, code) == ("stop", ["node1", "node2"], "environment.packages_differ")
    assert text.startswith("numpy ") and "none on node1" in text and "2.0.0 on node2" in text


def test_an_own_python_without_a_framework_is_warned_of(owns):
    for _base, site, _python in owns.values():
        shutil.rmtree(next(site.glob("paddlepaddle-*.dist-info")))
    warned = [finding for finding in judged(own_facts(owns)) if finding[0] == "warn"]
    assert [finding[1:3] for finding in warned] == [
        (["node1"], "environment.no_framework"),
        (["node2"], "environment.no_framework"),
    ]


def test_an_edit_in_the_users_own_python_counts_where_nodes_differ(owns):
    for _base, site, _python in owns.values():
        (site / CODE).write_text("x = 1 + 1\n")
    ((level, odd, code, text),) = judged(own_facts(owns))
    assert (level, code) == ("note", "environment.files_changed_equally")
    assert odd == ["node1", "node2"] and text.endswith(f": {CODE}")
    (owns["node2"][1] / CODE).write_text("x = 1 + 2\n")
    ((level, _odd, code, text),) = judged(own_facts(owns))
    assert (level, code) == ("stop", "environment.files_differ") and text.startswith(f"{CODE} ")
    (owns["node1"][1] / CODE).write_text("x = 1\n")
    ((_level, _odd, _code, text),) = judged(own_facts(owns))
    assert "as installed on node1" in text


def test_the_full_look_reads_every_file_of_the_users_own_python(owns):
    (owns["node2"][1] / "paddle/data.bin").write_text("2")
    assert judged(own_facts(owns)) == []
    found = judged(own_facts(owns, verify="full"), verify="full")[0]
    assert found[2] == "environment.files_differ" and found[3].startswith("paddle/data.bin ")
    assert "as installed on node1" in found[3]


def test_a_python_that_does_not_start_is_named(tmp_path):
    python = tmp_path / "python"
    python.write_text("#!/bin/sh\necho broken libpython >&2; exit 3\n")
    python.chmod(0o755)
    facts = {"node1": {"installed": installed.look(run, str(tmp_path), {"python": str(python)})}}
    ((level, odd, code, text),) = judged(facts)
    assert (level, odd, code) == ("stop", ["node1"], "environment.cannot_start")
    assert text.endswith(": broken libpython")


def test_libraries_are_read_from_their_real_files(tmp_path, monkeypatch):
    for name, real in (
        ("libnccl.so.2", "libnccl.so.2.18.5"),
        ("libcudnn.so.8", "libcudnn.so.8.9.7"),
    ):
        (tmp_path / real).write_text("")
        (tmp_path / name).symlink_to(real)
    listing = "2 libs found in cache `/etc/ld.so.cache'\n"
    listing += "".join(
        f"\t{name} (libc6,x86-64) => {tmp_path}/{name}\n"
        for name in ("libcudnn.so.8", "libnccl.so.2")
    )
    (tmp_path / "version.cfg").write_text(  # as CANN 8.0.RC2 writes it
        "# version:"
        " 1.0\nruntime_running_version=[7.3.0.1.231:8.0.RC2]\nruntime_upgrade_version=[7.3.0.1.231:8.0.RC2]\n"
    )
    monkeypatch.setattr(
        native_libraries, "VENDOR_FILES", {"cann": (str(tmp_path / "version.cfg"),)}
    )
    told = native_libraries.libraries(lambda argv: (0, listing, ""))
    assert told == {"nccl": "2.18.5", "cudnn": "8.9.7", "cann": "7.3.0.1.231:8.0.RC2"}


def test_nccl_of_the_system_counts_where_no_wheel_brings_it(nodes):
    facts = looked(nodes)
    facts["node1"]["installed"]["libraries"], facts["node2"]["installed"]["libraries"] = (
        {"nccl": "2.18.5"},
        {"nccl": "2.19.3"},
    )
    assert judged(facts) == []
    ((level, odd, code, text),) = judged(facts, accelerator="gpu")
    assert (level, odd, code) == ("stop", ["node1", "node2"], "environment.library_differs")
    assert text.startswith("nccl ") and "2.18.5 on node1" in text and "2.19.3 on node2" in text
    for fact in facts.values():
        fact["installed"]["environments"][DIGEST]["packages"]["nvidia-nccl-cu12"] = "2.19.3"
    assert judged(facts, accelerator="gpu") == []


@pytest.mark.parametrize("name, level", [("cann", "stop"), ("ascend driver", "warn")])
def test_the_vendors_software_counts_where_the_job_has_such_devices(nodes, name, level):
    facts = looked(nodes)
    facts["node1"]["installed"]["libraries"], facts["node2"]["installed"]["libraries"] = (
        {name: "8.0.RC2"},
        {name: "8.0.RC3"},
    )
    assert judged(facts) == []
    ((found, odd, code, text),) = judged(facts, accelerator="ascend")
    assert (found, odd, code) == (level, ["node1", "node2"], "environment.library_differs")
    assert text.startswith(f"{name} ")
    assert "8.0.RC2 on node1" in text and "8.0.RC3 on node2" in text


def test_older_facts_are_passed_over():
    assert judged({"node1": {"libc": "2.36"}}) == []


def test_versions_come_from_metadata_where_the_name_has_none(tmp_path):
    (tmp_path / "tool.egg-info").mkdir()
    (tmp_path / "tool.egg-info" / "PKG-INFO").write_text(
        "Metadata-Version: 2.1\nName: tool\nVersion: 3.2\n"
    )
    (tmp_path / "empty.egg-info").mkdir()
    assert {
        name: item["version"]
        for name, item in installed_files.find_packages([str(tmp_path)]).items()
    } == {"tool": "3.2"}
    assert (
        Path(installed_files.find_packages([str(tmp_path)])["tool"]["place"]).name
        == "tool.egg-info"
    )


@pytest.mark.parametrize("other,level", [("3.11.9", "warn"), ("3.12.2", "stop")])
def test_unequal_pythons_are_warned_of_within_one_minor_version(nodes, other, level):
    facts = looked(nodes)
    for fact, version in zip(facts.values(), ("3.11.2", other)):
        fact["installed"]["environments"][DIGEST]["python"] = version
    ((found, odd, code, text),) = judged(facts)
    assert (found, odd, code) == (level, ["node1", "node2"], "environment.python_differs")
    assert "3.11.2 on node1" in text and f"{other} on node2" in text
