# SPDX-License-Identifier: Apache-2.0
"""Wheelhouse: all wheels of one environment, and the installer.

They are for the nodes' Python. It is made on the controller, and its manifest is written last. pip
does the fetching, so indexes, proxies and certificates are what the user configured.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import re
import shutil
import subprocess
import tempfile
import types
import zipfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from ansible_collections.trainyard.cluster.plugins.module_utils.base.locks import (
    Locked,
    wait_for_lock,
)
from ansible_collections.trainyard.cluster.plugins.module_utils.base.manifest import file_sha256
from ansible_collections.trainyard.cluster.plugins.module_utils.base.sanitize import (
    hide_paths,
    host_of,
    printable,
)
from ansible_collections.trainyard.cluster.plugins.module_utils.environments import (
    installed_files,
    python_env,
)
from ansible_collections.trainyard.cluster.plugins.module_utils.environments.wheel_manifest import (
    FORMAT,
    INSTALLER,
    MANIFEST,
    TOOLS,
    read_manifest,
    verify,
)

# A wheel or the whole manifest, as JSON.
Json = dict[str, Any]
# (package, version, index, directory)
WantedWheel = tuple[str, str, "str | None", str]


class Wanted(NamedTuple):
    """The wanted content of a wheelhouse.

    packages: {name: version}. package: the framework's, one of PACKAGES. from_source: packages that
    the index has no wheel of. hashes: {package: sha256 of the files that may be used}, of what the
    lists lock.
    """

    digest: str
    packages: dict[str, str]
    package: str
    index_url: str | None
    python: str
    machine: str
    libc: str
    uv_version: str
    from_source: tuple[str, ...] = ()
    hashes: Mapping[str, Sequence[str]] = types.MappingProxyType({})


class WheelhouseError(Exception):
    """The wheelhouse could not be made.

    The text names the package or the cause and the remedy.
    """


# The version of a C library as nodes report it. Each minor version is one more platform to look
# for, so it is bounded.
LIBC = re.compile(r"[0-9]{1,2}\.[0-9]{1,3}(?:\.[0-9]{1,3})?\Z")


def version_pair(text: str) -> tuple[int, ...]:
    """Return the version '2.36' of a C library as (2, 36), to compare.

    Raises ValueError.
    """
    if not LIBC.match(text):
        raise ValueError(f"{text!r} is not the version of a C library")
    return tuple(int(part) for part in text.split(".")[:2])


def platform_tags(machine: str, libc: str) -> list[str]:
    """Return the wheel platforms that run on a glibc, newest first.

    They are those of PEP 600, with the older names and the vendor's own linux_*.
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
def lock_cache(root: str, wait: float) -> Iterator[None]:
    """Lock the cache for one process.

    wait: the longest time in seconds. The kernel removes the lock when the process ends, however it
    ends. Raises WheelhouseError.
    """
    os.makedirs(root, mode=0o700, exist_ok=True)
    with open(os.path.join(root, ".lock"), "a+", encoding="utf-8") as handle:
        try:
            wait_for_lock(handle, wait)
        except Locked:
            handle.seek(0)
            holder = handle.read().strip() or "?"
            raise WheelhouseError(
                f"{root} has been in use by process {holder} for {wait} s; wait for it or end it"
            ) from None
        handle.truncate(0)
        handle.write(f"{os.getpid()}\n")
        handle.flush()
        yield


def inspect_wheel(path: str) -> Json:
    """Return {name, version, bytes, unpacked_bytes, sha256} of a wheel.

    name and version are those that an installed copy shows.
    """
    with zipfile.ZipFile(path) as archive:
        entries = archive.infolist()
    metadata = next(
        entry.filename
        for entry in entries
        if re.fullmatch(r"[^/]+\.dist-info/METADATA", entry.filename)
    )
    name, _, version = metadata.split("/")[0][: -len(".dist-info")].partition("-")
    unpacked = sum(entry.file_size for entry in entries)
    # Bytecode is about as large as the source it is made from.
    unpacked += sum(entry.file_size for entry in entries if entry.filename.endswith(".py"))
    return {
        "name": installed_files.normal_name(name),
        "version": version,
        "bytes": os.path.getsize(path),
        "unpacked_bytes": unpacked,
        "sha256": file_sha256(path),
    }


