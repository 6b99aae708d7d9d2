# SPDX-License-Identifier: Apache-2.0
"""An environment: the Python packages a suite trains with, the same on every node.

The site says what it wants (package, version, pinned lists) or names a Python of its own. From that
the controller computes a digest before anything is touched; nodes keep the environment under that
digest, and its marker, written last, says that it is complete. Everything here also runs on nodes,
except `resolve` and `environment_digest`, which need `packaging` (it comes with ansible-core).
"""

from __future__ import annotations

import difflib
import hashlib
import json
import os
import re
import subprocess

from ..base import safe_open
from ..base.sanitize import SECRET_NAME, host_of, printable
from . import installed_files
from .installed_files import normal_name

FORMAT = 1
MARKER = ".trainyard.json"
# What can be trained with: name on the index -> what it imports as, what it must be built for
# (None: one wheel for every device; the import tells which), and how many GB fetching it takes of
# the controller's disk.
PACKAGES = {
    "paddlepaddle": {"module": "paddle", "build": "CPU", "gigabytes": 1},
    "paddlepaddle-gpu": {"module": "paddle", "build": "CUDA", "gigabytes": 6},
    "mindspore": {"module": "mindspore", "build": None, "gigabytes": 2},
    "mindspore-ascend": {"module": "mindspore", "build": "Ascend", "gigabytes": 3},
    "mindspore-gpu": {"module": "mindspore", "build": "CUDA", "gigabytes": 6},
}
MODULES = ("paddle", "mindspore")
MANAGED_KEYS = ("package", "version", "index_url", "requirements")
KEYS = MANAGED_KEYS + ("python", "container", "mounts")
DIGEST = re.compile(r"[0-9a-f]{16}")
_VERSION = re.compile(r"[0-9][0-9A-Za-z.!+_-]*")
_FROM_SOURCE = re.compile(
    r"--no-binary[ =]\s*(?P<names>[A-Za-z0-9][A-Za-z0-9._-]*(?:\s*,\s*[A-Za-z0-9][A-Za-z0-9._-]*)*)"
)
_HASH = re.compile(r"\s--hash[ =](?P<name>[A-Za-z0-9]+):(?P<hex>\S+)")
_SHA256 = re.compile(r"[0-9a-f]{64}")
_PIN = re.compile(
    r"(?P<name>[A-Za-z0-9](?:[A-Za-z0-9._-]*[A-Za-z0-9])?)\s*(?P<extras>\[[A-Za-z0-9._,\s-]*\])?\s*"
    r"==\s*(?P<version>[0-9][0-9A-Za-z.!+_-]*)\s*(?:;\s*(?P<marker>.+))?"
)


class EnvironmentRefused(Exception):
    """What the site asks for cannot be used; `problems` lists every reason, one line each."""

    def __init__(self, problems):
        super().__init__("\n".join(problems))
        self.problems = list(problems)


def read_environment(value, key="runtime_environment"):
    """Return the environment a site asks for with every key present, or raise EnvironmentRefused
    with all that is wrong.

    value: {package, version, index_url, requirements} or {python: /absolute/path}. key: how
    messages call it.
    """
    if not isinstance(value, dict):
        raise EnvironmentRefused(
            [f"{key}: want keys {', '.join(KEYS)}; got {json.dumps(value, default=str)}"]
        )
    problems = []
    for name in sorted(set(map(str, value)) - set(KEYS)):
        near = difflib.get_close_matches(name, KEYS, n=1)
        meant = f"; did you mean {near[0]}?" if near else ""
        problems.append(f"{key}.{name}: unknown key; allowed {', '.join(KEYS)}{meant}")
    given = {name: value[name] for name in KEYS if value.get(name) is not None}
    if "container" in given:
        problems += containers_of().problems(given, key) + _package(given, key, required=False)
    else:
        problems += _own_python(given, key) if "python" in given else _managed(given, key)
        if given.get("mounts"):
            problems.append(f"{key}.mounts: only a container needs them; leave it out")
    if problems:
        raise EnvironmentRefused(problems)
    return {
        name: given.get(name, [] if name in ("requirements", "mounts") else None) for name in KEYS
    }


def containers_of():
    """Return the module of containers, which itself needs this one."""
    from . import containers

    return containers


