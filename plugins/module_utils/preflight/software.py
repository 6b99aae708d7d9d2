# SPDX-License-Identifier: Apache-2.0
"""Whether the nodes train with the same software: Python, packages and their files, CUDA, NCCL and
CANN where present.

An environment's marker says what was installed; what is there now is looked at each time
(distributions.py). Only files are read, but for one start of a Python of the user's own, which has
to say where its packages lie.
"""

from __future__ import annotations

import glob
import json
import os
import platform
import re
import sys

from ..base.findings import finding, unequal
from ..base.unit_limits import text_of
from ..environments import (
    installed_files,
    native_libraries,
    python_env,
)

CHECK = "environment"
# So many packages are named one by one; the rest is counted.
NAMED = 6
REPAIR = (
    "playbooks/sync.yml with the same config removes the changed environment and installs it again"
)
OWN = (
    "nothing is ever installed into a Python of your own: make them equal by hand, or let"
    " environment.package have one installed"
)
# Which Pythons and machines an environment is computed for before anybody knows the nodes'
# (environment_digest needs both).
PYTHONS = tuple("3.%d" % minor for minor in range(8, 15))
MACHINES = ("x86_64", "aarch64")

ABOUT = """
import json, platform, sys
own = [p for p in sys.path if p.rstrip("/").rsplit("/", 1)[-1] in ("site-packages", "dist-packages")]
print(json.dumps({"python": platform.python_version(), "paths": own, "prefix": sys.prefix}))
"""


def possible_digests(wanted, project):
    """Return the digests that an environment can have on the nodes, whatever their Python and
    machine; [] where it cannot be resolved.

    Runs on the controller: the probe looks at these alone, since a node may hold the environments
    of many suites. project: its directory there.
    """
    digests = set()
    try:
        texts = python_env.requirement_texts(wanted.get("requirements") or [], project)
    except (python_env.EnvironmentRefused, OSError):  # the plan says which list is not there
        return []
    for python in PYTHONS:
        for machine in MACHINES:
            try:
                digests.add(python_env.environment_digest(wanted, texts, python, machine))
            except python_env.EnvironmentRefused:  # a list may pin two versions for one Python; the plan says it where it is the nodes'
                continue
    return sorted(digests)


# --- on the node
# -----------------------------------------------------------------------------------------------------------------------


def _python_version(run, interpreter):
    """Return '3.11.2' of an interpreter, '' where it cannot be run; a start is spared where it is
    the one that runs this.
    """
    if os.path.realpath(interpreter) == os.path.realpath(sys.executable):
        return platform.python_version()
    code, out, _err = run(
        [interpreter, "-I", "-S", "-B", "-c", "import platform; print(platform.python_version())"]
    )
    return out.strip() if code == 0 else ""


def _conda(prefix):
    """Return {'conda:name': 'version-build'} of what conda installed beside Python's packages (CUDA
    and NCCL may be among it).
    """
    told = {}
    for path in glob.glob(os.path.join(prefix, "conda-meta", "*.json")):
        name, version, build = (os.path.basename(path)[: -len(".json")].rsplit("-", 2) + ["", ""])[
            :3
        ]
        told["conda:" + name] = f"{version}-{build}"
    return told


def _state(paths, packages, checked, **more):
    """Return what a node shows of one environment, as plain data."""
    return dict(
        packages={name: package["version"] for name, package in packages.items()},
        builds={name: installed_files.build(package) for name, package in packages.items()},
        frameworks=native_libraries.frameworks(paths),
        files=checked["files"],
        bytes=checked["bytes"],
        seconds=checked["seconds"],
        wrong=checked["wrong"],
        **more,
    )


def managed(run, directory, verify):
    """Return the state of an environment of ours, or None where there is no complete one (the plan
    brings it) or it is a container's.
    """
    path = os.path.join(directory, python_env.MARKER)
    try:
        marker = json.loads(text_of(path, 1 << 20))
        paths, interpreter, want, python = (
            marker[key] for key in ("paths", "interpreter", "packages", "python")
        )
    except (ValueError, KeyError, TypeError, RecursionError):
        return None
    if marker.get("container") or not marker.get("managed") or not os.access(interpreter, os.X_OK):
        return None
    packages = installed_files.found(paths)
    have = _python_version(run, interpreter)
    state = _state(
        paths, packages, installed_files.look(path, paths, packages, verify), python=have
    )
    state["want"] = {
        name: want.get(name)
        for name in sorted(set(want) | set(packages))
        if want.get(name) != state["packages"].get(name)
    }
    if have.split(".")[:2] != python.split(".")[:2]:
        state["wrong"]["its Python is {} and was {}".format(have or "none that starts", python)] = (
            "python"
        )
    if not re.search(
        r"^include-system-site-packages\s*=\s*false",
        text_of(os.path.join(directory, "pyvenv.cfg"), native_libraries.HEAD),
        re.MULTILINE,
    ):
        state["wrong"]["pyvenv.cfg"] = "config"
    return state