def read_wheelhouse(path: str, want: Wanted) -> Json | None:
    """Return the manifest of a complete wheelhouse that serves this want, or None.

    Its wheels are intact.
    """
    manifest = read_manifest(path)
    if (
        not manifest
        or not _serves(manifest, want)
        or manifest["uv_version"] != want.uv_version
        or verify(path, manifest)
    ):
        return None
    for wheel in manifest["wheels"].values():
        # An earlier Trainyard wrote the index's address, which may hold a token, and the nodes get
        # the manifest.
        if "index_url" in wheel or not _may_be_used(wheel, want):
            return None
    return manifest


def _may_be_used(wheel: Json, want: Wanted) -> bool:
    """Return True if the lists allow a wheel of a manifest.

    A wheel that is built here has no sha256 in a list. Its source has.
    """
    hashes = want.hashes.get(wheel["name"])
    return not hashes or wheel["name"] in want.from_source or wheel["sha256"] in hashes


def index_name(url: str | None) -> str | None:
    """Return a name for an index, None for pip's own.

    It is a digest of the address, which may hold a token.
    """
    if url is None:
        return None
    return hashlib.sha256(url.encode()).hexdigest()[:16]


def _index_of(wheel: Json) -> str | None:
    """Return the name of the index that a wheel of a manifest came from."""
    if "index_url" in wheel:
        # An earlier Trainyard wrote the address itself.
        return index_name(wheel["index_url"])
    return wheel["index"]


def _serves(manifest: Json, want: Wanted) -> bool:
    """Return True if wheels of this wheelhouse run on the wanted nodes."""
    same = (manifest["python"], manifest["machine"]) == (want.python, want.machine)
    return same and version_pair(manifest["libc"]) <= version_pair(want.libc)


def provide(root: str, want: Wanted, pip: Sequence[str], free: Callable[[], int]) -> Json:
    """Return the content of a wheelhouse that was built where necessary.

    It is built where it was missing or damaged. The caller holds `lock_cache(root)`. pip: the
    command as a list. free: a function that returns the free bytes of the cache's file system.
    Raises WheelhouseError.
    """
    path = os.path.join(root, want.digest)
    stage = os.path.join(root, f".stage-{want.digest}")
    manifest = read_wheelhouse(path, want)
    if manifest:
        return dict(
            _summary(path, manifest), changed=False, fetched=[], reused=len(manifest["wheels"])
        )
    # A killed build may have left files. Under the lock no other process is building.
    _sweep(root)
    try:
        return _build(root, path, stage, want, pip, free)
    finally:
        _sweep(root)


def _sweep(root: str) -> None:
    """Remove staging and damaged directories."""
    for entry in os.listdir(root):
        if entry.startswith((".stage-", ".damaged-")):
            shutil.rmtree(os.path.join(root, entry), ignore_errors=True)


def _build(
    root: str, path: str, stage: str, want: Wanted, pip: Sequence[str], free: Callable[[], int]
) -> Json:
    """Fill the stage from the cache and from pip, and put it in place."""
    os.makedirs(os.path.join(stage, TOOLS), mode=0o700)
    known = _known_wheels(root, want)
    reused = _reuse(known, stage, want)
    packages: dict[str, Any] = python_env.PACKAGES
    gigabytes = packages[want.package]["gigabytes"]
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


def _summary(path: str, manifest: Json) -> Json:
    """Return {manifest_sha256, wheel_bytes, needed_bytes, packages} of a wheelhouse."""
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


def _manifests(root: str) -> Iterator[tuple[str, Json]]:
    """Yield (entry, manifest) of the wheelhouses of a cache, sorted by entry."""
    for entry in sorted(os.listdir(root)):
        if len(entry) == 16:
            manifest = read_manifest(os.path.join(root, entry))
            if manifest:
                yield entry, manifest


def _known_wheels(root: str, want: Wanted) -> dict[tuple[str, str, str | None], tuple[str, str]]:
    """Return {(package, wanted version, index): (file, sha256)} that would serve."""
    known: dict[tuple[str, str, str | None], tuple[str, str]] = {}
    for entry, manifest in _manifests(root):
        if not _serves(manifest, want):
            continue
        for name, wheel in manifest["wheels"].items():
            if _may_be_used(wheel, want):
                path = os.path.join(root, entry, name)
                known[wheel["name"], wheel["asked"], _index_of(wheel)] = (path, wheel["sha256"])
    return known


