# SPDX-License-Identifier: Apache-2.0
"""The software that the nodes train with, compared between them.

It compares Python, packages and their files, and CUDA, NCCL and CANN where present. An
environment's marker says what was installed. The present state is looked at each time
(installed_files.py). Only files are read, but for one start of a Python of the user's own, which
has to say where its packages lie.
"""

from __future__ import annotations

import contextlib
import glob
import json
import os
import platform
import re
import sys

from ..base.files import read_text
from ..base.findings import finding, unequal
from ..environments import (
    installed_files,
    native_libraries,
    python_env,
)
from . import devices, driver_cuda

# The number of packages to name one by one; the rest is counted.
NAMED = 6
REPAIR = (
    "ansible-playbook playbooks/sync.yml with the same config removes the changed"
    " environment and installs it again"
)
# How the packages of the frameworks begin.
FRAMEWORKS = ("paddlepaddle", "mindspore")
INSTALL = (
    "install the framework that the suite needs into it, or name another one in the site's"
    " environment.python; the rehearsal tries the import"
)
OWN = (
    "nothing is ever installed into a Python of your own: make them equal by hand, or let"
    " environment.package have one installed"
)
# The Pythons and machines that an environment is computed for before the nodes' are known
# (environment_digest needs both).
PYTHONS = tuple(f"3.{minor}" for minor in range(8, 15))
MACHINES = ("x86_64", "aarch64")

ABOUT = """
import json, platform, sys
names = ("site-packages", "dist-packages")
paths = [path for path in sys.path if path.rstrip("/").rsplit("/", 1)[-1] in names]
print(json.dumps({"python": platform.python_version(), "paths": paths, "prefix": sys.prefix}))
"""


def possible_digests(environment, project, product):
    """Return the digests that an environment can have, or [] if not resolvable.

    There is one for each Python and machine. Runs on the controller: the probe looks at these
    alone, since a node may hold the environments of many suites. project, product: directories of
    the controller, see python_env.requirement_texts.
    """
    digests = set()
    try:
        names = environment.get("requirements") or []
        texts = python_env.requirement_texts(names, project, product)
    except (python_env.EnvironmentRefused, OSError):  # the plan says which list is not there
        return []
    for python in PYTHONS:
        for machine in MACHINES:
            try:
                digests.add(python_env.environment_digest(environment, texts, python, machine))
            except python_env.EnvironmentRefused:
                # A list may pin two versions for one Python. The plan says it where it is the
                # nodes'.
                continue
    return sorted(digests)


# --- on the node


def _python_version(run_command, interpreter):
    """Return '3.11.2' of an interpreter, or '' where it cannot be run."""
    if os.path.realpath(interpreter) == os.path.realpath(sys.executable):
        return platform.python_version()  # spares a start
    code, out, _err = run_command(
        [interpreter, "-I", "-S", "-B", "-c", "import platform; print(platform.python_version())"]
    )
    if code:
        return ""
    return out.strip()


def _conda_packages(prefix):
    """Return {'conda:name': 'version-build'} of the packages that conda installed.

    CUDA and NCCL may be among them.
    """
    packages = {}
    for path in glob.glob(os.path.join(prefix, "conda-meta", "*.json")):
        parts = os.path.basename(path)[: -len(".json")].rsplit("-", 2)
        name, version, build = (parts + ["", ""])[:3]
        packages["conda:" + name] = f"{version}-{build}"
    return packages


def _state(paths, packages, checked, **more):
    """Return the state of one environment of a node, as plain data."""
    return dict(
        packages={name: package["version"] for name, package in packages.items()},
        builds={name: installed_files.build_digest(package) for name, package in packages.items()},
        frameworks=native_libraries.frameworks(paths),
        files=checked["files"],
        bytes=checked["bytes"],
        seconds=checked["seconds"],
        wrong=checked["wrong"],
        **more,
    )