def own(run, python, verify):
    """Return the state of the user's own Python; {error: words} where it cannot be started. It
    writes nothing: -B.
    """
    code, out, err = run(["timeout", "20", python, "-B", "-c", ABOUT])
    try:
        about = json.loads(out.strip().splitlines()[-1]) if code == 0 else None
    except (ValueError, IndexError, RecursionError):
        about = None
    if not about:
        return {"error": (err.strip().splitlines() or ["ended with %d" % code])[-1][:200]}
    packages = installed_files.found(about["paths"])
    state = _state(
        about["paths"],
        packages,
        installed_files.check(about["paths"], packages, None, verify),
        python=about["python"],
    )
    state["packages"].update(_conda(about["prefix"]))
    return state


def look(run, base, asked):
    """Return {environments: {digest: state}, own: state or None, libraries: {name: version}};
    asked: environments (digests), python, verify.
    """
    verify, python = asked.get("verify") or "cached", asked.get("python")
    folder = os.path.join(base, "env")
    names = [
        name
        for name in (os.listdir(folder) if os.path.isdir(folder) else [])
        if python_env.DIGEST.fullmatch(name)
    ]
    if asked.get("environments") is not None:
        names = [name for name in names if name in asked["environments"]]
    states = (
        {}
        if python
        else {name: managed(run, os.path.join(folder, name), verify) for name in sorted(names)}
    )
    return {
        "environments": {name: state for name, state in states.items() if state},
        "own": own(run, python, verify) if python and os.access(python, os.X_OK) else None,
        "libraries": native_libraries.libraries(run),
    }


def damaged(looked):
    """Return the digests of the environments that are not as they were installed; looked: as look
    returns it, or None.
    """
    return [
        digest
        for digest, state in ((looked or {}).get("environments") or {}).items()
        if state["want"] or state["wrong"]
    ]


# --- on the controller
# -----------------------------------------------------------------------------------------------------------------


def _differing(states, part):
    """Return [(name, {node: value})] of what the nodes' states differ in; a node that lacks it has
    'none'.
    """
    names = sorted({name for state in states.values() for name in state[part]})
    rows = [
        (name, {node: state[part].get(name, "none") for node, state in states.items()})
        for name in names
    ]
    return [row for row in rows if len(set(map(str, row[1].values()))) > 1]


def _unequal_packages(states, remedy):
    """Return findings, and the names of the packages whose versions or files differ between nodes."""
    found, told = [], set()
    for name, values in _differing(states, "packages"):
        told.add(name)
        found.append((name, values))
    for name, values in _differing(states, "builds"):
        if name not in told and all(values.values()):  # without RECORDs there is nothing to compare
            told.add(name)
            found.append(
                (
                    "{} {} (files, by their list's digest)".format(
                        name, next(iter(states.values()))["packages"].get(name)
                    ),
                    values,
                )
            )
    told_lines = [
        item for label, values in found[:NAMED] for item in unequal(CHECK, label, values, remedy)
    ]
    if len(found) > NAMED:
        told_lines.append(
            finding(
                CHECK, "%d more packages differ between the nodes" % (len(found) - NAMED), remedy
            )
        )
    return told_lines, told


def _environment(states, remedy):
    """Return what is wrong with one environment on the nodes that have it."""
    found, told = _unequal_packages(states, remedy)
    # A framework built from source has no list of files that tells builds apart; a damaged one says
    # so by its files.
    whole = {node: state for node, state in states.items() if not state["wrong"]}
    for name, values in [] if told else _differing(whole, "frameworks"):
        words = {
            node: (
                said
                if said == "none"
                else " ".join("{} {}".format(*pair) for pair in sorted(said.items()))
            )
            for node, said in values.items()
        }
        found += unequal(CHECK, f"the build of {name}", words, remedy)
    for node, state in states.items():
        rest = {
            name: version for name, version in (state.get("want") or {}).items() if name not in told
        }
        lines = [
            "{} is {}, installed was {}".format(
                name, state["packages"].get(name, "gone"), version or "none"
            )
            for name, version in rest.items()
        ]
        if lines:
            more = " and %d more" % (len(lines) - NAMED) if len(lines) > NAMED else ""
            found.append(
                finding(
                    CHECK,
                    "changed since the installation: {}{}".format("; ".join(lines[:NAMED]), more),
                    remedy,
                    node,
                )
            )
    return found


def _ours(states, remedy):
    """Return what is wrong with an environment of ours: versions, then files."""
    found = _environment(states, remedy)
    for node, state in states.items():
        if state["wrong"]:
            found.append(
                finding(
                    CHECK,
                    "changed since the installation: {}".format(
                        installed_files.words(state["wrong"])
                    ),
                    remedy,
                    node,
                )
            )
    return found


