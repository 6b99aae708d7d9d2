# SPDX-License-Identifier: Apache-2.0
"""A wheelhouse: every wheel of one environment and the installer, fetched by pip for the nodes'
Python, with a manifest written last.

Runs on the controller; nodes use `verify` only. pip does the fetching, so indexes, proxies and
certificates are what the user configured.
"""

from __future__ import annotations

import collections
import contextlib
import fcntl
import hashlib
import json
import os
import re
import shutil
import subprocess
import tempfile
import time
import types
import zipfile

from ..base.manifest import file_sha256
from ..base.sanitize import hide_paths, host_of, printable
from .python_env import PACKAGES, normal_name

FORMAT = 1
MANIFEST = "manifest.json"
TOOLS = "tools"

INSTALLER = "uv"

# package: the one of PACKAGES that is asked for. from_source: packages that the index has no wheel
# of. hashes: {package: sha256 of the files that may be used}, of what the lists lock.
Wanted = collections.namedtuple(
    "Wanted",
    "digest packages package index_url python machine libc uv_version from_source hashes",
    defaults=((), types.MappingProxyType({})),
)


class WheelhouseError(Exception):
    """The wheelhouse could not be made; the text names the package or the cause and the remedy."""


# The version of a C library as nodes tell it; each minor version is one more platform to look for,
# so it is bounded.
LIBC = re.compile(r"[0-9]{1,2}\.[0-9]{1,3}(?:\.[0-9]{1,3})?\Z")


def version_pair(text):
    """Return '2.36' as (2, 36), to compare. Raises ValueError for what is not the version of a C
    library.
    """
    if not LIBC.match(text):
        raise ValueError(f"{text!r} is not the version of a C library")
    return tuple(int(part) for part in text.split(".")[:2])


def platform_tags(machine, libc):
    """Return the wheel platforms that run on a glibc, newest first (PEP 600, with the older names
    and the vendor's own linux_*).
    """
    major, newest = version_pair(libc)
    tags = []
    for minor in range(newest, 4, -1):
        tags.append(f"manylinux_{major}_{minor}_{machine}")
        older = {17: "manylinux2014", 12: "manylinux2010", 5: "manylinux1"}.get(minor)
        if older:
            tags.append(f"{older}_{machine}")
    return [*tags, f"linux_{machine}"]


@contextlib.contextmanager
def locked(root, wait):
    """Hold the cache for one process; the kernel lets go when the process ends, however it ends.
    wait: seconds.
    """
    os.makedirs(root, mode=0o700, exist_ok=True)
    deadline = time.monotonic() + wait
    with open(os.path.join(root, ".lock"), "a+", encoding="utf-8") as handle:
        while True:
            try:
                fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                if time.monotonic() > deadline:
                    handle.seek(0)
                    holder = handle.read().strip() or "?"
                    raise WheelhouseError(
                        f"{root} has been in use by process {holder} for {wait} s; wait for it or"
                        " end it"
                    ) from None
                time.sleep(0.5)
        handle.truncate(0)
        handle.write(f"{os.getpid()}\n")
        handle.flush()
        yield


def inspect_wheel(path):
    """Return {name, version, bytes, unpacked_bytes, sha256} of a wheel, the name and version being
    those that an installed copy shows.
    """
    with zipfile.ZipFile(path) as archive:
        entries = archive.infolist()
    stem = next(
        e.filename.split("/")[0]
        for e in entries
        if re.fullmatch(r"[^/]+\.dist-info/METADATA", e.filename)
    )[: -len(".dist-info")]
    name, _, version = stem.partition("-")
    # Bytecode is about as large as the source it is made from.
    unpacked = sum(e.file_size * (2 if e.filename.endswith(".py") else 1) for e in entries)
    return {
        "name": normal_name(name),
        "version": version,
        "bytes": os.path.getsize(path),
        "unpacked_bytes": unpacked,
        "sha256": file_sha256(path),
    }