def managed(run, directory, verify):
    """Return the state of an environment of ours, or None.

    None stands for an incomplete one, which the plan completes, and for one of a container.
    """
    path = os.path.join(directory, python_env.MARKER)
    try:
        marker = json.loads(read_text(path, 1 << 20))
        paths, interpreter = marker["paths"], marker["interpreter"]
        expected, python = marker["packages"], marker["python"]
    except (ValueError, KeyError, TypeError, RecursionError):
        return None
    if marker.get("container") or not marker.get("managed") or not os.access(interpreter, os.X_OK):
        return None
    packages = installed_files.find_packages(paths)
    version = _python_version(run, interpreter)
    checked = installed_files.check_environment(path, paths, packages, verify)
    state = _state(paths, packages, checked, python=version)
    state["want"] = {
        name: expected.get(name)
        for name in sorted(set(expected) | set(packages))
        if expected.get(name) != state["packages"].get(name)
    }
    if version.split(".")[:2] != python.split(".")[:2]:
        text = f"its Python is {version or 'none that starts'} and was {python}"
        state["wrong"][text] = "python"
    if not re.search(
        r"^include-system-site-packages\s*=\s*false",
        read_text(os.path.join(directory, "pyvenv.cfg"), native_libraries.HEAD),
        re.MULTILINE,
    ):
        state["wrong"]["pyvenv.cfg"] = "config"
    return state


def own(run, python, verify):
    """Return the state of the user's own Python, or {error: words}.

    The words say why it cannot be started. It writes nothing: -B.
    """
    code, out, err = run(["timeout", "20", python, "-B", "-c", ABOUT])
    about = None
    if code == 0:
        with contextlib.suppress(ValueError, IndexError, RecursionError):
            about = json.loads(out.strip().splitlines()[-1])
    if not about:
        return {"error": (err.strip().splitlines() or [f"ended with {code}"])[-1][:200]}
    paths = about["paths"]
    packages = installed_files.find_packages(paths)
    checked = installed_files.check_files(paths, packages, None, verify)
    state = _state(paths, packages, checked, python=about["python"])
    state["packages"].update(_conda_packages(about["prefix"]))
    return state


def look(run, base, questions):
    """Return {environments: {digest: state}, own: state or None, libraries}.

    libraries: {name: version}. questions: environments (digests), python, verify.
    """
    verify, python = questions.get("verify") or "cached", questions.get("python")
    result = {"environments": {}, "own": None}
    if python:
        if os.access(python, os.X_OK):
            result["own"] = own(run, python, verify)
    else:
        folder = os.path.join(base, "env")
        for name in _environment_names(folder, questions.get("environments")):
            state = managed(run, os.path.join(folder, name), verify)
            if state:
                result["environments"][name] = state
    result["libraries"] = native_libraries.libraries(run)
    return result


def _environment_names(folder, digests):
    """Return the sorted names of the environments in a folder.

    digests: those to return, or None for all.
    """
    if not os.path.isdir(folder):
        return []
    names = [name for name in os.listdir(folder) if python_env.DIGEST.fullmatch(name)]
    if digests is not None:
        names = [name for name in names if name in digests]
    return sorted(names)


def damaged(looked):
    """Return the digests of environments that changed since their installation.

    looked: as look returns it, or None.
    """
    return [
        digest
        for digest, state in ((looked or {}).get("environments") or {}).items()
        if state["want"] or state["wrong"]
    ]


# --- on the controller


def _differences(states, part):
    """Return [(name, {node: value})] of a part's values that differ.

    A node that lacks the value has 'none'.
    """
    names = sorted({name for state in states.values() for name in state[part]})
    rows = []
    for name in names:
        values = {node: state[part].get(name, "none") for node, state in states.items()}
        if len(set(map(str, values.values()))) > 1:
            rows.append((name, values))
    return rows