def _theirs(states):
    """Return what is wrong with the user's own Python: only what differs between nodes, since a
    person may have changed files on purpose.
    """
    found = [
        finding(
            CHECK, "the site's environment.python cannot be started: {}".format(s["error"]), OWN, n
        )
        for n, s in states.items()
        if "error" in s
    ]
    states = {node: state for node, state in states.items() if "error" not in state}
    found += _environment(states, OWN)
    files = _differing(states, "wrong")
    for path, values in files[:NAMED]:
        words = {
            node: "as installed" if value == "none" else value for node, value in values.items()
        }
        found += unequal(CHECK, path, words, OWN)
    if len(files) > NAMED:
        found.append(
            finding(CHECK, "%d more files differ between the nodes" % (len(files) - NAMED), OWN)
        )
    same = {
        path: why
        for state in states.values()
        for path, why in state["wrong"].items()
        if path not in dict(files)
    }
    if same:
        text = "changed since their installation, equally on all nodes: {}".format(
            installed_files.words(same)
        )
        found.append(finding(CHECK, text, "", states, "note"))
    return found


def _read_time(states, verify):
    """Return how long a sampled or full look took, as a note."""
    if verify == "cached" or not states:
        return []
    name, state = max(states.items(), key=lambda pair: pair[1].get("seconds", 0))
    text = (
        "verify=%s read %d MB in %d files of the environment on each node, in %.1f s at most (%s)"
    )
    return [
        finding(
            CHECK,
            text
            % (
                verify,
                state.get("bytes", 0) // 1000000,
                state.get("files", 0),
                state.get("seconds", 0),
                name,
            ),
            level="note",
        )
    ]


def _system(nodes, looked, states):
    """Return what differs in the libraries and drivers that the system brings, where the job's
    devices use them.
    """
    kinds = {node["accelerator"] for node in nodes}
    wheels = {name for state in states.values() for name in state.get("packages") or {}}
    wanted = [
        name
        for name, wheel in native_libraries.LIBRARIES.items()
        if not any(package.startswith(wheel) for package in wheels)
    ]
    wanted = (wanted + ["cuda toolkit"] if "gpu" in kinds else []) + (
        ["cann", "ascend driver"] if "ascend" in kinds else []
    )
    told = {node: facts["libraries"] for node, facts in looked.items()}
    found = []
    for name in wanted:
        level = (
            "stop" if name in ("nccl", "cann") else "warn"
        )  # peers talk NCCL or HCCL with each other; the rest is each node's own matter
        found += unequal(
            CHECK,
            name,
            {node: versions.get(name, "none") for node, versions in told.items()},
            "install the same one",
            level,
        )
    return found


def judge(nodes, facts, allowed):
    """Return findings about what the nodes train with; allowed: verify (cached, sample, full),
    repair (sync.yml is going to mend ours).

    facts: {node: facts}, of which `installed` is read, and `python_version`, `libc`, `containers`
    beside it.
    """
    looked = {
        node["name"]: facts[node["name"]]["installed"]
        for node in nodes
        if facts[node["name"]].get("installed")
    }
    digests = sorted(
        {digest for told in looked.values() for digest in told.get("environments") or {}}
    )
    found, states = [], {}
    for digest in digests:
        held = {
            node: told["environments"][digest]
            for node, told in looked.items()
            if digest in told["environments"]
        }
        states.update(held)
        found += [] if allowed.get("repair") else _ours(held, REPAIR)
    theirs = {node: told["own"] for node, told in looked.items() if told.get("own")}
    states.update(theirs)
    found += _theirs(theirs)
    pythons = {node: state["python"] for node, state in states.items() if state.get("python")}
    minors = {tuple(version.split(".")[:2]) for version in pythons.values()}
    remedy = (
        "bring the same Python to all nodes, or name one that all have: runtime_interpreter, or the"
        " suite's environment.python"
    )
    found += unequal(CHECK, "Python", pythons, remedy, "stop" if len(minors) > 1 else "warn")
    found += unequal(
        CHECK,
        "the C library (glibc)",
        {node: facts[node]["libc"] for node in looked if facts[node].get("libc")},
        level="note",
    )
    for digest in sorted(
        {digest for node in looked for digest in facts[node].get("containers") or {}}
    ):
        images = {
            node: facts[node]["containers"][digest].get("image_sha256")
            for node in looked
            if digest in facts[node]["containers"]
        }
        found += unequal(
            CHECK,
            "the image",
            images,
            "bring the same image to all nodes, then playbooks/provision.yml",
        )
    return (
        found
        + _system(nodes, looked, states)
        + _read_time(states, allowed.get("verify") or "cached")
    )