def _own_python(given, key):
    """Problems of an environment that is the user's own: a path, nothing beside it."""
    problems = []
    if not isinstance(given["python"], str) or not os.path.isabs(given["python"]):
        problems.append(
            f"{key}.python: want the absolute path of a Python on the nodes; got"
            f" {given['python']!r}"
        )
    for name in ("index_url", "requirements"):
        if given.get(name):
            problems.append(
                f"{key}.{name}: nothing is ever installed into a Python of your own; leave it out,"
                " or leave python out"
            )
    return problems + _package(given, key, required=False)


def _package(given, key, required):
    """Problems of package and version; an own Python may leave them out."""
    problems = []
    package, version = given.get("package"), given.get("version")
    if package not in PACKAGES and (required or package is not None):
        problems.append(f"{key}.package: want {' or '.join(PACKAGES)}; got {package!r}")
    if isinstance(version, (int, float)):
        problems.append(f'{key}.version: {version} is a number; quote it: "{version}"')
    elif not (isinstance(version, str) and _VERSION.fullmatch(version)) and (
        required or version is not None
    ):
        problems.append(f'{key}.version: want one version such as "2.6.2"; got {version!r}')
    return problems


def _managed(given, key):
    """Problems of an environment that we install."""
    problems = _package(given, key, required=True)
    index_url, requirements = given.get("index_url"), given.get("requirements", [])
    if index_url is not None and not (
        isinstance(index_url, str) and re.fullmatch(r"(https?|file)://\S+", index_url)
    ):
        got = (
            repr(host_of(index_url))
            if isinstance(index_url, str) and "://" in index_url
            else printable(repr(index_url), limit=200)
        )
        problems.append(f"{key}.index_url: want the http(s) address of a package index; got {got}")
    elif index_url is not None and _has_login(index_url):
        problems.append(
            f"{key}.index_url: carries a password; put it into ~/.netrc of the controller instead"
        )
    if not isinstance(requirements, list) or not all(
        isinstance(name, str) and name.strip() for name in requirements
    ):
        problems.append(
            f"{key}.requirements: want a list of files with pinned packages; got"
            f" {json.dumps(requirements, default=str)}"
        )
    return problems


def _has_login(url):
    """Whether an address carries a login, also one with a slash in its password or a secret in its
    query.
    """
    before_query, _mark, query = url.split("//", 1)[1].partition("?")
    return "@" in before_query or bool(SECRET_NAME.search(query))


def requirement_path(name, files_dir, project_dir):
    """Return the controller's path of a pinned list: a bare name is one of the role's files, any
    other is relative to the project.
    """
    if "/" not in name:
        return os.path.join(files_dir, name)
    return os.path.normpath(os.path.join(project_dir, os.path.expanduser(name)))


def requirement_texts(names, project):
    """Return the contents of the site's pinned requirement lists, read on the controller; raises
    EnvironmentRefused where one is not there.
    """
    texts = []
    for name in names:
        path = requirement_path(name, os.path.join(project, "roles", "runtime", "files"), project)
        try:
            with open(path, encoding="utf-8") as handle:
                texts.append(handle.read())
        except FileNotFoundError as error:
            text = (
                "the site's environment.requirements names %s, and %s is not there; write the list"
                " (docs/adding-a-suite.md, 4)"
            )
            raise EnvironmentRefused([text % (name, path)]) from error
    return texts


def parse_requirements(text, file):
    """Return (pins, problems) of one pinned list. file: what messages show.

    A pin is {name, version, marker or None, hashes, file, line}; hashes are the sha256 of the files
    that may be installed, none for any.
    """
    pins, _sources, problems = _read_list(text, file)
    return pins, problems


def from_source(texts):
    """Return the packages, sorted, that pinned lists say have no wheel on the index: `--no-binary
    name`, pip's own spelling.
    """
    return sorted({name for text in texts for name in _read_list(text, "")[1]})


