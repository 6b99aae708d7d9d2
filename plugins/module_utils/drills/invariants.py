# SPDX-License-Identifier: Apache-2.0
"""N1 to N8 of a run that a fault was done to, each looked at by its effect. Controller only.

Every promise is True (held), False (broken, with a text why) or None (this fault cannot show it).
What is compared are the bytes on the nodes and those at home, never what the product has noted of
them.
"""

from __future__ import annotations

import mmap
import os
import re
import shlex
import stat
import time

from ..agent import shipping
from ..base import manifest
from ..logsync import collector
from . import fault_table

# Checkpoints of earlier runs: so many files of each node are digested, the newest ones.
EARLIER = 12
CHECKPOINTS = (
    "-name '*.pdparams' -o -name '*.pdopt' -o -name '*.pdema' -o -name '*.states' -o -name '*.ckpt'"
)
# At home, what may hold a secret: the plan and the job as they were sent, and raw logs. All of them
# for their owner alone.
RAW = re.compile(
    r"(?:plan\.json|job\.json|code\.diff|(?:rank-|stray-|launcher|scheduler|backup|envlog)[^/]*)\Z"
)


def digest_lines(text):
    """Return {path: sha256} of sha256sum's output."""
    return {line[66:]: line[:64] for line in text.splitlines() if len(line) > 66}


def earlier(ground):
    """Return {node: {path: sha256}} of checkpoints that lie on the nodes before the fault."""
    script = (
        "find %s/runs -type f \\( %s \\) -printf '%%T@ %%p\\n' 2> /dev/null | sort -n | tail -n %d"
        " | cut -d' ' -f2- | tr '\\n' '\\0' | xargs -0r sha256sum"
    )
    return {
        node.name: digest_lines(node.look(script % (ground.base, CHECKPOINTS, EARLIER)))
        for node in ground.nodes
    }


def logs(ground, run, number):
    """N1: problems where a log's bytes at home are not those of its node. What a node no longer has
    is at home alone.

    A log that began again on its node is at home several times: as <home> what has its name there
    now, as <home>.1, .2, ... what had it before. Where a copy from before lies there as <file>.1,
    .2, ..., one of them must begin with every byte of it.
    """
    home, problems = os.path.join(ground.runs_dir, run, "attempt-%d" % number), []
    index, plan = (
        manifest.read_json(os.path.join(home, "ranks.json")),
        manifest.read_json(plan_at_home(ground, run, number) or ""),
    )
    if not index:
        return ["N1: attempt-%d/ranks.json is missing at home" % number]
    for node in ground.nodes:
        names = {}
        for item in sorted(
            index["files"], key=lambda item: len(item["home"])
        ):  # <home> before <home>.1
            if item["node"] == node.name:
                names.setdefault(item["file"], []).append(item["home"])
        # how a unit ended may be noted after all came home, as by a node that comes back
        files = sorted(
            set(names) | set(shipping.named(plan, node.name) if plan else ()) - {shipping.WHOLE}
        )
        there, copies = on_node(
            node,
            "%s/runs/%s/attempt-%d" % (ground.base, run, number),
            [file for file in files if file],
        )
        problems += [f"N1: nothing of {node.name} came home"] if not names else []
        for file in files:
            paths = [os.path.join(home, name) for name in names.get(file, ())]
            if file in there and not paths:
                problems.append(f"N1: {file} of {node.name} did not come home")
            elif file in there and not begins(paths[0], *there[file], whole=True):
                problems.append(
                    f"N1: {file} of {node.name} is not what is at home as {names[file][0]}"
                )
            for copy, (digest, size) in copies.get(file, {}).items():
                if paths and not any(begins(path, digest, size) for path in paths):
                    problems.append(
                        "N1: none of {} begins as {} of {}".format(
                            ", ".join(names[file]), copy, node.name
                        )
                    )
            shown = [
                path
                for path in paths
                if os.path.exists(path) and stat.S_IMODE(os.stat(path).st_mode) & 0o077
            ]
            problems += [f"N1: {os.path.basename(path)} can be read by others" for path in shown]
    return problems