def read_manifest(path):
    """Return a wheelhouse's manifest, or None where there is none that can be read."""
    try:
        with open(os.path.join(path, MANIFEST), encoding="utf-8") as handle:
            manifest = json.load(handle)
        return manifest if manifest.get("version") == FORMAT else None
    except (OSError, ValueError, AttributeError):
        return None


def verify(path, manifest):
    """Return one line a wheel that is missing or is not the one of the manifest."""
    problems = []
    for name, wheel in sorted(manifest["wheels"].items()):
        try:
            found = file_sha256(os.path.join(path, name))
        except OSError as error:
            problems.append(f"{name}: {error.strerror}")
            continue
        if found != wheel["sha256"]:
            problems.append(f"{name}: sha256 is {found[:12]}..., want {wheel['sha256'][:12]}...")
    return problems


def read_wheelhouse(path, want):
    """Return the manifest of a complete and intact wheelhouse that serves this want, or None."""
    manifest = read_manifest(path)
    if (
        not manifest
        or not _serves(manifest, want)
        or manifest["uv_version"] != want.uv_version
        or verify(path, manifest)
    ):
        return None
    if any(
        "index_url" in wheel or not _may_be_used(wheel, want)
        for wheel in manifest["wheels"].values()
    ):
        # an earlier Trainyard wrote the index's address, which may hold a token, and the nodes get
        # the manifest
        return None
    return manifest


def _may_be_used(wheel, want):
    """Whether the lists allow a wheel of a manifest. What is built here has no sha256 in a list;
    its source has.
    """
    hashes = want.hashes.get(wheel["name"])
    return not hashes or wheel["name"] in want.from_source or wheel["sha256"] in hashes


def index_of(url):
    """Return a name for an index: a digest of its address, which may hold a token; None for pip's
    own.
    """
    return None if url is None else hashlib.sha256(url.encode()).hexdigest()[:16]


def _index_of(wheel):
    """Return the name of the index that a wheel of a manifest came from. An earlier Trainyard wrote
    the address itself.
    """
    return index_of(wheel["index_url"]) if "index_url" in wheel else wheel["index"]


def _serves(manifest, want):
    """Whether wheels of this wheelhouse run on the wanted nodes."""
    same = (manifest["python"], manifest["machine"]) == (want.python, want.machine)
    return same and version_pair(manifest["libc"]) <= version_pair(want.libc)


def provide(root, want, pip, free):
    """Return what the wheelhouse holds, having built it where it was missing or damaged. The caller
    holds `locked(root)`.

    pip: the command as a list. free: a function that returns the free bytes of the cache's file
    system.
    """
    path, stage = os.path.join(root, want.digest), os.path.join(root, f".stage-{want.digest}")
    manifest = read_wheelhouse(path, want)
    if manifest:
        return dict(
            _summary(path, manifest), changed=False, fetched=[], reused=len(manifest["wheels"])
        )
    _sweep(root)  # what a killed build left; under the lock nobody else is building
    try:
        return _build(root, path, stage, want, pip, free)
    finally:
        _sweep(root)


def _sweep(root):
    """Remove staging and damaged directories."""
    for entry in os.listdir(root):
        if entry.startswith((".stage-", ".damaged-")):
            shutil.rmtree(os.path.join(root, entry), ignore_errors=True)


def _build(root, path, stage, want, pip, free):
    """Fill the stage from the cache and from pip, and put it in place."""
    os.makedirs(os.path.join(stage, TOOLS), mode=0o700)
    known = _known_wheels(root, want)
    reused = _reuse(known, stage, want)
    gigabytes = PACKAGES[want.package]["gigabytes"]
    if not reused and free() < gigabytes << 30:
        raise WheelhouseError(
            f"{root} has {free() / 1e9:.1f} GB free, fetching {want.package} needs about"
            f" {gigabytes} GB; make room or set trainyard_cache_dir to a larger file system"
        )
    fetched = _fetch_all(pip, stage, want, reused)
    manifest = _finish(stage, want)
    _refuse_changed(manifest, _first_seen(root), want)
    if os.path.lexists(path):
        damaged = os.path.join(root, f".damaged-{want.digest}")
        os.rename(path, damaged)
    os.rename(stage, path)
    return dict(_summary(path, manifest), changed=True, fetched=fetched, reused=len(reused))