def _unequal_packages(states, remedy):
    """Return (findings, names) of the packages that differ between nodes."""
    rows = _differences(states, "packages")
    names = {name for name, _values in rows}
    for name, values in _differences(states, "builds"):
        # without RECORDs there is nothing to compare
        if name not in names and all(values.values()):
            names.add(name)
            version = next(iter(states.values()))["packages"].get(name)
            rows.append((f"{name} {version} (files, by their list's digest)", values))
    findings = []
    for label, values in rows[:NAMED]:
        findings += unequal("environment.packages_differ", label, values, remedy)
    if len(rows) > NAMED:
        text = f"{len(rows) - NAMED} more packages differ between the nodes"
        findings.append(finding("environment.packages_differ", text, remedy))
    return findings, names


def _environment_findings(states, remedy):
    """Return findings of one environment. states: {node: state}."""
    findings, unequal_names = _unequal_packages(states, remedy)
    if not unequal_names:
        # A framework built from source has no list of files that distinguishes builds. A damaged
        # one shows it by its files.
        undamaged = {node: state for node, state in states.items() if not state["wrong"]}
        for name, values in _differences(undamaged, "frameworks"):
            builds = {node: _build_text(build) for node, build in values.items()}
            findings += unequal("environment.build_differs", f"the build of {name}", builds, remedy)
    for node, state in states.items():
        changes = []
        for name, version in (state.get("want") or {}).items():
            if name not in unequal_names:
                current = state["packages"].get(name, "gone")
                changes.append(f"{name} is {current}, installed was {version or 'none'}")
        if changes:
            text = f"changed since the installation: {'; '.join(changes[:NAMED])}"
            if len(changes) > NAMED:
                text += f" and {len(changes) - NAMED} more"
            findings.append(finding("environment.version_changed", text, remedy, node))
    return findings


def _build_text(build):
    """Return the build of a framework as text. build: {key: value} or 'none'."""
    if build == "none":
        return build
    return " ".join(f"{key} {value}" for key, value in sorted(build.items()))


def _managed_findings(states, remedy):
    """Return findings of an environment of ours: versions, then files."""
    findings = _environment_findings(states, remedy)
    for node, state in states.items():
        if state["wrong"]:
            differences = installed_files.format_differences(state["wrong"])
            text = f"changed since the installation: {differences}"
            findings.append(finding("environment.files_changed", text, remedy, node))
    return findings


def _has_framework(state):
    """Return whether an environment has a framework: its package or its own files."""
    names = (name.split(":")[-1].lower() for name in state["packages"])
    return bool(state["frameworks"]) or any(name.startswith(FRAMEWORKS) for name in names)


def _own_findings(states):
    """Return findings of the user's own Python: only what differs between nodes.

    A person may have changed files on purpose.
    """
    findings = []
    for node, state in states.items():
        if "error" in state:
            text = f"the site's environment.python cannot be started: {state['error']}"
            findings.append(finding("environment.cannot_start", text, OWN, node))
    states = {node: state for node, state in states.items() if "error" not in state}
    for node, state in states.items():
        if not _has_framework(state):
            text = "the site's environment.python has neither Paddle nor MindSpore"
            findings.append(finding("environment.no_framework", text, INSTALL, node, "warn"))
    findings += _environment_findings(states, OWN)
    files = _differences(states, "wrong")
    for path, values in files[:NAMED]:
        conditions = dict(values)
        for node, value in values.items():
            if value == "none":
                conditions[node] = "as installed"
        findings += unequal("environment.files_differ", path, conditions, OWN)
    if len(files) > NAMED:
        text = f"{len(files) - NAMED} more files differ between the nodes"
        findings.append(finding("environment.files_differ", text, OWN))
    equal_files = {
        path: reason
        for state in states.values()
        for path, reason in state["wrong"].items()
        if path not in dict(files)
    }
    if equal_files:
        files_text = installed_files.format_differences(equal_files)
        text = f"changed since their installation, equally on all nodes: {files_text}"
        findings.append(finding("environment.files_changed_equally", text, "", states, "note"))
    return findings


