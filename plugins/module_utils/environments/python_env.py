# SPDX-License-Identifier: Apache-2.0
"""Environments: the packages that a suite trains with, equal on all nodes.

The site says what it wants (package, version, pinned lists) or names a Python of its own. From that
the controller computes a digest before anything is touched. Nodes keep the environment under that
digest. Its marker, written last, says that it is complete. Everything here also runs on nodes,
except `resolve` and `environment_digest`, which need `packaging` (it comes with ansible-core).
"""

from __future__ import annotations

import difflib
import functools
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
# Packages that can train, by their name on the index. module: what they import as. build: the
# device that they must be built for (None: one wheel for every device, and the import shows which).
# gigabytes: what fetching takes of the controller's disk.
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
    """An environment that cannot be used. `problems` has one line per reason."""

    def __init__(self, problems):
        super().__init__("\n".join(problems))
        self.problems = list(problems)


def read_environment(value, key="runtime_environment"):
    """Return the environment that a site asks for, with every key present.

    value: {package, version, index_url, requirements} or {python: /absolute/path}. key: how
    messages call it. Raises EnvironmentRefused with all that is wrong.
    """
    if not isinstance(value, dict):
        raise EnvironmentRefused(
            [f"{key}: want keys {', '.join(KEYS)}; got {json.dumps(value, default=str)}"]
        )
    problems = []
    for name in sorted(set(map(str, value)) - set(KEYS)):
        text = f"{key}.{name}: unknown key; allowed {', '.join(KEYS)}"
        near = difflib.get_close_matches(name, KEYS, n=1)
        if near:
            text += f"; did you mean {near[0]}?"
        problems.append(text)
    given = {name: value[name] for name in KEYS if value.get(name) is not None}
    if "container" in given:
        problems += containers_of().problems(given, key)
        problems += _package_problems(given, key, required=False)
    elif "python" in given:
        problems += _foreign_python_problems(given, key)
    else:
        problems += _managed_problems(given, key)
    if given.get("mounts") and "container" not in given:
        problems.append(f"{key}.mounts: only a container needs them; leave it out")
    if problems:
        raise EnvironmentRefused(problems)
    environment = dict.fromkeys(KEYS)
    environment.update(requirements=[], mounts=[])
    environment.update(given)
    return environment


def containers_of():
    """Return the module of containers, which itself needs this one."""
    from . import containers

    return containers


def _foreign_python_problems(given, key):
    """Return the problems of a Python of the user's own: a path, nothing beside it."""
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
    return problems + _package_problems(given, key, required=False)


def _package_problems(given, key, required):
    """Return the problems of package and version.

    required: False if they may be left out.
    """
    problems = []
    package, version = given.get("package"), given.get("version")
    if package not in PACKAGES and (required or package is not None):
        problems.append(f"{key}.package: want {' or '.join(PACKAGES)}; got {package!r}")
    if isinstance(version, (int, float)):
        problems.append(f'{key}.version: {version} is a number; quote it: "{version}"')
    elif version is None and not required:
        return problems
    elif not (isinstance(version, str) and _VERSION.fullmatch(version)):
        problems.append(f'{key}.version: want one version such as "2.6.2"; got {version!r}')
    return problems


def _managed_problems(given, key):
    """Return the problems of an environment that the product installs."""
    problems = _package_problems(given, key, required=True)
    index_url, requirements = given.get("index_url"), given.get("requirements", [])
    if index_url is not None:
        problems += _index_problems(index_url, key)
    if not isinstance(requirements, list) or not all(
        isinstance(name, str) and name.strip() for name in requirements
    ):
        problems.append(
            f"{key}.requirements: want a list of files with pinned packages; got"
            f" {json.dumps(requirements, default=str)}"
        )
    return problems


def _index_problems(index_url, key):
    """Return the problems of the address of a package index.

    A secret in it is not shown.
    """
    if isinstance(index_url, str) and re.fullmatch(r"(https?|file)://\S+", index_url):
        if not _has_login(index_url):
            return []
        return [
            f"{key}.index_url: carries a password; put it into ~/.netrc of the controller instead"
        ]
    if isinstance(index_url, str) and "://" in index_url:
        shown = repr(host_of(index_url))
    else:
        shown = printable(repr(index_url), limit=200)
    return [f"{key}.index_url: want the http(s) address of a package index; got {shown}"]


def _has_login(url):
    """Return True if an address carries a login.

    Its password may hold a slash, and the query may hold a secret.
    """
    before_query, _mark, query = url.split("//", 1)[1].partition("?")
    return "@" in before_query or bool(SECRET_NAME.search(query))


