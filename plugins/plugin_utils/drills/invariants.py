# SPDX-License-Identifier: Apache-2.0
"""Promises N1 to N8 of a run with an injected fault, each checked by its effect.

Every promise is True (kept), False (broken, with a text why) or None (this fault cannot show it).
The bytes on the nodes are compared with those on the controller, never with what the product has
noted of them.
"""

from __future__ import annotations

import mmap
import os
import re
import shlex
import stat
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from ansible_collections.trainyard.cluster.plugins.module_utils.agent import log_sender
from ansible_collections.trainyard.cluster.plugins.module_utils.base.files import read_json

from ..logsync import collector
from . import fault_table
from .drill_site import Node, Site
from .fault_table import DrillProblem, Fault, Verdict

# (sha256, bytes) of a file.
Content = tuple[str, int]
# {node: {path: sha256}}.
Digests = dict[str, dict[str, str]]

# Checkpoints of earlier runs: so many files of each node are digested, the newest ones.
EARLIER = 12
CHECKPOINTS = (
    "-name '*.pdparams' -o -name '*.pdopt' -o -name '*.pdema' -o -name '*.states' -o -name '*.ckpt'"
)
# Files on the controller that may hold a secret: the plan and the job as they were sent, and raw
# logs. All of them for their owner alone.
RAW = re.compile(
    r"(?:plan\.json|job\.json|code\.diff|(?:rank-|stray-|launcher|scheduler|backup|envlog)[^/]*)\Z"
)


def digest_lines(text: str) -> dict[str, str]:
    """Return {path: sha256} of sha256sum's output."""
    return {line[66:]: line[:64] for line in text.splitlines() if len(line) > 66}


def digest_checkpoints(site: Site) -> Digests:
    """Return {node: {path: sha256}} of the nodes' checkpoints before the fault."""
    script = (
        f"find {site.base}/runs -type f \\( {CHECKPOINTS} \\) -printf '%T@ %p\\n' 2> /dev/null"
        f" | sort -n | tail -n {EARLIER}"
        " | cut -d' ' -f2- | tr '\\n' '\\0' | xargs -0r sha256sum"
    )
    return {node.name: digest_lines(node.inspect(script)) for node in site.nodes}


def check_logs(site: Site, run: str, number: int) -> list[DrillProblem]:
    """Return the problems with N1: a log on the controller equals its node's.

    What a node no longer has is on the controller alone. A log that began again on its node is
    there several times: as <home> what has its name on the node now, as <home>.1, .2, ... what had
    it before. Where the node has a copy from before as <file>.1, .2, ..., one of them must begin
    with every byte of it.
    """
    attempt_dir = os.path.join(site.runs_dir, run, f"attempt-{number}")
    index = read_json(os.path.join(attempt_dir, "ranks.json"))
    plan = read_json(find_plan(site, run, number) or "")
    if not index:
        return [
            DrillProblem(
                "drill.index_missing",
                f"N1: attempt-{number}/ranks.json is missing on the controller",
            )
        ]
    problems = []
    for node in site.nodes:
        names = _names_of_files(index, node.name)
        if not names:
            problems.append(
                DrillProblem("drill.logs_missing", f"N1: nothing of {node.name} was fetched")
            )
        # How a unit ended may be noted after all was brought, as by a node that comes back.
        planned = set()
        if plan:
            planned = set(log_sender.named(plan, node.name)) - {log_sender.WHOLE}
        files = sorted(set(names) | planned)
        remote, copies = digest_files(
            node,
            f"{site.base}/runs/{run}/attempt-{number}",
            [file for file in files if file],
        )
        for file in files:
            paths = [os.path.join(attempt_dir, name) for name in names.get(file, ())]
            problems += _byte_problems(node.name, file, paths, remote.get(file))
            problems += _copy_problems(node.name, paths, copies.get(file, {}))
            problems += [
                DrillProblem(
                    "drill.log_readable", f"N1: {os.path.basename(path)} can be read by others"
                )
                for path in paths
                if os.path.exists(path) and _open_to_others(path)
            ]
    return problems