def on_node(node, folder, files):
    """Return ({file: (sha256, bytes)}, {file: {its copy <file>.N: (sha256, bytes)}}) of those of a
    node's files that are there.
    """
    words = " ".join(f"{shlex.quote(file)} {shlex.quote(file)}.[0-9]*" for file in files)
    said = node.look(
        f'cd {folder} && for f in {words}; do [ -f "$f" ] && sha256sum "$f" && wc -c < "$f"; done;'
        " true"
    )
    lines = said.splitlines()
    found = {line[66:]: (line[:64], int(size)) for line, size in zip(lines[::2], lines[1::2])}
    copies = {
        file: {
            name: found[name] for name in found if re.fullmatch(re.escape(file) + r"\.[0-9]+", name)
        }
        for file in files
    }
    return {file: found[file] for file in files if file in found}, copies


def begins(path, digest, size, whole=False):
    """Whether a file at home begins with so many bytes of this sha256; whole: and has no more."""
    found = collector.digests(path, size)
    return found is not None and found[2] == digest and not (whole and found[0] > size)


def checkpoints(ground, before):
    """N2: problems where a checkpoint of an earlier run is gone or changed."""
    problems = []
    for node in ground.nodes:
        known = before.get(node.name) or {}
        now = (
            digest_lines(
                node.look(
                    "sha256sum {} 2> /dev/null; true".format(
                        " ".join(map(shlex.quote, sorted(known)))
                    )
                )
            )
            if known
            else {}
        )
        problems += [
            f"N2: {path} of {node.name} is not what it was"
            for path in sorted(known)
            if now.get(path) != known[path]
        ]
    return problems


def left(ground, run, seconds=30):
    """N3: problems where a process or a unit of the run is left on a node that answers. A node that
    comes back has some seconds to fence itself.
    """
    marked = (
        f"grep -lzs '^TRAINYARD_ATTEMPT={run}/' /proc/[0-9]*/environ | cut -d/ -f3 | tr '\\n' ' '"
    )
    units = (
        "export XDG_RUNTIME_DIR=/run/user/$(id -u); systemctl --user list-units --plain --no-legend"
        " 'trainyard-%s-*' 'yardguard-%s-*' | cut -d' ' -f1"
    )
    script, end = f"{marked}; {units % (run, run)}", time.monotonic() + seconds
    while True:
        found = {node.name: " ".join(node.look(script).split()) for node in ground.nodes}
        if not any(found.values()) or time.monotonic() > end:
            return [f"N3: left on {name}: {text[:200]}" for name, text in found.items() if text]
        time.sleep(1)


def plan_at_home(ground, run, number):
    """Return the path of an attempt's plan on the controller; None where there is none."""
    folder = os.path.join(ground.runs_dir, run)
    paths = (
        os.path.join(folder, "attempt-%d" % number, "plan.json"),
        os.path.join(folder, "plan.json"),
    )
    return next((path for path in paths if os.path.exists(path)), None)


def equal(ground, run, number):
    """N4: problems where plan, code or data of the attempt differ between the nodes, or the plan
    from the one at home.
    """
    path = plan_at_home(ground, run, number)
    plan = manifest.read_json(path) if path else None
    if not plan:
        return ["N4: there is no plan at home"]
    said, base = {}, ground.base
    code = plan["code"].get("path") or "{}/code/{}".format(base, plan["code"]["digest"][:16])
    trees = [code] + [
        f"{base}/{target}" if not target.startswith("/") else target
        for target in sorted(plan["links"].values())
    ]
    script = ["sha256sum < %s/runs/%s/attempt-%d/plan.json" % (base, run, number), "cd"]
    script += [
        f"(cd {code} && find . -type f | LC_ALL=C sort | tr '\\n' '\\0' | xargs -0 sha256sum |"
        " sha256sum)"
    ]
    # Data may be terabytes: names and sizes here, what they hold is the manifest's matter
    # (playbooks/check.yml -e verify=full).
    script += [
        f"(cd {tree} && find -L . -type f -printf '%p %s\\n' | LC_ALL=C sort | sha256sum)"
        for tree in trees[1:]
    ]
    for node in ground.nodes:
        said[node.name] = node.look("; ".join(script)).split("\n")
    problems = [
        "N4: {} of {} is not the one at home".format("plan.json", name)
        for name, lines in said.items()
        if lines[0][:64] != collector.digests(path, 0)[1]
    ]
    for index, tree in enumerate(trees, 1):
        if len({tuple(lines[index : index + 1]) for lines in said.values()}) > 1:
            problems.append("N4: {} differs between {}".format(tree, ", ".join(said)))
    return problems