def _verify_note(states, verify):
    """Return a note of the time that a sampled or full look took."""
    if verify == "cached" or not states:
        return []
    name, state = max(states.items(), key=lambda pair: pair[1].get("seconds", 0))
    # int(): the gate lets fractions through.
    megabytes, files = int(state.get("bytes", 0) // 1000000), int(state.get("files", 0))
    text = (
        f"verify={verify} read {megabytes} MB in {files} files of the environment on each node, in"
        f" {state.get('seconds', 0):.1f} s at most ({name})"
    )
    return [finding("environment.verified", text, level="note")]


def _system_findings(nodes, looked, states):
    """Return findings of the system's libraries and drivers for the devices."""
    kinds = {node["accelerator"] for node in nodes}
    packages = {name for state in states.values() for name in state.get("packages") or {}}
    names = []
    if "gpu" in kinds:
        for name, wheel in native_libraries.LIBRARIES.items():
            if not any(package.startswith(wheel) for package in packages):
                names.append(name)
        names.append("cuda toolkit")
    if "ascend" in kinds:
        names += ["cann", "ascend driver"]
    findings = []
    for name in names:
        # Peers talk NCCL or HCCL with each other. The rest is each node's own matter.
        level = "warn"
        if name in ("nccl", "cann"):
            level = "stop"
        versions = {node: state["libraries"].get(name, "none") for node, state in looked.items()}
        findings += unequal(
            "environment.library_differs", name, versions, "install the same one", level
        )
    return findings


def judge(nodes, facts, allowed):
    """Return findings about the software that the nodes train with.

    facts: {node: facts}, of which `installed` is read, and `python_version`, `libc`, `containers`
    beside it. allowed: verify (cached, sample, full), repair (sync.yml is going to fix ours).
    """
    looked = {}
    for node in nodes:
        if facts[node["name"]].get("installed"):
            looked[node["name"]] = facts[node["name"]]["installed"]
    findings, states = [], {}
    digests = {digest for state in looked.values() for digest in state.get("environments") or {}}
    for digest in sorted(digests):
        same_digest = {
            node: state["environments"][digest]
            for node, state in looked.items()
            if digest in state["environments"]
        }
        states.update(same_digest)
        if not allowed.get("repair"):
            findings += _managed_findings(same_digest, REPAIR)
    own_states = {node: state["own"] for node, state in looked.items() if state.get("own")}
    states.update(own_states)
    findings += _own_findings(own_states)
    findings += _python_findings(states)
    libraries = {node: facts[node]["libc"] for node in looked if facts[node].get("libc")}
    findings += unequal(
        "environment.libc_differs", "the C library (glibc)", libraries, level="note"
    )
    findings += _image_findings({node: facts[node].get("containers") or {} for node in looked})
    findings += _system_findings(nodes, looked, states)
    levels = dict(devices.LEVELS, **(allowed.get("devices") or {}))
    findings += driver_cuda.judge(nodes, facts, states, levels["cuda"])
    return findings + _verify_note(states, allowed.get("verify") or "cached")


def _python_findings(states):
    """Return the finding that the versions of Python differ."""
    versions = {node: state["python"] for node, state in states.items() if state.get("python")}
    minors = {tuple(version.split(".")[:2]) for version in versions.values()}
    remedy = (
        "bring the same Python to all nodes, or name one that all have: runtime_interpreter, or the"
        " suite's environment.python"
    )
    level = "warn"
    if len(minors) > 1:
        level = "stop"
    return unequal("environment.python_differs", "Python", versions, remedy, level)


def _image_findings(containers):
    """Return findings of unequal images. containers: {node: {digest: container}}."""
    findings = []
    remedy = "bring the same image to all nodes, then ansible-playbook playbooks/provision.yml"
    for digest in sorted({digest for of_node in containers.values() for digest in of_node}):
        images = {
            node: of_node[digest].get("image_sha256")
            for node, of_node in containers.items()
            if digest in of_node
        }
        findings += unequal("environment.image_differs", "the image", images, remedy)
    return findings