def _names_of_files(index: Mapping[str, Any], node: str) -> dict[str, list[str]]:
    """Return {file on the node: [name on the controller]}, <home> before <home>.1."""
    names: dict[str, list[str]] = {}
    for item in sorted(index["files"], key=lambda item: len(item["home"])):
        if item["node"] == node:
            names.setdefault(item["file"], []).append(item["home"])
    return names


def _byte_problems(
    node: str, file: str, paths: Sequence[str], remote: Content | None
) -> list[DrillProblem]:
    """Compare a file with its first path here.

    remote: (sha256, bytes) on the node, None for no file.
    """
    if remote is None:
        return []
    if not paths:
        return [DrillProblem("drill.log_missing", f"N1: {file} of {node} is not on the controller")]
    if not has_beginning(paths[0], *remote, whole=True):
        return [
            DrillProblem(
                "drill.log_differs",
                f"N1: {file} of {node} differs from the controller's {os.path.basename(paths[0])}",
            )
        ]
    return []


def _copy_problems(
    node: str, paths: Sequence[str], copies: Mapping[str, Content]
) -> list[DrillProblem]:
    """Return the problems with earlier copies of a file that nothing here begins with."""
    if not paths:
        return []
    names = ", ".join(os.path.basename(path) for path in paths)
    return [
        DrillProblem("drill.log_copy_differs", f"N1: none of {names} begins as {copy} of {node}")
        for copy, (digest, size) in copies.items()
        if not any(has_beginning(path, digest, size) for path in paths)
    ]


def _open_to_others(path: str) -> bool:
    return bool(stat.S_IMODE(os.stat(path).st_mode) & 0o077)


def digest_files(
    node: Node, folder: str, files: Sequence[str]
) -> tuple[dict[str, Content], dict[str, dict[str, Content]]]:
    """Return (files, copies of files) that are on a node.

    files: {file: (sha256, bytes)}. copies: {file: {copy: (sha256, bytes)}}. Files that the node
    does not have are left out. A copy is named <file>.N.
    """
    words = " ".join(f"{shlex.quote(file)} {shlex.quote(file)}.[0-9]*" for file in files)
    output = node.inspect(
        f'cd {folder} && for f in {words}; do [ -f "$f" ] && sha256sum "$f" && wc -c < "$f"; done;'
        " true"
    )
    lines = output.splitlines()
    present = {line[66:]: (line[:64], int(size)) for line, size in zip(lines[::2], lines[1::2])}
    copies = {}
    for file in files:
        copy_name = re.compile(re.escape(file) + r"\.[0-9]+")
        copies[file] = {name: present[name] for name in present if copy_name.fullmatch(name)}
    return {file: present[file] for file in files if file in present}, copies


def has_beginning(path: str, digest: str, size: int, whole: bool = False) -> bool:
    """Return whether a file here begins with so many bytes of this sha256.

    whole: the file must not have more bytes.
    """
    digests = collector.digests(path, size)
    return (
        digests is not None
        and digests.prefix_sha256 == digest
        and not (whole and digests.bytes > size)
    )


def check_checkpoints(site: Site, before: Digests) -> list[DrillProblem]:
    """Return the problems with N2: no checkpoint of an earlier run is gone or changed."""
    problems = []
    for node in site.nodes:
        known = before.get(node.name) or {}
        if not known:
            continue
        paths = " ".join(map(shlex.quote, sorted(known)))
        now = digest_lines(node.inspect(f"sha256sum {paths} 2> /dev/null; true"))
        problems += [
            DrillProblem(
                "drill.checkpoint_changed", f"N2: {path} of {node.name} is not what it was"
            )
            for path in sorted(known)
            if now.get(path) != known[path]
        ]
    return problems


