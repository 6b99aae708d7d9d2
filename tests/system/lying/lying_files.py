# SPDX-License-Identifier: Apache-2.0
"""What a training's account can make of the files of its attempt; the modules that read them are
honest.
"""

from __future__ import annotations

import json
import os
import shutil

import lying_scenes
import lying_site
import lying_values

LISTED = (
    "plan.json",
    "attempt.json",
    "job.json",
    "ranks.jsonl",
    "exit.json",
    "stop.json",
    "guard.json",
    "stall.json",
    "loss.json",
    "evidence/state.json",
    "evidence/devices.json",
)
NAMES = (
    "a --rsh=sh -c 'touch {mark}' x", "-e sh", "--remove-source-files", "..log",
    "\x1b]52;c;eA==\x07", "a\nb", "\udcff\udcfe", "$(touch {mark})",
    "*", "?", "[a]", "a:b", "localhost:x", "{{{{ lookup('pipe', 'touch {mark}') }}}}", "x" * 250,
    " ", "+ *", "- *", "#", ";touch {mark}",
)  # fmt: skip


def attempt_of(stage, node):
    """Return the directory of the run's attempt on a node."""
    return stage.top / "nodes" / node / ".trainyard" / "runs" / lying_scenes.RUN / "attempt-1"


def some(stage, chance, count):
    """Return changes of so many files, one a file, none of which makes an honest look long."""
    found, files = [], set()
    every = [change for change in changes(stage) if "5 GB" not in change[0]]
    chance.shuffle(every)
    for change in every:
        file = change[0].split()[0].rstrip(":")
        if file not in files and len(found) < count:
            found.append(change)
            files.add(file)
    return found


def changes(stage):
    """Return [(label, function of (attempt's directory))]."""
    found, mark = [], str(stage.top / "outside" / "pwned").replace("/", "_")
    there = attempt_of(stage, stage.liars[0])
    values = lying_values.values(
        stage.top, lying_scenes.RUN, lying_scenes.OTHER, stage.honest, stage.liars[0]
    )
    skipped = ("huge text", "long list", "deep", "surrogate")
    for name in LISTED:
        place = there / name
        text = (
            place.read_text(encoding="utf-8")
            if place.exists()
            else '{"phase": "training", "time": 1, "rank": 0}'
        )
        lines = name.endswith(".jsonl")
        content = json.loads(text.splitlines()[-1] if lines else text)
        for path in lying_values.fields(content, depth=3):
            for label, change in values.items():
                if label not in skipped:
                    found.append(
                        (
                            "{} {}: {}".format(name, ".".join(map(str, path)), label),
                            _field(name, path, change, lines),
                        )
                    )
        kinds = {
            "a link to the controller's file": _link(name, stage.top / "outside" / "canary"),
            "a link to itself": _link(name, name),
            "a fifo": _fifo(name), "a directory": _folder(name), "empty": _bytes(name, b""),
            "no text": _bytes(name, b"\xff\x00\x1b]52;c;eA==\x07"),
            "deep": _bytes(name, b"[" * 100_000), "another link": _link(name, "/etc/passwd"),
        }  # fmt: skip
        found += [(f"{name}: {label}", change) for label, change in kinds.items()]
    for folder in ("log", "output/raise"):
        found += [(f"{folder}/{name!r}", _named(folder, name.format(mark=mark))) for name in NAMES]
    for name in ("log/workerlog.0", "logs.txt", "output/raise/model_final.pdparams"):
        found.append((f"{name}: a fifo", _fifo(name)))
        found.append((f"{name}: a link", _link(name, stage.top / "outside" / "canary")))
        found.append(
            (
                f"{name}: escapes",
                _bytes(
                    name,
                    lying_values.ESCAPES.encode() * 500
                    + b"\nValueError: "
                    + lying_values.ESCAPES.encode(),
                ),
            )
        )
        found.append((f"{name}: 5 GB of holes", _sparse(name)))
    found.append(("log: a link to a directory", _link("log", stage.top / "outside")))
    # beside the attempt: another one that nobody started, one that lies elsewhere, a number that is
    # none, and runs that nobody asked for
    for name in (
        "../attempt-2",
        "../attempt-999999",
        "../attempt-0x1",
        f"../../{lying_scenes.OTHER}/attempt-1",
    ):
        found.append((f"{name}: a copy", _copy(name)))
        found.append(
            (f"{name}: a link to the controller's files", _link(name, stage.top / "outside"))
        )
        found.append((f"{name}: a link to the attempt", _link(name, there)))
    return found


def _field(name, path, change, lines):
    def act(attempt):
        place = attempt / name
        text = (
            place.read_text(encoding="utf-8")
            if place.exists()
            else '{"phase": "training", "time": 1, "rank": 0}'
        )
        content = json.loads(text.splitlines()[-1] if lines else text)
        inner = content
        for word in path[:-1]:
            inner = inner[word]
        if change["do"] == "drop":
            del inner[path[-1]]
        else:
            inner[path[-1]] = change["value"]
        kept = text.splitlines()[:-1] if lines else []
        lying_site.write(place, "\n".join([*kept, json.dumps(content)]) + "\n")

    return act


def _clear(place):
    if place.is_dir() and not place.is_symlink():
        place.rename(place.with_name(place.name + ".before"))
    elif os.path.lexists(place):
        place.unlink()
    place.parent.mkdir(parents=True, exist_ok=True)
    return place


def _link(name, target):
    return lambda attempt: os.symlink(target, _clear(attempt / name))


def _fifo(name):
    return lambda attempt: os.mkfifo(_clear(attempt / name))


def _copy(name):
    return lambda attempt: shutil.copytree(attempt, _clear(attempt / name), symlinks=True)


def _folder(name):
    return lambda attempt: _clear(attempt / name).mkdir()


def _bytes(name, data):
    return lambda attempt: lying_site.write(_clear(attempt / name), data)


def _named(folder, name):
    def act(attempt):
        place = os.path.join(os.fsencode(attempt), folder.encode())
        os.makedirs(place, exist_ok=True)
        for ending in (b"", b".log", b".pdparams"):
            with open(os.path.join(place, os.fsencode(name)[:240] + ending), "wb") as handle:
                handle.write(b"x\n")

    return act


def _sparse(name):
    def act(attempt):
        with open(_clear(attempt / name), "wb") as handle:
            handle.truncate(5 << 30)

    return act