def _summary(path, manifest):
    """What a caller needs to know of a wheelhouse."""
    with open(os.path.join(path, MANIFEST), "rb") as handle:
        sha256 = hashlib.sha256(handle.read()).hexdigest()
    size = sum(wheel["bytes"] for wheel in manifest["wheels"].values())
    unpacked = sum(wheel["unpacked_bytes"] for wheel in manifest["wheels"].values())
    return {
        "manifest_sha256": sha256,
        "wheel_bytes": size,
        "needed_bytes": size + int(unpacked * 1.1),
        "packages": manifest["packages"],
    }


def _known_wheels(root, want):
    """Return {(package, asked version, index): (file, sha256)} of every wheel of this cache that
    would serve.
    """
    known = {}
    for entry in sorted(os.listdir(root)):
        manifest = read_manifest(os.path.join(root, entry)) if len(entry) == 16 else None
        if manifest and _serves(manifest, want):
            for name, wheel in manifest["wheels"].items():
                if _may_be_used(wheel, want):
                    known[wheel["name"], wheel["asked"], _index_of(wheel)] = (
                        os.path.join(root, entry, name),
                        wheel["sha256"],
                    )
    return known


def _first_seen(root):
    """Return {(index, file): sha256} of every wheel that a wheelhouse of this cache was made of."""
    seen = {}
    for entry in sorted(os.listdir(root)):
        manifest = read_manifest(os.path.join(root, entry)) if len(entry) == 16 else None
        for name, wheel in manifest["wheels"].items() if manifest else ():
            seen.setdefault((_index_of(wheel), name), set()).add(wheel["sha256"])
    return seen


def _refuse_changed(manifest, seen, want):
    """Refuse a wheel that no list locks and that is not the file which had this name before: an
    index never changes what it has published.
    """
    changed = []
    for name, wheel in sorted(manifest["wheels"].items()):
        before = seen.get((wheel["index"], name), {wheel["sha256"]})
        locked = wheel["name"] in want.from_source or want.hashes.get(wheel["name"])
        if not locked and wheel["sha256"] not in before:
            changed.append(
                f"{name}: sha256 is {wheel['sha256']}, and was {', '.join(sorted(before))} when it"
                " was first fetched"
            )
    if changed:
        raise WheelhouseError(
            "\n".join(changed)
            + "\nnothing of it was used. Ask who publishes it which one is right, write that one"
            " into a list of the environment's requirements (--hash=sha256:...), and run the same"
            " command again"
        )


def _asked(want):
    """Return [(package, version, index, directory)] of everything the wheelhouse must hold."""
    asked = [
        (name, version, want.index_url if name in PACKAGES else None, "")
        for name, version in sorted(want.packages.items())
    ]
    return [*asked, (INSTALLER, want.uv_version, None, TOOLS)]


def _reuse(known, stage, want):
    """Put intact wheels of the cache into the stage; return the packages they are for."""
    reused = set()
    for name, version, index, directory in _asked(want):
        source, sha256 = known.get((name, version, index_of(index)), (None, None))
        with contextlib.suppress(OSError):
            if source and file_sha256(source) == sha256:
                os.link(source, os.path.join(stage, directory, os.path.basename(source)))
                reused.add((name, directory))
    return reused