def requirement_path(name, files_dir, project_dir):
    """Return the controller's path of a pinned list.

    A bare name is one of the role's files, any other is relative to the project.
    """
    if "/" not in name:
        return os.path.join(files_dir, name)
    return os.path.normpath(os.path.join(project_dir, os.path.expanduser(name)))


def requirement_texts(names, project, product):
    """Return the contents of the site's pinned requirement lists.

    They are read on the controller. project: where a relative path starts. product: the directory
    that has roles/. Raises EnvironmentRefused where one is not there.
    """
    texts = []
    for name in names:
        path = requirement_path(name, os.path.join(product, "roles", "runtime", "files"), project)
        try:
            with open(path, encoding="utf-8") as handle:
                texts.append(handle.read())
        except FileNotFoundError as error:
            text = (
                f"the site's environment.requirements names {name}, and {path} is not there; write"
                " the list (docs/adding-a-suite.md, 4)"
            )
            raise EnvironmentRefused([text]) from error
    return texts


def parse_requirements(text, file):
    """Return (pins, problems) of one pinned list.

    file: the name that messages show. A pin is {name, version, marker or None, hashes, file, line}.
    hashes are the sha256 of the files that may be installed, [] for any.
    """
    pins, _sources, problems = _read_list(text, file)
    return [dict(pin) for pin in pins], list(problems)


def source_packages(texts):
    """Return the packages, sorted, that pinned lists say have no wheel on the index.

    The lists say so by pip's own option: `--no-binary name`.
    """
    return sorted({name for text in texts for name in _read_list(text, "")[1]})


@functools.lru_cache(maxsize=32)
def _read_list(text, file):
    """Return (pins, names after --no-binary, problems) of one pinned list.

    Kept, since a list is read for each Python and machine that a node may have.
    """
    pins, sources, problems = [], [], []
    for number, raw in _logical_lines(text):
        hashes = [(match["name"], match["hex"]) for match in _HASH.finditer(raw)]
        line = _HASH.sub("", raw).strip()
        pin, option = _PIN.fullmatch(line), _FROM_SOURCE.fullmatch(line)
        if option and not hashes:
            sources += [normal_name(name.strip()) for name in option["names"].split(",")]
        elif not pin:
            problems.append(f"{file}:{number}: {_why_not_pinned(line)}; got {raw!r}")
        elif not all(name == "sha256" and _SHA256.fullmatch(value) for name, value in hashes):
            problems.append(
                f"{file}:{number}: want --hash=sha256: and 64 hexadecimal digits; got {raw!r}"
            )
        else:
            pins.append(
                {
                    "name": normal_name(pin["name"]),
                    "version": pin["version"],
                    "marker": pin["marker"] and pin["marker"].strip(),
                    "hashes": sorted({value for _name, value in hashes}),
                    "file": file,
                    "line": number,
                }
            )
    return pins, sources, problems


