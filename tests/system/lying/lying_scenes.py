# SPDX-License-Identifier: Apache-2.0
"""Verbs on a site where nodes lie. The honest command runs first, and the same command runs again
with lies. The scenes find what the lies have done.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
import shutil
from pathlib import Path

import lying_gate
import lying_run
import lying_site
import lying_values

RUN, OTHER = lying_site.RUN, lying_site.OTHER
EXTRA_SECONDS, EXTRA_BYTES = 45, 900 << 20
HONEST_SECONDS = 300


@dataclasses.dataclass
class Scene:
    """One command and what is to be true after it."""

    name: str
    verb: str
    words: tuple = ()
    ready: bool = False  # the nodes have the mesh and the code of the job already
    trains: bool = False  # a run is made
    home: bool = False  # the controller fetches the honest node's log and end
    ends: str = ""  # what the honest command ends with
    shown: str = ""  # what the honest node is shown with
    files: bool = False  # it reads what the attempt has left on a node
    fatal: bool = False  # one node that fails ends it for all
    # modules of which another verb's command tells the lies, since a lie ends this one before the
    # others are heard
    spared: tuple = ()


RUNS = ("-e", "run=" + RUN)
JOB = ("-e", "config=%s" % (lying_site.HERE / "code" / "job.yml"))
QUICK = ("-e", "rehearse=false")
SCENES = {
    scene.name: scene
    for scene in (
        Scene(
            "status",
            "status",
            RUNS,
            shown="{node:<10} failed    rank {rank} failed (exit code 1)",
            files=True,
        ),
        Scene(
            "newest",
            "status",
            (),
            shown="{node:<10} failed    rank {rank} failed (exit code 1)",
            files=True,
        ),
        Scene(
            "follow", "follow", RUNS, home=True, ends="FAILED: rank {rank} on {node}", files=True
        ),
        Scene("logs", "logs", RUNS, home=True, files=True),
        Scene("stop", "stop", RUNS, shown="{node:<11} nothing ran", files=True),
        Scene(
            "prune", "prune", ("-e", "keep=0", "-e", "confirm=true"), shown="REMOVED", files=True
        ),
        Scene(
            "check",
            "check",
            (*JOB, *QUICK),
            ready=True,
            ends="READY",
            shown="{node}",
            spared=("node_info",),
        ),
        Scene(
            "rehearse",
            "check",
            JOB,
            ready=True,
            ends="READY",
            shown="{node}",
            spared=("node_info", "network_check"),
        ),
        Scene("sync", "sync", JOB, fatal=True, spared=("node_info", "ssh_mesh_node")),
        Scene("trust", "trust", ("-e", "trust_accept=true"), ready=True, fatal=True),
        Scene(
            "provision",
            "provision",
            ready=True,
            fatal=True,
            spared=("product_directory_info", "ssh_mesh_node"),
        ),
        Scene("plan", "train", (*JOB, *QUICK, "--check"), ready=True, fatal=True),
        Scene("train", "train", (*JOB, *QUICK), ready=True, trains=True, fatal=True),
        Scene(
            "resume",
            "resume",
            (*RUNS, *QUICK, "--check"),
            ready=True,
            files=True,
            spared=("attempt_monitor", "slurp"),
        ),
    )
}


class Stage:
    """A site in a directory, put back before every command."""

    def __init__(self, top, count):
        self.top = Path(top)
        for kind in ("", ".fresh", ".ready"):
            shutil.rmtree(str(top) + kind, ignore_errors=True)
        self.nodes = lying_site.build(self.top, count)
        shutil.copytree(self.top, str(self.top) + ".fresh", symlinks=True)
        self.honest = lying_site.honest(self.nodes)
        self.liars = [name for name in self.nodes if name != self.honest]
        self.base, self.spoken = {}, {}

    def reset(self, wants_ready=False):
        """Put the site back: as it was made, or with the mesh and the code of the job on its nodes,
        as an honest sync has left them.
        """
        ready = Path(str(self.top) + ".ready")
        if wants_ready and not ready.exists():
            self.honestly(SCENES["sync"])
        shutil.rmtree(self.top, ignore_errors=True)
        shutil.copytree(ready if wants_ready else str(self.top) + ".fresh", self.top, symlinks=True)

    def play(self, scene, lies=None, answers=False, changes=(), seconds=None, **environment):
        """Run the scene's command with {node: [lie]} and [(node, change of its files)]; return how
        it ended.
        """
        self.reset(scene.ready)
        for node, told in (lies or {}).items():
            lying_site.write(self.top / "lies" / (node + ".json"), told)
        for node, change in changes:
            change(self.top / "nodes" / node / ".trainyard" / "runs" / RUN / "attempt-1")
        usual = (
            max(lying_run.SECONDS, 2 * self.base[scene.name][0].seconds)
            if scene.name in self.base
            else HONEST_SECONDS
        )
        return lying_run.verb(
            self.top,
            scene.verb,
            *scene.words,
            answers=answers,
            seconds=seconds or usual,
            **environment,
        )

    def honestly(self, scene):
        """Return how the scene ends without a lie, and the answers {module: [answer]} that its
        nodes gave.
        """
        if scene.name not in self.base:
            done = self.play(scene, answers=True)
            found, spoken = {}, []
            for path in sorted((self.top / "answers").iterdir()):
                _number, node, module = path.name.split(".")[:3]
                try:
                    spoken.append((node, module, json.loads(path.read_bytes())))
                except ValueError:
                    continue
                found.setdefault(module, []).append(spoken[-1][2])
            if scene.name == "sync":
                shutil.rmtree(self.top / "answers")
                shutil.copytree(self.top, str(self.top) + ".ready", symlinks=True)
            broken = self.broken(scene, done, done)
            assert not broken, (scene.name, broken, done.text[-3000:])
            # an honest command that breaks off would prove nothing about the lies
            assert (
                not scene.ends
                or scene.ends.format(rank=self.nodes.index(self.honest), node=self.honest)
                in done.text
            ), done.text[-3000:]
            self.base[scene.name], self.spoken[scene.name] = (done, found), spoken
        return self.base[scene.name]

    def broken(self, scene, done, base):
        """Return what does not hold after a command, [] where all does."""
        found = []
        if done.code == "late" or done.seconds > base.seconds + EXTRA_SECONDS:
            found.append("took %d s (%s)" % (done.seconds, done.code))
        if done.peak > base.peak + EXTRA_BYTES:
            found.append("took %d MiB" % (done.peak >> 20))
        made = {path.split("/")[1] for path in done.changed() if path.startswith("runs/")} - {OTHER}
        own = made if scene.trains and len(made) == 1 else {RUN}
        changed = {
            path
            for path in done.changed() - base.changed()
            if path.split("/")[:1] != ["runs"] or path.split("/")[1] not in own
        }
        # A node whose answer was refused failed: the verdict says so, and its name is kept for a
        # while. An honest one must not be there.
        noted = {"home/state/failed-nodes.json", "home/state/failed-nodes.json.lock"}
        if (
            changed & noted
            and self.honest not in (self.top / "home" / "state" / "failed-nodes.json").read_text()
        ):
            changed -= noted
        if changed:
            found.append("changed {}".format(", ".join(sorted(changed)[:4])))
        control = lying_run.CONTROL.search(done.text)
        if control:
            at = control.start()
            found.append(
                f"control character on the terminal: {done.text[max(0, at - 60) : at + 20]!r}"
            )
        unknown = [line for line in done.contacted if line.startswith("UNKNOWN")]
        if unknown:
            found.append(f"contacted {unknown[0]}")
        hosts = {(play, host) for play, host, _action, _to in base.plays}
        foreign = {
            (play, host)
            for play, host, _action, _to in done.plays
            if (play, host) not in hosts and host not in self.nodes
        }
        local = {
            (play, action) for play, host, action, to in done.plays if "localhost" in (host, to)
        }
        strange = {
            pair
            for pair in local
            if pair not in {(p, a) for p, host, a, to in base.plays if "localhost" in (host, to)}
        }
        if foreign:
            found.append(f"ran on {sorted(foreign)[:3]}")
        if {
            pair
            for pair in strange
            if pair[1] not in ("ansible.builtin.fail", "fail", "ansible.builtin.debug", "debug")
        }:
            found.append(f"ran here: {sorted(strange)[:3]}")
        found += self._honest(scene, done)
        return found

    def _honest(self, scene, done):
        rank, found = self.nodes.index(self.honest), []
        if scene.shown and scene.shown.format(rank=rank, node=self.honest) not in done.text:
            found.append(f"{self.honest} is not shown as it is")
        if scene.home:
            there = self.top / "nodes" / self.honest / ".trainyard" / "runs" / RUN / "attempt-1"
            here = self.top / "runs" / RUN / "attempt-1"
            for file, home in (
                ("log/workerlog.0", "rank-%03d.%s.log" % (rank, self.honest)),
                ("logs.txt", f"launcher.{self.honest}.log"),
            ):
                if not (here / home).is_file() or digest(here / home) != digest(there / file):
                    found.append(f"{file} of {self.honest} is not on the controller")
            try:
                index = json.loads((here / "ranks.json").read_text())
                said = [
                    item
                    for item in index["ranks"]
                    if item["node"] == self.honest and item["rank"] == rank
                ]
            except (OSError, ValueError, LookupError, TypeError):
                said = []
            if (
                not said
                or said[0].get("state") != "failed"
                or "truncated" not in json.dumps(said[0])
            ):
                found.append(f"the finding of {self.honest} is not in ranks.json")
        return found

    def copy_of(self, done):
        """Return a copy whose parts can be changed."""
        return dataclasses.replace(
            done,
            before=dict(done.before),
            after=dict(done.after),
            plays=set(done.plays),
            contacted=list(done.contacted),
        )

    def tell(self, scene, items):
        """Tell lies and rewrite files, on several nodes at once; return ({label: what did not
        hold}, items that were told).

        items: [(node, lie or (label, change of the attempt's files))]. Of several that break
        something it is looked for which one does.
        """
        base, _answers = self.honestly(scene)
        lies, changes = {}, [(node, item[1]) for node, item in items if isinstance(item, tuple)]
        for node, item in items:
            lies.setdefault(node, []).extend([] if isinstance(item, tuple) else [item])
        done = self.play(scene, lies, changes=changes)
        told = [lies[node][int(number)] for node, number in (line.split() for line in done.told)]
        told += [item for _node, item in items if isinstance(item, tuple)]
        broken = self.broken(scene, done, base)
        if not broken:
            return {}, told
        if len(items) == 1:
            return {f"{items[0][0]}: {label_of(items[0][1])}": "; ".join(broken)}, told
        found = {}
        for part in (items[: len(items) // 2], items[len(items) // 2 :]):
            found.update(self.tell(scene, part)[0])
        if not found:
            found[
                "together: "
                + " | ".join(f"{node}: {label_of(item)}" for node, item in items)[:4000]
            ] = "; ".join(broken)
        return found, told

    def one_each(self, lies):
        """Return items of one lie a node; the first and the last one lie first, since what one node
        says for all is asked of these.
        """
        return list(zip(self.liars[:1] + self.liars[:0:-1], lies))


def label_of(item):
    """Return what names a lie or a change of files."""
    return item[0] if isinstance(item, tuple) else item["label"]


def believed(stage, scene, chance):
    """Return ([(node, lie)], number of fields): for every module that a scene's liars execute, lies
    about its fields that the gate lets through.
    """
    changes = lying_values.values(stage.top, RUN, OTHER, stage.honest, stage.liars[0])
    changes = {
        label: change
        for label, change in changes.items()
        if label not in ("huge text", "long list", "deep")
    }
    items, fields = [], set()
    for node in stage.liars:
        given = {}
        for said, module, answer in stage.spoken[scene.name]:
            given.setdefault(module, []).extend([answer] if said == node else [])
        for module, answers in given.items():
            if (
                answers
                and module not in scene.spared
                and not (scene.files and node == stage.liars[-1])
            ):
                items += [
                    (node, lie) for lie in lying_gate.believed(module, answers, changes, chance)
                ]
            fields |= {(module, path) for answer in answers for path in lying_values.leaves(answer)}
    return items, fields


def refused(stage, scene, chance):
    """Return one lie for the second liar, in the module that it executes last, that the gate does
    not let through.
    """
    node = stage.liars[1 % len(stage.liars)]
    module, answer = [
        (module, answer) for said, module, answer in stage.spoken[scene.name] if said == node
    ][-1]
    lies = lies_about(stage, module, answer)
    chance.shuffle(lies)
    for lie in lies:
        made = (
            lying_gate.changed(answer, dict(lie, there=True))
            if lie["label"].split(": ")[-1] not in ("huge text", "long list", "deep")
            else None
        )
        if made is not None and not lying_gate.passes(module, made):
            return [(node, lie)]
    return []


def digest(path):
    """Return a file's sha256."""
    return hashlib.sha256(path.read_bytes()).hexdigest()


def lies_about(stage, module, answer):
    """Return every lie about one module's answer: each field, each value, keys that do not
    belong.
    """
    changes = lying_values.values(stage.top, RUN, OTHER, stage.honest, stage.liars[0])
    return lying_values.matrix(
        module, answer, changes, lying_values.extra(stage.top, RUN, OTHER, stage.honest)
    )


def lies_of(stage, scene):
    """Return every lie of a scene, about each module that its nodes executed."""
    stage.honestly(scene)
    given, lies = {}, []
    for node, module, answer in stage.spoken[scene.name]:
        if node in stage.liars:  # not every node is asked every field
            given.setdefault(module, []).append(answer)
    for module, answers in sorted(given.items()):
        lies += lies_about(
            stage, module, max(answers, key=lambda one: len(json.dumps(one)))
        ) + lying_values.raw(module)
    return lies
