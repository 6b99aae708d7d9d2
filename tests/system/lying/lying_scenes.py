# SPDX-License-Identifier: Apache-2.0
"""Verbs on a site where nodes lie: the honest command first, then the same command with lies, and what the lies have done."""

from __future__ import annotations

import dataclasses
import hashlib
import json
import shutil
from pathlib import Path

import lying_run
import lying_site
import lying_values

RUN, OTHER = lying_site.RUN, lying_site.OTHER
EXTRA_SECONDS, EXTRA_BYTES = 45, 900 << 20


@dataclasses.dataclass
class Scene:
    """One command and what is to be true after it."""

    name: str
    verb: str
    words: tuple = ()
    ready: bool = False  # the nodes have the mesh and the code of the job already
    trains: bool = False  # a run is made
    home: bool = False  # the honest node's log and its end come home
    ends: str = ""  # what the honest command ends with
    shown: str = ""  # what the honest node is shown with


RUNS = ("-e", "run=" + RUN)
JOB = ("-e", "config=%s" % (lying_site.HERE / "code" / "job.yml"))
QUICK = ("-e", "rehearse=false")
SCENES = {
    scene.name: scene
    for scene in (
        Scene("status", "status", RUNS, shown="{node:<10} failed    rank {rank} failed (exit code 1)"),
        Scene("newest", "status", (), shown="{node:<10} failed    rank {rank} failed (exit code 1)"),
        Scene("follow", "follow", RUNS, home=True, ends="FAILED: rank {rank} on {node}"),
        Scene("logs", "logs", RUNS, home=True),
        Scene("stop", "stop", RUNS, shown="{node:<11} nothing ran"),
        Scene("prune", "prune", ("-e", "keep=0", "-e", "confirm=true"), shown="REMOVED"),
        Scene("check", "check", (*JOB, *QUICK), ready=True, ends="READY", shown="{node}"),
        Scene("rehearse", "check", JOB, ready=True, ends="READY", shown="{node}"),
        Scene("sync", "sync", JOB),
        Scene("trust", "trust", ("-e", "trust_accept=true")),
        Scene("provision", "provision"),
        Scene("plan", "train", (*JOB, *QUICK, "--check"), ready=True),
        Scene("train", "train", (*JOB, *QUICK), ready=True, trains=True),
        Scene("resume", "resume", (*RUNS, *QUICK, "--check"), ready=True),
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
        self.base = {}

    def reset(self, wants_ready=False):
        """Put the site back: as it was made, or with the mesh and the code of the job on its nodes."""
        ready = Path(str(self.top) + ".ready")
        if wants_ready and not ready.exists():
            self.reset()
            for verb, *words in (("sync", *JOB),):
                done = lying_run.verb(self.top, verb, *words, seconds=300)
                assert done.code == 0, done.text[-3000:]
            shutil.copytree(self.top, ready, symlinks=True)
        shutil.rmtree(self.top, ignore_errors=True)
        shutil.copytree(ready if wants_ready else str(self.top) + ".fresh", self.top, symlinks=True)

    def play(self, scene, lies=None, answers=False, **environment):
        """Run the scene's command with {node: [lie]}; return how it ended."""
        self.reset(scene.ready)
        for node, told in (lies or {}).items():
            lying_site.write(self.top / "lies" / (node + ".json"), told)
        return lying_run.verb(self.top, scene.verb, *scene.words, answers=answers, **environment)

    def honestly(self, scene):
        """Return how the scene ends without a lie, and the answers {module: [answer]} that its nodes gave."""
        if scene.name not in self.base:
            done = self.play(scene, answers=True)
            found = {}
            for path in sorted((self.top / "answers").iterdir()):
                try:
                    found.setdefault(path.name.split(".")[2], []).append(json.loads(path.read_bytes()))
                except ValueError:
                    continue
            broken = self.broken(scene, done, done)
            assert not broken, (scene.name, broken, done.text[-3000:])
            # an honest command that breaks off would prove nothing about the lies
            assert not scene.ends or scene.ends.format(rank=self.nodes.index(self.honest), node=self.honest) in done.text, done.text[-3000:]
            self.base[scene.name] = (done, found)
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
        changed = {path for path in done.changed() - base.changed() if path.split("/")[:1] != ["runs"] or path.split("/")[1] not in own}
        # A node whose answer was refused failed: the verdict says so, and its name is kept for a while. An honest one must not be there.
        noted = {"home/state/failed-nodes.json", "home/state/failed-nodes.json.lock"}
        if changed & noted and self.honest not in (self.top / "home" / "state" / "failed-nodes.json").read_text():
            changed -= noted
        if changed:
            found.append("changed %s" % ", ".join(sorted(changed)[:4]))
        control = lying_run.CONTROL.search(done.text)
        if control:
            at = control.start()
            found.append("control character on the terminal: %r" % done.text[max(0, at - 60) : at + 20])
        unknown = [line for line in done.contacted if line.startswith("UNKNOWN")]
        if unknown:
            found.append("contacted %s" % unknown[0])
        hosts = {(play, host) for play, host, _action, _to in base.plays}
        foreign = {(play, host) for play, host, _action, _to in done.plays if (play, host) not in hosts and host not in self.nodes}
        local = {(play, action) for play, host, action, to in done.plays if "localhost" in (host, to)}
        strange = {pair for pair in local if pair not in {(p, a) for p, host, a, to in base.plays if "localhost" in (host, to)}}
        if foreign:
            found.append("ran on %s" % sorted(foreign)[:3])
        if {pair for pair in strange if pair[1] not in ("ansible.builtin.fail", "fail", "ansible.builtin.debug", "debug")}:
            found.append("ran here: %s" % sorted(strange)[:3])
        found += self._honest(scene, done)
        return found

    def _honest(self, scene, done):
        rank, found = self.nodes.index(self.honest), []
        if scene.shown and scene.shown.format(rank=rank, node=self.honest) not in done.text:
            found.append("%s is not shown as it is" % self.honest)
        if scene.home:
            there = self.top / "nodes" / self.honest / ".trainyard" / "runs" / RUN / "attempt-1"
            here = self.top / "runs" / RUN / "attempt-1"
            for file, home in (
                ("log/workerlog.0", "rank-%03d.%s.log" % (rank, self.honest)),
                ("logs.txt", "launcher.%s.log" % self.honest),
            ):
                if not (here / home).is_file() or digest(here / home) != digest(there / file):
                    found.append("%s of %s is not at home" % (file, self.honest))
            try:
                index = json.loads((here / "ranks.json").read_text())
                said = [item for item in index["ranks"] if item["node"] == self.honest and item["rank"] == rank]
            except (OSError, ValueError, LookupError, TypeError):
                said = []
            if not said or said[0].get("state") != "failed" or "truncated" not in json.dumps(said[0]):
                found.append("the finding of %s is not in ranks.json" % self.honest)
        return found

    def copy_of(self, done):
        """Return a copy whose parts can be changed."""
        return dataclasses.replace(
            done, before=dict(done.before), after=dict(done.after), plays=set(done.plays), contacted=list(done.contacted)
        )

    def rewrite(self, scene, changes):
        """Change the files of several nodes' attempts, one change a node; return {label: what did not hold}."""
        base, _answers = self.honestly(scene)
        self.reset(scene.ready)
        for node, (_label, change) in zip(self.liars, changes):
            change(self.top / "nodes" / node / ".trainyard" / "runs" / RUN / "attempt-1")
        done = lying_run.verb(self.top, scene.verb, *scene.words)
        broken = self.broken(scene, done, base)
        if not broken or len(changes) == 1:
            return {changes[0][0]: "; ".join(broken)} if broken else {}
        half = len(changes) // 2
        found = dict(self.rewrite(scene, changes[:half]), **self.rewrite(scene, changes[half:]))
        return found or {"together: " + " | ".join(label for label, _change in changes): "; ".join(broken)}

    def tell(self, scene, lies):
        """Tell several lies at once, one a node; return {label: what did not hold} and the labels that were never told."""
        base, _answers = self.honestly(scene)
        # the first and the last one lie first: what one node says for all is asked of these
        liars = (self.liars[:1] + self.liars[:0:-1])[: len(lies)]
        done = self.play(scene, {node: [lie] for node, lie in zip(liars, lies)})
        heard = {line.split()[0] for line in done.told}
        untold = [lie["label"] for node, lie in zip(liars, lies) if node not in heard]
        broken = self.broken(scene, done, base)
        if not broken and untold and len(lies) > 1:
            # another node's lie ended the command before these were asked for
            alone = [self.tell(scene, [lie]) for lie in lies if lie["label"] in untold]
            return {label: text for said, _untold in alone for label, text in said.items()}, [one for _said, rest in alone for one in rest]
        if not broken:
            return {}, untold
        if len(lies) == 1:
            return {lies[0]["label"]: "; ".join(broken)}, untold
        found = {}
        for part in (lies[: len(lies) // 2], lies[len(lies) // 2 :]):
            said, _untold = self.tell(scene, part)
            found.update(said)
        if not found:
            found["together: " + " | ".join(lie["label"] for lie in lies)] = "; ".join(broken)
        return found, untold


def digest(path):
    """Return a file's sha256."""
    return hashlib.sha256(path.read_bytes()).hexdigest()


def lies_about(stage, module, answer):
    """Return every lie about one module's answer: each field, each value, keys that do not belong."""
    changes = lying_values.values(stage.top, RUN, OTHER, stage.honest, stage.liars[0])
    return lying_values.matrix(module, answer, changes, lying_values.extra(stage.top, RUN, OTHER, stage.honest))


def lies_of(stage, scene):
    """Return every lie of a scene, about each module that its nodes executed."""
    _done, answers = stage.honestly(scene)
    lies = []
    for module, given in sorted(answers.items()):
        lies += lies_about(stage, module, max(given, key=lambda one: len(json.dumps(one)))) + lying_values.raw(module)
    return lies