def _read_list(text, file):
    """Return (pins, names after --no-binary, problems) of one pinned list."""
    pins, sources, problems = [], [], []
    for number, raw in _logical_lines(text):
        hashes = [(found["name"], found["hex"]) for found in _HASH.finditer(raw)]
        line = _HASH.sub("", raw).strip()
        found, option = _PIN.fullmatch(line), _FROM_SOURCE.fullmatch(line)
        if option and not hashes:
            sources += [normal_name(name.strip()) for name in option["names"].split(",")]
        elif not found:
            problems.append(f"{file}:{number}: {_why_not_pinned(line)}; got {raw!r}")
        elif not all(name == "sha256" and _SHA256.fullmatch(value) for name, value in hashes):
            problems.append(
                f"{file}:{number}: want --hash=sha256: and 64 hexadecimal digits; got {raw!r}"
            )
        else:
            pins.append(
                {
                    "name": normal_name(found["name"]),
                    "version": found["version"],
                    "marker": found["marker"] and found["marker"].strip(),
                    "hashes": sorted({value for _name, value in hashes}),
                    "file": file,
                    "line": number,
                }
            )
    return pins, sources, problems


def _logical_lines(text):
    """Yield (number, line) of the lines of a list: comments removed, a line that ends with a
    backslash joined with the next one.
    """
    joined, first = "", 0
    for number, raw in enumerate([*text.splitlines(), ""], 1):
        line = re.sub(r"(^|\s)#.*", "", raw).strip()
        first = first or number
        if line.endswith("\\"):
            joined += line[:-1].strip() + " "
            continue
        if (joined + line).strip():
            yield first, (joined + line).strip()
        joined, first = "", 0


def _why_not_pinned(line):
    """Say what is wrong with a line that is no pin, and what to write instead."""
    if line.startswith("-"):
        return (
            "pip options do not belong into a pinned list but --no-binary NAME and --hash behind a"
            " pin (an index is set by index_url)"
        )
    if "://" in line or " @ " in line or line.startswith((".", "/")):
        return (
            "an address or a path is not a pin; write name==version of something that an index has"
        )
    if "*" in line:
        return "a wildcard pins nothing; write the whole version"
    return "want name==version (a complete lock, for example from `uv pip compile`)"


def target_environment(python, machine):
    """Return the marker variables of a node: python is '3.11', machine is 'x86_64'."""
    return {
        "implementation_name": "cpython",
        "implementation_version": python + ".0",
        "os_name": "posix",
        "platform_machine": machine,
        "platform_python_implementation": "CPython",
        "platform_release": "",
        "platform_system": "Linux",
        "platform_version": "",
        "python_full_version": python + ".0",
        "python_version": python,
        "sys_platform": "linux",
        "extra": "",
    }


def resolve(environment, texts, python, machine):
    """Return {package: version} that a node with this Python gets: the pinned lists' packages whose
    markers hold, and the site's package.

    texts: the contents of environment["requirements"], in that order. Raises EnvironmentRefused
    with every problem of every list.
    """
    return {
        name: pin["version"] for name, pin in _chosen(environment, texts, python, machine).items()
    }


def allowed_hashes(environment, texts, python, machine):
    """Return {package: [sha256 of the files that may be installed]} of the packages that a pinned
    list locks; arguments as for `resolve`.
    """
    return {
        name: pin["hashes"]
        for name, pin in _chosen(environment, texts, python, machine).items()
        if pin["hashes"]
    }


def _chosen(environment, texts, python, machine):
    """Return {package: pin} that a node with this Python gets."""
    from packaging.markers import (
        InvalidMarker,
        Marker,
        UndefinedComparison,
        UndefinedEnvironmentName,
    )

    variables = target_environment(python, machine)
    asked = {
        "name": environment["package"],
        "version": environment["version"],
        "hashes": [],
        "file": "package",
        "line": 0,
    }
    chosen, problems = {asked["name"]: asked}, []
    for file, text in zip(environment["requirements"], texts):
        pins, wrong = parse_requirements(text, file)
        problems += wrong
        for pin in pins:
            place = f"{file}:{pin['line']}"
            try:
                if pin["marker"] and not Marker(pin["marker"]).evaluate(variables):
                    continue
            except (InvalidMarker, UndefinedComparison, UndefinedEnvironmentName):
                problems.append(f"{place}: the marker cannot be read; got {pin['marker']!r}")
                continue
            other = chosen.setdefault(pin["name"], pin)
            first = "the site's version" if other is asked else f"{other['file']}:{other['line']}"
            if pin["name"] in PACKAGES and pin["name"] != asked["name"]:
                problems.append(
                    f"{place}: pins {pin['name']}, but the site asks for {asked['name']}"
                    f" {asked['version']}"
                )
            elif other["version"] != pin["version"]:
                problems.append(
                    f"{place}: {pin['name']} is pinned to {pin['version']} here and to"
                    f" {other['version']} by {first}"
                )
            elif other is not pin:
                common = _common_hashes(other["hashes"], pin["hashes"])
                if common is None:
                    problems.append(f"{place}: {pin['name']} has no sha256 in common with {first}")
                else:
                    other["hashes"] = common
    if problems:
        raise EnvironmentRefused(problems)
    return chosen