def told(fault, verdict, ground):
    """N6: problems where the verdict of a rank's failure lacks node, rank, exit code or signal, or
    a log that is at home. None: no rank is to be named.
    """
    if not fault["expect"].get("rank"):
        return None
    lacking = [key for key in ("node", "rank", "log") if verdict.get(key) is None]
    lacking += (
        ["exit code or signal"]
        if verdict.get("exit_code") is None and not verdict.get("signal")
        else []
    )
    path = str(verdict.get("log") or "")
    path = os.path.join(os.path.dirname(os.path.normpath(ground.runs_dir)), path)
    lacking += (
        ["the log {}".format(verdict["log"])]
        if verdict.get("log") and not os.path.exists(path)
        else []
    )
    return [f"N6: the verdict lacks {word}" for word in lacking]


def secret(ground, run, canary, outputs):
    """N7: problems where the secret stands in what was shown or in a file that others may read.
    outputs: paths of the commands' outputs.
    """
    problems = []
    for path in outputs:
        problems += (
            [f"N7: the secret stands in the output {os.path.basename(path)}"]
            if holds(path, canary.encode())
            else []
        )
    for where, _folders, names in os.walk(os.path.join(ground.runs_dir, run)):
        for name in names:
            path = os.path.join(where, name)
            if not os.path.isfile(path) or not holds(path, canary.encode()):
                continue
            if not RAW.match(name) or stat.S_IMODE(os.stat(path).st_mode) & 0o077:
                problems.append(
                    f"N7: the secret stands in {os.path.relpath(path, ground.runs_dir)}"
                )
    for node in ground.nodes:
        mode = node.look(f"stat -c %a {ground.base}/runs/{run}/attempt-1").strip()
        problems += (
            [f"N7: others may enter the attempt on {node.name} (mode {mode})"]
            if mode and not mode.endswith("00")
            else []
        )
    return problems


def holds(path, text):
    """Whether these bytes stand in a file of any size."""
    with open(path, "rb") as handle:
        if not os.fstat(handle.fileno()).st_size:
            return False  # nothing to map
        with mmap.mmap(handle.fileno(), 0, access=mmap.ACCESS_READ) as mapped:
            return mapped.find(text) >= 0


def every(ground, fault, run, numbers, verdict, before, canary, outputs, fresh):
    """Look at N1 to N7; return ({name: True, False or None}, [what is broken]). fresh: what another
    controller said of the run (N5), problems.
    """
    seen = {
        "N1": (
            None
            if fault.get("volatile")
            else [text for number in numbers for text in logs(ground, run, number)]
        ),
        "N2": checkpoints(ground, before),
        "N3": left(ground, run),
        "N4": (
            None
            if fault.get("volatile")
            else [text for number in numbers for text in equal(ground, run, number)]
        ),
        "N5": fresh,
        "N6": told(fault, verdict or {}, ground),
        "N7": secret(ground, run, canary, outputs),
    }
    promises = dict.fromkeys(fault_table.PROMISES)
    promises.update(
        {name: None if problems is None else not problems for name, problems in seen.items()}
    )
    return promises, [text for problems in seen.values() if problems for text in problems]