def _fetch_all(pip, stage, want, reused):
    """Fetch what the stage lacks; return the wheels' names, or fail with every package that has no
    wheel.
    """
    groups, missing, fetched = {}, [], []
    for name, version, index, directory in _asked(want):
        if (name, directory) not in reused:
            # pip refuses a list of which only some lines have hashes
            locked = bool(want.hashes.get(name))
            groups.setdefault((index, directory, name in want.from_source, locked), []).append(
                f"{name}=={version}"
            )
    for (index, directory, source, _locked), pins in groups.items():
        dest = os.path.join(stage, directory)
        before = set(os.listdir(dest))
        missing += build(pip, dest, pins, want) if source else fetch(pip, dest, pins, want, index)
        fetched += sorted(set(os.listdir(dest)) - before)
    if missing:
        raise WheelhouseError("\n".join(missing))
    return [name for name in fetched if name.endswith(".whl")]


def fetch(pip, dest, pins, want, index_url=None):
    """Let pip fetch the pins' wheels into dest; return one line a pin that has no wheel for the
    nodes' Python.
    """
    where = f"Python {want.python} on {want.machine} (glibc {want.libc})"
    argv = [
        *pip,
        "download",
        "--no-deps",
        "--only-binary=:all:",
        "--no-input",
        "--disable-pip-version-check",
        "--progress-bar=off",
        "--dest",
        dest,
        "--python-version",
        want.python,
        "--implementation",
        "cp",
        "--abi",
        "cp" + want.python.replace(".", ""),
    ]
    for tag in platform_tags(want.machine, want.libc):
        argv += ["--platform", tag]
    environment = {**os.environ, "PIP_REQUIRE_VIRTUALENV": "0"}
    if (
        index_url
    ):  # the vendor's index alone: a package of that name elsewhere must not be taken instead
        # in the environment, which other accounts do not see: an address may hold a token
        environment.update(
            PIP_INDEX_URL=index_url, PIP_EXTRA_INDEX_URL="", PIP_FIND_LINKS="", PIP_NO_INDEX="0"
        )
    pins, missing = list(pins), []
    while pins:
        code, text = _run_pip(argv, pins, want, environment)
        if code == 0:
            break
        pin = _without_wheel(text, pins)
        if not pin:
            raise WheelhouseError(explain(text, code, index_url))
        pins.remove(pin)
        versions = re.search(r"requirement " + re.escape(pin) + r" \(from versions: (.*)\)", text)
        offered = versions[1] if versions and versions[1] != "none" else "no version at all"
        missing.append(
            f"{pin}: the index has no wheel for {where}; it offers {_last(offered)}. Pin a version"
            " that has one, set index_url to the vendor's index (Paddle, MindSpore), or"
            " runtime_interpreter to another Python"
        )
    return missing


def _run_pip(argv, pins, want, environment):
    """Let pip work on pins, with the hashes that their lists give. Return (exit code, what it
    printed).
    """
    with tempfile.NamedTemporaryFile("w", encoding="utf-8", suffix=".txt") as handle:
        for pin in pins:
            handle.write(
                " ".join(
                    [
                        pin,
                        *(
                            f"--hash=sha256:{value}"
                            for value in want.hashes.get(pin.split("==")[0], ())
                        ),
                    ]
                )
                + "\n"
            )
        handle.flush()
        # a hash in the file switches on --require-hashes
        done = subprocess.run(
            [*argv, "--requirement", handle.name],
            env=environment,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            check=False,
        )
    text = done.stdout.decode(errors="replace") + done.stderr.decode(errors="replace")
    return done.returncode, re.sub(rf" \(from -r {re.escape(handle.name)} \(line \d+\)\)", "", text)


def build(pip, dest, pins, want):
    """Let pip make wheels of the pins' sources; return one line a pin whose wheel only this machine
    could use.

    The controller is not a node: its Python and C library may be others, so only what holds no
    compiled code is taken.
    """
    problems = []
    for pin in pins:
        name, version = pin.split("==")
        quiet = ["--no-input", "--disable-pip-version-check", "--progress-bar=off"]
        argv = [*pip, "wheel", "--no-deps", "--no-binary", name, *quiet, "--wheel-dir", dest]
        environment = {**os.environ, "PIP_REQUIRE_VIRTUALENV": "0"}
        code, text = _run_pip(argv, [pin], want, environment)
        if code:
            raise WheelhouseError(
                f"{pin} is to be built from source (--no-binary in its list):"
                f" {explain(text, code, None)}"
            )
        made = [
            wheel
            for wheel in os.listdir(dest)
            if wheel.endswith(".whl") and normal_name(wheel.split("-")[0]) == name
        ]
        if not all(wheel.endswith("-none-any.whl") for wheel in made):
            problems.append(
                f"{pin}: has compiled code, so its wheel cannot be built here for the nodes; pin a"
                " version that has a wheel"
            )
    return problems