def _first_seen(root: str) -> dict[tuple[str | None, str], set[str]]:
    """Return {(index, file): {sha256}} of every wheel in this cache."""
    seen: dict[tuple[str | None, str], set[str]] = {}
    for _entry, manifest in _manifests(root):
        for name, wheel in manifest["wheels"].items():
            seen.setdefault((_index_of(wheel), name), set()).add(wheel["sha256"])
    return seen


def _refuse_changed(
    manifest: Json, seen: dict[tuple[str | None, str], set[str]], want: Wanted
) -> None:
    """Refuse a wheel that is not the file which had this name before.

    A wheel that a list locks is not refused. An index never changes what it has published. seen: of
    _first_seen. Raises WheelhouseError.
    """
    changed = []
    for name, wheel in sorted(manifest["wheels"].items()):
        before = seen.get((wheel["index"], name), {wheel["sha256"]})
        is_locked = wheel["name"] in want.from_source or want.hashes.get(wheel["name"])
        if not is_locked and wheel["sha256"] not in before:
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


def _wanted_wheels(want: Wanted) -> list[WantedWheel]:
    """Return [(package, version, index, directory)] of all that must be there."""
    wheels = []
    for name, version in sorted(want.packages.items()):
        index = None
        if name in python_env.PACKAGES:
            index = want.index_url
        wheels.append((name, version, index, ""))
    wheels.append((INSTALLER, want.uv_version, None, TOOLS))
    return wheels


def _reuse(
    known: dict[tuple[str, str, str | None], tuple[str, str]], stage: str, want: Wanted
) -> set[tuple[str, str]]:
    """Put intact wheels of the cache into the stage.

    Returns the packages that they are for.
    """
    reused: set[tuple[str, str]] = set()
    for name, version, index, directory in _wanted_wheels(want):
        source, sha256 = known.get((name, version, index_name(index)), ("", ""))
        with contextlib.suppress(OSError):
            if source and file_sha256(source) == sha256:
                os.link(source, os.path.join(stage, directory, os.path.basename(source)))
                reused.add((name, directory))
    return reused


def _fetch_all(
    pip: Sequence[str], stage: str, want: Wanted, reused: set[tuple[str, str]]
) -> list[str]:
    """Fetch what the stage lacks and return the wheels' names.

    Raises WheelhouseError with every package that has no wheel.
    """
    groups: dict[tuple[str | None, str, bool, bool], list[str]] = {}
    missing: list[str] = []
    fetched: list[str] = []
    for name, version, index, directory in _wanted_wheels(want):
        if (name, directory) not in reused:
            # pip refuses a list of which only some lines have hashes.
            has_hashes = bool(want.hashes.get(name))
            group = (index, directory, name in want.from_source, has_hashes)
            groups.setdefault(group, []).append(f"{name}=={version}")
    for (index, directory, from_source, _has_hashes), pins in groups.items():
        dest = os.path.join(stage, directory)
        before = set(os.listdir(dest))
        if from_source:
            missing += build(pip, dest, pins, want)
        else:
            missing += fetch(pip, dest, pins, want, index)
        fetched += sorted(set(os.listdir(dest)) - before)
    if missing:
        raise WheelhouseError("\n".join(missing))
    return [name for name in fetched if name.endswith(".whl")]