def _common_hashes(one, two):
    """Return the hashes that two lists allow, where an empty list allows any file; None where they
    have none in common.
    """
    if not one or not two:
        return one or two
    return sorted(set(one) & set(two)) or None


def environment_digest(environment, requirement_texts, python, machine):
    """Return the 16 hex digits that name an environment on nodes: equal digests ask for equal
    packages, whatever the comments say.

    environment: as the site has it. requirement_texts: contents of its pinned lists, in order.
    python: '3.11'. machine: 'x86_64'.
    """
    asked = read_environment(environment)
    if asked["container"]:
        subject = {
            "format": FORMAT,
            **{name: asked[name] for name in ("container", "mounts", "package", "version")},
        }
    elif asked["python"]:
        subject = {
            "format": FORMAT,
            "python": asked["python"],
            "package": asked["package"],
            "version": asked["version"],
        }
    else:
        packages = resolve(asked, requirement_texts, python, machine)
        subject = {
            "format": FORMAT,
            "packages": packages,
            "index_url": asked["index_url"],
            "python": python,
            "machine": machine,
        }
    return hashlib.sha256(json.dumps(subject, sort_keys=True).encode()).hexdigest()[:16]


# --- what a node has
# -------------------------------------------------------------------------------------------------------------------

_DESCRIBE = """
import json, os, platform, sys
libc = os.confstr("CS_GNU_LIBC_VERSION") if "CS_GNU_LIBC_VERSION" in os.confstr_names else ""
print(json.dumps({"python": "%d.%d" % sys.version_info[:2], "machine": platform.machine(), "libc": (libc or "").split(" ")[-1]}))
"""


def node_python(interpreter="/usr/bin/python3"):
    """Return {python: '3.11', machine: 'x86_64', libc: '2.36'} of the Python that environments are
    built from; libc '' is not glibc.
    """
    done = subprocess.run(
        [interpreter, "-I", "-S", "-c", _DESCRIBE], capture_output=True, timeout=60, check=True
    )
    return json.loads(done.stdout.decode())


def installed_packages(paths):
    """Return {package: version} of what stands in these directories, from the names of *.dist-info
    and *.egg-info alone (about 1 ms).
    """
    return {name: package["version"] for name, package in installed_files.found(paths).items()}


def fingerprint(packages):
    """Return the sha256 of a set of packages, the same on every node that has the same ones."""
    return hashlib.sha256(
        "".join(f"{name}=={version}\n" for name, version in sorted(packages.items())).encode()
    ).hexdigest()


def compare_packages(want, have, limit=5):
    """Return what differs between two {package: version}, in words, at most limit of them and a
    count of the rest.
    """
    differences = [
        f"{name} is missing (want {want[name]})" for name in sorted(set(want) - set(have))
    ]
    differences += [
        f"{name} is {have[name]} (want {want[name]})"
        for name in sorted(set(want) & set(have))
        if want[name] != have[name]
    ]
    differences += [
        f"{name} {have[name]} is not in the list" for name in sorted(set(have) - set(want))
    ]
    more = len(differences) - limit
    return differences[:limit] + ([f"and {more} more"] if more > 0 else [])