def _logical_lines(text):
    """Yield (number, line) of the lines of a list, without comments.

    A line that ends with a backslash is joined with the next one.
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
    """Return what is wrong with a line that is not a pin, and what to write instead."""
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
    """Return {package: version} that a node with this Python gets.

    They are the pinned lists' packages whose markers hold, and the site's package. texts: the
    contents of environment["requirements"], in that order. Raises EnvironmentRefused with every
    problem of every list.
    """
    pins = _choose_pins(environment, texts, python, machine)
    return {name: pin["version"] for name, pin in pins.items()}


def allowed_hashes(environment, texts, python, machine):
    """Return {package: [sha256]} of the files that may be installed.

    It has the packages that a pinned list locks. Arguments as for `resolve`.
    """
    pins = _choose_pins(environment, texts, python, machine)
    return {name: pin["hashes"] for name, pin in pins.items() if pin["hashes"]}


def _choose_pins(environment, texts, python, machine):
    """Return {package: pin} that a node with this Python gets.

    See `resolve`.
    """
    variables = target_environment(python, machine)
    wanted = {
        "name": environment["package"],
        "version": environment["version"],
        "hashes": [],
        "file": "package",
        "line": 0,
    }
    chosen, problems = {wanted["name"]: wanted}, []
    for file, text in zip(environment["requirements"], texts):
        pins, list_problems = parse_requirements(text, file)
        problems += list_problems
        for pin in pins:
            try:
                if _applies(pin, variables):
                    _add_pin(chosen, pin, wanted)
            except EnvironmentRefused as error:
                problems += error.problems
    if problems:
        raise EnvironmentRefused(problems)
    return chosen


def _applies(pin, variables):
    """Return True if a pin's marker holds.

    Raises EnvironmentRefused if it cannot be read.
    """
    from packaging.markers import InvalidMarker, UndefinedComparison, UndefinedEnvironmentName

    try:
        return not pin["marker"] or _marker(pin["marker"]).evaluate(variables)
    except (InvalidMarker, UndefinedComparison, UndefinedEnvironmentName) as error:
        location = f"{pin['file']}:{pin['line']}"
        raise EnvironmentRefused(
            [f"{location}: the marker cannot be read; got {pin['marker']!r}"]
        ) from error


@functools.lru_cache(maxsize=256)
def _marker(text):
    """Return a Marker. Kept, as the lists are (_read_list)."""
    from packaging.markers import Marker

    return Marker(text)


def _add_pin(chosen, pin, wanted):
    """Add a pin to the chosen ones.

    Raises EnvironmentRefused for one that contradicts them. chosen: {package: pin}. wanted: the pin
    of the package that the site asks for.
    """
    other = chosen.setdefault(pin["name"], pin)
    location, first = f"{pin['file']}:{pin['line']}", f"{other['file']}:{other['line']}"
    if other is wanted:
        first = "the site's version"
    if pin["name"] in PACKAGES and pin["name"] != wanted["name"]:
        raise EnvironmentRefused(
            [
                f"{location}: pins {pin['name']}, but the site asks for {wanted['name']}"
                f" {wanted['version']}"
            ]
        )
    if other["version"] != pin["version"]:
        raise EnvironmentRefused(
            [
                f"{location}: {pin['name']} is pinned to {pin['version']} here and to"
                f" {other['version']} by {first}"
            ]
        )
    if other is not pin:
        common = _common_hashes(other["hashes"], pin["hashes"])
        if common is None:
            raise EnvironmentRefused(
                [f"{location}: {pin['name']} has no sha256 in common with {first}"]
            )
        other["hashes"] = common


def _common_hashes(one, two):
    """Return the hashes that two lists allow, None where they have none in common.

    An empty list allows any file.
    """
    if not one or not two:
        return one or two
    return sorted(set(one) & set(two)) or None


def environment_digest(environment, requirement_texts, python, machine):
    """Return the 16 hex digits that name an environment on nodes.

    Equal digests ask for equal packages, whatever the comments say. environment: as the site has
    it. requirement_texts: contents of its pinned lists, in order. python: '3.11'. machine:
    'x86_64'. Raises EnvironmentRefused.
    """
    wanted = read_environment(environment)
    subject = {"format": FORMAT}
    if wanted["container"]:
        names = ("container", "mounts", "package", "version")
        subject.update({name: wanted[name] for name in names})
    elif wanted["python"]:
        subject.update({name: wanted[name] for name in ("python", "package", "version")})
    else:
        subject.update(
            packages=resolve(wanted, requirement_texts, python, machine),
            index_url=wanted["index_url"],
            python=python,
            machine=machine,
        )
    return hashlib.sha256(json.dumps(subject, sort_keys=True).encode()).hexdigest()[:16]


# --- the environments of a node

_DESCRIBE = """
import json, os, platform, sys
libc = os.confstr("CS_GNU_LIBC_VERSION") if "CS_GNU_LIBC_VERSION" in os.confstr_names else ""
print(json.dumps({
    "python": "%d.%d" % sys.version_info[:2],
    "machine": platform.machine(),
    "libc": (libc or "").split(" ")[-1],
}))
"""


def node_python(interpreter="/usr/bin/python3"):
    """Return {python: '3.11', machine: 'x86_64', libc: '2.36'} of an interpreter.

    Environments are built from it. libc '' is not glibc.
    """
    done = subprocess.run(
        [interpreter, "-I", "-S", "-c", _DESCRIBE], capture_output=True, timeout=60, check=True
    )
    return json.loads(done.stdout.decode())


def installed_packages(paths):
    """Return {package: version} of the packages in these directories.

    They are known from the names of *.dist-info and *.egg-info alone (about 1 ms).
    """
    return {
        name: package["version"] for name, package in installed_files.find_packages(paths).items()
    }


def fingerprint(packages):
    """Return the sha256 of a set of packages, equal on nodes with the same ones."""
    lines = [f"{name}=={version}\n" for name, version in sorted(packages.items())]
    return hashlib.sha256("".join(lines).encode()).hexdigest()


def compare_packages(want, have, limit=5):
    """Return texts of what differs between two {package: version}.

    There are at most `limit` of them, and a count of the rest.
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
    if len(differences) <= limit:
        return differences
    return differences[:limit] + [f"and {len(differences) - limit} more"]