def check_leftovers(site: Site, run: str, seconds: float = 30) -> list[DrillProblem]:
    """Return the problems with N3: no process or unit of the run is left on a node.

    Only nodes that answer are checked. A node that comes back has some seconds to fence itself.
    """
    marked = (
        f"grep -lzs '^TRAINYARD_ATTEMPT={run}/' /proc/[0-9]*/environ | cut -d/ -f3 | tr '\\n' ' '"
    )
    units = (
        "export XDG_RUNTIME_DIR=/run/user/$(id -u); systemctl --user list-units --plain --no-legend"
        f" 'trainyard-{run}-*' 'yardguard-{run}-*' 'yardreplica-{run}-*'"
        f" 'yardsupervisor-{run}-*' | cut -d' ' -f1"
    )
    script, end = f"{marked}; {units}", time.monotonic() + seconds
    while True:
        rest = {node.name: " ".join(node.inspect(script).split()) for node in site.nodes}
        if not any(rest.values()) or time.monotonic() > end:
            return [
                DrillProblem("drill.process_left", f"N3: left on {name}: {text[:200]}")
                for name, text in rest.items()
                if text
            ]
        time.sleep(1)


def find_plan(site: Site, run: str, number: int) -> str | None:
    """Return the path of an attempt's plan on the controller, or None."""
    folder = os.path.join(site.runs_dir, run)
    paths = (
        os.path.join(folder, f"attempt-{number}", "plan.json"),
        os.path.join(folder, "plan.json"),
    )
    return next((path for path in paths if os.path.exists(path)), None)


def check_equality(site: Site, run: str, number: int) -> list[DrillProblem]:
    """Return the problems with N4: plan, code and data are equal on all nodes.

    The plan is also compared with the one on the controller.
    """
    path = find_plan(site, run, number)
    plan, digests = None, None
    if path:
        plan, digests = read_json(path), collector.digests(path, 0)
    if not plan or digests is None:
        return [DrillProblem("drill.plan_missing", "N4: there is no plan on the controller")]
    base = site.base
    code = plan["code"].get("path") or f"{base}/code/{plan['code']['digest'][:16]}"
    data = [_below(base, target) for target in sorted(plan["links"].values())]
    script = [
        f"sha256sum < {base}/runs/{run}/attempt-{number}/plan.json",
        "cd",
        f"(cd {code} && find . -type f | LC_ALL=C sort | tr '\\n' '\\0' | xargs -0 sha256sum |"
        " sha256sum)",
    ]
    # Data may be terabytes: names and sizes here, what they hold is the manifest's matter
    # (playbooks/check.yml -e verify=full).
    script += [
        f"(cd {tree} && find -L . -type f -printf '%p %s\\n' | LC_ALL=C sort | sha256sum)"
        for tree in data
    ]
    answers = {node.name: node.inspect("; ".join(script)).split("\n") for node in site.nodes}
    problems = [
        DrillProblem("drill.plan_differs", f"N4: plan.json of {name} is not the controller's")
        for name, lines in answers.items()
        if lines[0][:64] != digests.sha256
    ]
    for index, tree in enumerate([code, *data], 1):
        if len({tuple(lines[index : index + 1]) for lines in answers.values()}) > 1:
            problems.append(
                DrillProblem(
                    "drill.tree_differs", f"N4: {tree} differs between {', '.join(answers)}"
                )
            )
    return problems


def _below(base: str, path: str) -> str:
    """Return a path below the base, an absolute one as it is."""
    if path.startswith("/"):
        return path
    return f"{base}/{path}"