def _without_wheel(text, pins):
    """Return the pin that pip found no wheel for, or None where pip failed for another reason (an
    index out of reach looks alike).
    """
    if re.search(r"Retrying \(|connection broken|Could not fetch URL|SSLError|\[Errno ", text):
        return None
    found = re.search(r"No matching distribution found for (\S+)", text)
    return found[1] if found and found[1] in pins else None


def _last(versions, count=6):
    """Shorten a long list of versions to the newest few."""
    names = versions.split(", ")
    return versions if len(names) <= count else "..., " + ", ".join(names[-count:])


def explain(text, code, index_url):
    """Say in words why pip failed."""
    if "No module named pip" in text:
        return (
            "the Python that runs Ansible has no pip; install it there (for a venv: python -m"
            " ensurepip)"
        )
    if "No space left on device" in text:
        return (
            "the controller's disk is full (pip's cache or trainyard_cache_dir); make room and run"
            " the same command again"
        )
    if re.search(r"Retrying \(|connection broken|Could not fetch URL|SSLError", text):
        return (
            f"the controller cannot reach {host_of(index_url) or 'the package index'}; check its"
            " network and pip's own configuration (pip config list), or run once where there is a"
            " network: a complete wheelhouse needs none"
        )
    if "DO NOT MATCH THE HASHES" in text:
        pins = re.findall(r"^    (\S+==\S+) from ", text, re.MULTILINE)
        got = re.findall(r"^ +Got +([0-9a-f]{64})", text, re.MULTILINE)
        return (
            f"{', '.join(pins)}: the index serves a file with sha256 {', '.join(got)}, which its"
            " list does not allow. Nothing of it was used. The file was changed, or the index has"
            " builds of its own: then lock those in a list of your own"
        )
    errors = [
        line for line in text.splitlines() if line.startswith("ERROR")
    ] or text.strip().splitlines()[-3:]
    return f"pip ended with {code}: {printable(hide_paths(' '.join(errors)))}"


def _finish(stage, want):
    """Check that the stage holds exactly what is wanted, write its manifest, return it."""
    asked = {
        (name, directory): (version, index) for name, version, index, directory in _asked(want)
    }
    found, wheels = {}, {}
    for directory in ("", TOOLS):
        for name in sorted(os.listdir(os.path.join(stage, directory))):
            if name.endswith(".whl"):
                wheel = inspect_wheel(os.path.join(stage, directory, name))
                version, index = asked.get((wheel["name"], directory), (None, None))
                found[wheel["name"], directory] = wheel["version"]
                wheels[os.path.join(directory, name)] = dict(
                    wheel, asked=version, index=index_of(index)
                )
    if set(found) != set(asked):
        wrong = ", ".join(sorted(name for name, _ in set(found) ^ set(asked)))
        raise WheelhouseError(
            f"pip fetched other packages than were asked for: {wrong}; check what the index serves"
            " under these names"
        )
    packages = {name: version for (name, directory), version in found.items() if not directory}
    manifest = {
        "version": FORMAT,
        "digest": want.digest,
        "python": want.python,
        "machine": want.machine,
        "libc": want.libc,
        "uv_version": want.uv_version,
        "packages": packages,
        "wheels": wheels,
    }
    with open(os.path.join(stage, MANIFEST), "w", encoding="utf-8") as handle:
        json.dump(manifest, handle, indent=1, sort_keys=True)
        handle.flush()
        os.fsync(handle.fileno())
    return manifest