def check_import(package, version, found):
    """Return what is wrong with the Paddle or MindSpore that was imported, or None.

    package, version: as asked; either may be None (an own Python). found: what the import told,
    {version, cuda, cuda_version} of Paddle or {version, targets} of MindSpore. The vendor's Paddle
    `2.6.2.post117` imports as 2.6.2, built for CUDA 11.7.
    """
    mindspore = "targets" in found
    if package and mindspore != (PACKAGES[package]["module"] == "mindspore"):
        return (
            f"asked for {package}, but what was imported is"
            f" {'MindSpore' if mindspore else 'Paddle'} {found['version']}"
        )
    want, built = (
        PACKAGES[package]["build"] if package else None,
        found["targets"] if mindspore else ["CUDA" if found["cuda"] else "CPU"],
    )
    if want and want not in built:
        return (
            f"asked for {package}, which is built for {want}, but what was imported is built for"
            f" {' and '.join(built)}"
        )
    if not version:
        return None
    asked = re.fullmatch(r"(?P<base>.*?)(?:\.post(?P<post>\d+))?(?:\+.*)?", version)
    if found["version"] not in (version, asked["base"]):
        return f"asked for {version}, but what was imported is {found['version']}"
    cuda = asked["post"] and len(asked["post"]) == 3 and f"{asked['post'][:2]}.{asked['post'][2]}"
    if package == "paddlepaddle-gpu" and cuda and found["cuda_version"] != cuda:
        return (
            f"asked for {version}, which is built for CUDA {cuda}, but what was imported is built"
            f" for {found['cuda_version']}"
        )
    return None


def inspect_environment(home_dir, digest, verify="cached"):
    """Return {state, why, marker} of one environment. state: ready, absent, incomplete (no marker)
    or changed (differs from its marker).

    home_dir: the absolute product directory on this node, ~/.trainyard. verify: how its files are
    held against their installation, see distributions.check. Imports nothing.
    """
    directory = os.path.join(home_dir, "env", digest)
    try:
        marker = json.loads(
            safe_open.read_file(os.path.join(directory, MARKER), 64 << 20).decode("utf-8")
        )
    except FileNotFoundError:
        state = "incomplete" if os.path.isdir(directory) else "absent"
        return {
            "state": state,
            "why": f"no marker in {directory}" if state == "incomplete" else f"no {directory}",
            "marker": None,
        }
    except (OSError, ValueError, RecursionError) as error:
        return {"state": "incomplete", "why": f"its marker cannot be read: {error}", "marker": None}
    if (
        not isinstance(marker, dict)
        or marker.get("version") != FORMAT
        or marker.get("digest") != digest
    ):
        return {"state": "incomplete", "why": "its marker is of another kind", "marker": None}
    if marker.get("container"):
        return {
            "state": "ready",
            "why": "",
            "marker": marker,
        }  # container_environment asks the engine for the image itself
    if not os.access(marker["interpreter"], os.X_OK):
        return {"state": "changed", "why": f"{marker['interpreter']} cannot be run", "marker": None}
    differences = compare_packages(marker["packages"], installed_packages(marker["paths"]))
    if differences:
        return {"state": "changed", "why": "; ".join(differences), "marker": None}
    if marker.get("managed"):
        path = os.path.join(directory, MARKER)
        wrong = installed_files.look(
            path, marker["paths"], installed_files.found(marker["paths"]), verify
        )["wrong"]
        if wrong:
            return {
                "state": "changed",
                "why": "changed since the installation: " + installed_files.words(wrong),
                "marker": None,
            }
    return {
        "state": "ready",
        "why": "",
        "marker": dict(marker, imported=marker.get("imported", marker.get("paddle"))),
    }  # its name in 0.1


def environment_state(home_dir, digest):
    """Return the marker of a complete and unchanged environment, or None. The marker's
    `interpreter` is the Python to train with.
    """
    return inspect_environment(home_dir, digest)["marker"]


def compare_nodes(markers):
    """Return one line a node that has not the first node's packages, or imports another build.
    markers: {node: marker}, in the inventory's order.
    """
    lines = []
    reference = next(iter(markers), None)
    for node, marker in markers.items():
        first = markers[reference]
        differences = compare_packages(first["packages"], marker["packages"])
        if first["imported"] != marker["imported"]:
            has, want = (json.dumps(side["imported"], sort_keys=True) for side in (marker, first))
            differences.append(f"what is imported is {has} (want {want})")
        images = [(side.get("container") or {}).get("image_sha256") for side in (marker, first)]
        if images[0] != images[1]:
            differences.append(f"its image is {images[0]} (want {images[1]})")
        if differences:
            lines.append(f"{node} differs from {reference}: {'; '.join(differences)}")
    return lines