def check_verdict(
    fault: Fault, verdict: Mapping[str, Any], site: Site
) -> list[DrillProblem] | None:
    """Return the problems with N6: the verdict of a rank's failure is complete.

    It names node, rank, exit code or signal, and a log that is on the controller. None: the fault
    fails no rank.
    """
    if not fault["expect"].get("rank"):
        return None
    lacking = [key for key in ("node", "rank", "log") if verdict.get(key) is None]
    if verdict.get("exit_code") is None and not verdict.get("signal"):
        lacking.append("exit code or signal")
    log = verdict.get("log")
    parent = os.path.dirname(os.path.normpath(site.runs_dir))
    if log and not os.path.exists(os.path.join(parent, str(log))):
        lacking.append(f"the log {log}")
    return [
        DrillProblem("drill.verdict_incomplete", f"N6: the verdict lacks {word}")
        for word in lacking
    ]


def check_secret(site: Site, run: str, canary: str, outputs: Sequence[str]) -> list[DrillProblem]:
    """Return the problems with N7: the secret is nowhere that others may read.

    It is in no output, and in no file of the run that is not for its owner alone.

    outputs: paths of the commands' outputs.
    """
    secret_bytes = canary.encode()
    problems = [
        DrillProblem(
            "drill.secret_in_output",
            f"N7: the secret stands in the output {os.path.basename(path)}",
        )
        for path in outputs
        if contains(path, secret_bytes)
    ]
    for folder, _folders, names in os.walk(os.path.join(site.runs_dir, run)):
        for name in names:
            path = os.path.join(folder, name)
            if not os.path.isfile(path) or not contains(path, secret_bytes):
                continue
            if not RAW.match(name) or _open_to_others(path):
                problems.append(
                    DrillProblem(
                        "drill.secret_in_file",
                        f"N7: the secret stands in {os.path.relpath(path, site.runs_dir)}",
                    )
                )
    for node in site.nodes:
        mode = node.inspect(f"stat -c %a {site.base}/runs/{run}/attempt-1").strip()
        if mode and not mode.endswith("00"):
            problems.append(
                DrillProblem(
                    "drill.attempt_readable",
                    f"N7: others may enter the attempt on {node.name} (mode {mode})",
                )
            )
    return problems


def contains(path: str, text: bytes) -> bool:
    """Return whether these bytes are in a file of any size."""
    with open(path, "rb") as handle:
        if not os.fstat(handle.fileno()).st_size:
            return False  # nothing to map
        with mmap.mmap(handle.fileno(), 0, access=mmap.ACCESS_READ) as mapped:
            return mapped.find(text) >= 0


def check_all(
    site: Site,
    fault: Fault,
    run: str,
    numbers: Sequence[int],
    verdict: Verdict,
    before: Digests,
    canary: str,
    outputs: Sequence[str],
    fresh: list[DrillProblem],
) -> tuple[dict[str, bool | None], list[DrillProblem]]:
    """Check N1 to N7 and return ({name: True, False or None}, [problem]).

    fresh: the problems that another controller has with the run (N5).
    """
    problems = {
        "N1": _of_attempts(check_logs, site, fault, run, numbers),
        "N2": check_checkpoints(site, before),
        "N3": check_leftovers(site, run),
        "N4": _of_attempts(check_equality, site, fault, run, numbers),
        "N5": fresh,
        "N6": check_verdict(fault, verdict or {}, site),
        "N7": check_secret(site, run, canary, outputs),
    }
    promises = dict.fromkeys(fault_table.PROMISES)
    promises.update({name: _is_kept(texts) for name, texts in problems.items()})
    return promises, [text for texts in problems.values() if texts for text in texts]


def _of_attempts(
    check: Callable[[Site, str, int], list[DrillProblem]],
    site: Site,
    fault: Fault,
    run: str,
    numbers: Sequence[int],
) -> list[DrillProblem] | None:
    """Return the problems that a check finds in all attempts.

    None where the fault takes the evidence away.
    """
    if fault.get("volatile"):
        return None
    return [text for number in numbers for text in check(site, run, number)]


def _is_kept(problems: list[DrillProblem] | None) -> bool | None:
    """Return whether a promise is kept, None where it was not checked."""
    if problems is None:
        return None
    return not problems