def fetch(
    pip: Sequence[str], dest: str, pins: Sequence[str], want: Wanted, index_url: str | None = None
) -> list[str]:
    """Let pip fetch the pins' wheels and return one line per missing wheel.

    dest: the directory. The wheels are for the nodes' Python. Raises WheelhouseError where pip
    fails otherwise.
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
    if index_url:
        # The vendor's index alone: a package of that name elsewhere must not be taken instead. It
        # stands in the environment, which other accounts do not see: an address may hold a token.
        environment.update(
            PIP_INDEX_URL=index_url, PIP_EXTRA_INDEX_URL="", PIP_FIND_LINKS="", PIP_NO_INDEX="0"
        )
    remaining: list[str] = list(pins)
    missing: list[str] = []
    while remaining:
        code, text = _run_pip(argv, remaining, want, environment)
        if code == 0:
            break
        pin = _without_wheel(text, remaining)
        if not pin:
            raise WheelhouseError(explain(text, code, index_url))
        remaining.remove(pin)
        missing.append(
            f"{pin}: the index has no wheel for {where}; it offers {_offered_versions(text, pin)}."
            " Pin a version that has one, set index_url to the vendor's index (Paddle, MindSpore),"
            " or runtime_interpreter to another Python"
        )
    return missing


def _offered_versions(text: str, pin: str, count: int = 6) -> str:
    """Return the newest few versions that the index has, as pip printed them, as text."""
    match = re.search(r"requirement " + re.escape(pin) + r" \(from versions: (.*)\)", text)
    if not match or match[1] == "none":
        return "no version at all"
    versions = match[1].split(", ")
    if len(versions) <= count:
        return match[1]
    return "..., " + ", ".join(versions[-count:])


def _run_pip(
    argv: Sequence[str], pins: Sequence[str], want: Wanted, environment: dict[str, str]
) -> tuple[int, str]:
    """Let pip work on pins, with the hashes that their lists give.

    Returns (exit code, what it printed). argv: pip's command. environment: its variables.
    """
    with tempfile.NamedTemporaryFile("w", encoding="utf-8", suffix=".txt") as handle:
        for pin in pins:
            hashes = want.hashes.get(pin.split("==")[0], ())
            options = [f" --hash=sha256:{value}" for value in hashes]
            handle.write(pin + "".join(options) + "\n")
        handle.flush()
        # A hash in the file switches on --require-hashes.
        done = subprocess.run(
            [*argv, "--requirement", handle.name],
            env=environment,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            check=False,
        )
    text = done.stdout.decode(errors="replace") + done.stderr.decode(errors="replace")
    return done.returncode, re.sub(rf" \(from -r {re.escape(handle.name)} \(line \d+\)\)", "", text)


def build(pip: Sequence[str], dest: str, pins: Sequence[str], want: Wanted) -> list[str]:
    """Let pip build the pins' wheels and return one line per compiled one.

    dest: the directory. The controller is not a node: its Python and C library may be others, so
    only this machine could use such a wheel. Raises WheelhouseError where pip fails.
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
        wheels = [
            wheel
            for wheel in os.listdir(dest)
            if wheel.endswith(".whl") and installed_files.normal_name(wheel.split("-")[0]) == name
        ]
        if not all(wheel.endswith("-none-any.whl") for wheel in wheels):
            problems.append(
                f"{pin}: has compiled code, so its wheel cannot be built here for the nodes; pin a"
                " version that has a wheel"
            )
    return problems


def _without_wheel(text: str, pins: Sequence[str]) -> str | None:
    """Return the pin that pip found no wheel for, or None for another failure.

    An index that cannot be reached looks alike.
    """
    if re.search(r"Retrying \(|connection broken|Could not fetch URL|SSLError|\[Errno ", text):
        return None
    match = re.search(r"No matching distribution found for (\S+)", text)
    if match and match[1] in pins:
        return match[1]
    return None


def explain(text: str, code: int, index_url: str | None) -> str:
    """Return the reason why pip failed, with the remedy.

    text: what pip printed. code: its exit code. index_url: the vendor's index, or None.
    """
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
        sha256 = re.findall(r"^ +Got +([0-9a-f]{64})", text, re.MULTILINE)
        return (
            f"{', '.join(pins)}: the index serves a file with sha256 {', '.join(sha256)}, which its"
            " list does not allow. Nothing of it was used. The file was changed, or the index has"
            " builds of its own: then lock those in a list of your own"
        )
    errors = [line for line in text.splitlines() if line.startswith("ERROR")]
    errors = errors or text.strip().splitlines()[-3:]
    return f"pip ended with {code}: {printable(hide_paths(' '.join(errors)))}"


def _finish(stage: str, want: Wanted) -> Json:
    """Write the stage's manifest and return it.

    Raises WheelhouseError where it does not hold exactly what is wanted.
    """
    wanted = {
        (name, directory): (version, index)
        for name, version, index, directory in _wanted_wheels(want)
    }
    versions: dict[tuple[str, str], str] = {}
    wheels: dict[str, Json] = {}
    for directory in ("", TOOLS):
        for name in sorted(os.listdir(os.path.join(stage, directory))):
            if name.endswith(".whl"):
                wheel = inspect_wheel(os.path.join(stage, directory, name))
                key = (wheel["name"], directory)
                version, index = wanted.get(key, (None, None))
                versions[key] = wheel["version"]
                path = os.path.join(directory, name)
                wheels[path] = dict(wheel, asked=version, index=index_name(index))
    if set(versions) != set(wanted):
        wrong = ", ".join(sorted(name for name, _ in set(versions) ^ set(wanted)))
        raise WheelhouseError(
            f"pip fetched other packages than were asked for: {wrong}; check what the index serves"
            " under these names"
        )
    packages = {name: version for (name, directory), version in versions.items() if not directory}
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