def check_import(package, version, found):
    """Return what is wrong with the Paddle or MindSpore that was imported, or None.

    package, version: as asked. Either may be None (a Python of the user's own). found: what the
    import printed, {version, cuda, cuda_version} of Paddle or {version, targets} of MindSpore. The
    vendor's Paddle `2.6.2.post117` imports as 2.6.2, built for CUDA 11.7.
    """
    if package:
        problem = _check_framework(package, found)
        if problem:
            return problem
    if not version:
        return None
    wanted = re.fullmatch(r"(?P<base>.*?)(?:\.post(?P<post>\d+))?(?:\+.*)?", version)
    if found["version"] not in (version, wanted["base"]):
        return f"asked for {version}, but what was imported is {found['version']}"
    post = wanted["post"] or ""
    cuda = f"{post[:2]}.{post[2:]}"
    if package == "paddlepaddle-gpu" and len(post) == 3 and found["cuda_version"] != cuda:
        return (
            f"asked for {version}, which is built for CUDA {cuda}, but what was imported is built"
            f" for {found['cuda_version']}"
        )
    return None


def _check_framework(package, imported):
    """Return the problem of an import of another framework or build, or None.

    package: the wanted one. imported: `found` of check_import.
    """
    module, framework, built = "paddle", "Paddle", ["CPU"]
    if "targets" in imported:
        module, framework, built = "mindspore", "MindSpore", imported["targets"]
    elif imported["cuda"]:
        built = ["CUDA"]
    if PACKAGES[package]["module"] != module:
        return f"asked for {package}, but what was imported is {framework} {imported['version']}"
    wanted = PACKAGES[package]["build"]
    if wanted and wanted not in built:
        return (
            f"asked for {package}, which is built for {wanted}, but what was imported is built for"
            f" {' and '.join(built)}"
        )
    return None


def inspect_environment(home_dir, digest, verify="cached"):
    """Return {state, why, marker} of one environment.

    state: ready, absent, incomplete (no marker) or changed (differs from its marker). home_dir: the
    absolute product directory on this node, ~/.trainyard. verify: how its files are compared with
    their installation, see installed_files.check_files. Imports nothing.
    """
    directory = os.path.join(home_dir, "env", digest)
    path = os.path.join(directory, MARKER)
    try:
        marker = json.loads(safe_open.read_file(path, 64 << 20).decode("utf-8"))
    except FileNotFoundError:
        if os.path.isdir(directory):
            return _unusable("incomplete", f"no marker in {directory}")
        return _unusable("absent", f"no {directory}")
    except (OSError, ValueError, RecursionError) as error:
        return _unusable("incomplete", f"its marker cannot be read: {error}")
    if (
        not isinstance(marker, dict)
        or marker.get("version") != FORMAT
        or marker.get("digest") != digest
    ):
        return _unusable("incomplete", "its marker is of another kind")
    if marker.get("container"):
        # The module container_environment asks the engine for the image itself.
        return {"state": "ready", "why": "", "marker": marker}
    why = _describe_changes(path, marker, verify)
    if why:
        return _unusable("changed", why)
    # `paddle` is the name of `imported` in 0.1.
    imported = marker.get("imported", marker.get("paddle"))
    return {"state": "ready", "why": "", "marker": dict(marker, imported=imported)}


def _unusable(state, why):
    """Return the result of inspect_environment for an environment that cannot be used."""
    return {"state": state, "why": why, "marker": None}


def _describe_changes(path, marker, verify):
    """Return how an environment differs from its marker, '' where it does not.

    path: of the marker. verify: see inspect_environment.
    """
    if not os.access(marker["interpreter"], os.X_OK):
        return f"{marker['interpreter']} cannot be run"
    differences = compare_packages(marker["packages"], installed_packages(marker["paths"]))
    if differences:
        return "; ".join(differences)
    if not marker.get("managed"):
        return ""
    packages = installed_files.find_packages(marker["paths"])
    wrong = installed_files.check_environment(path, marker["paths"], packages, verify)["wrong"]
    if not wrong:
        return ""
    return "changed since the installation: " + installed_files.format_differences(wrong)


def compare_nodes(markers):
    """Return one line per node that differs from the first node.

    It has other packages, or imports another build. markers: {node: marker}, in the inventory's
    order.
    """
    lines = []
    reference = next(iter(markers), None)
    for node, marker in markers.items():
        first = markers[reference]
        differences = compare_packages(first["packages"], marker["packages"])
        if first["imported"] != marker["imported"]:
            imported = json.dumps(marker["imported"], sort_keys=True)
            wanted = json.dumps(first["imported"], sort_keys=True)
            differences.append(f"what is imported is {imported} (want {wanted})")
        image, wanted_image = _image_of(marker), _image_of(first)
        if image != wanted_image:
            differences.append(f"its image is {image} (want {wanted_image})")
        if differences:
            lines.append(f"{node} differs from {reference}: {'; '.join(differences)}")
    return lines


def _image_of(marker):
    """Return the digest of a container environment's image, else None."""
    return (marker.get("container") or {}).get("image_sha256")
