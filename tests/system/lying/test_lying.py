# SPDX-License-Identifier: Apache-2.0
"""No answer of a node is trusted. Real playbooks run on pretended nodes. Some of these lie about
fields of an answer, about a file, or about everything.

The tests run a sample that a seed selects. Every field of every module goes to the gate in this
process. Every verb is played once on several nodes with all lies that the gate lets through, with
an answer that it refuses, and with files that a training has rewritten.

    TRAINYARD_LIES=600   also play this number of lies per verb through the playbooks, one per node
                         and command (`make lies`)
    TRAINYARD_SEED=text  another sample
"""

from __future__ import annotations

import os
import random
import shutil
import sys
import tempfile
import time
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).resolve().parent))
import lying_files
import lying_gate
import lying_run
import lying_scenes
import lying_schema
import lying_values
from ansible_collections.trainyard.cluster.plugins.plugin_utils.gate import answer_gate

COUNT = int(os.environ.get("TRAINYARD_LIES", "0"))
SEED = os.environ.get("TRAINYARD_SEED", "lies")
LIARS = 6 if COUNT else 2
FILES = 3
# Ansible's SSH connection copies all it has read with every piece that comes, so twice the bytes
# take four times as long. 200 MiB would measure this machine's memory: `make lies` sends them.
FLOOD_MIB = 200 if COUNT else 80
LEAST = 60
# What every definition of a schema is told: the ways out of a name, a path, a word and a line.
POINTED = (
    "parent",
    "absolute",
    "dot",
    "dots",
    "option",
    "shell",
    "ends in newline",
    "escapes",
    "missing",
)
USUAL = ("status", "follow", "stop", "prune")
ALL = tuple(lying_scenes.SCENES)
# What is told through playbooks in CI. Of the others, `newest` is as `status`, and `rehearse` and
# `train` take long.
TOLD = tuple(name for name in ALL if name not in ("newest", "rehearse", "train"))
FILED = tuple(name for name, scene in lying_scenes.SCENES.items() if scene.files)


@pytest.fixture(scope="module")
def stage():
    """A site of one honest node among liars; its path is short, since sockets lie below it."""
    top = tempfile.mkdtemp(prefix="lie", dir="/tmp")
    yield lying_scenes.Stage(Path(top) / "s", LIARS + 1)
    shutil.rmtree(top)


@pytest.fixture(scope="module")
def project():
    """What lies in the project before any lie."""
    return lying_run.project()


def report(told, broken, untold=()):
    """Say how many lies held, and fail with those that did not."""
    print("lies: %d of %d held" % (told - len(broken) - len(untold), told))
    assert not broken, "\n".join("{} -> {}".format(*pair) for pair in broken.items())
    assert not untold, "never told: {}".format(", ".join(untold))


@pytest.mark.timeout(7200)
@pytest.mark.parametrize("name", ALL if COUNT else TOLD)
def test_lies_that_the_gate_lets_through_harm_their_own_nodes_alone(stage, project, name):
    scene, chance = lying_scenes.SCENES[name], random.Random(SEED + name)
    done, _answers = stage.honestly(scene)
    items, fields = lying_scenes.believed(stage, scene, chance)
    items += lying_scenes.refused(stage, scene, chance)
    items += (
        [(stage.liars[-1], change) for change in lying_files.some(stage, chance, FILES)]
        if scene.files
        else []
    )
    broken, told = stage.tell(scene, items)
    lied = {(item["module"], tuple(item["path"])) for item in told if isinstance(item, dict)}
    words = (
        name,
        len(lied),
        len(fields),
        len({module for module, _path in lied}),
        len({module for module, _path in fields}),
        done.seconds,
    )
    print(
        "%s: %d of %d fields of %d of %d modules lied about in one command (honest: %.0f s)" % words
    )
    assert lied
    report(len(told), broken)
    assert lying_run.project() == project


@pytest.mark.timeout(7200)
@pytest.mark.skipif(not COUNT, reason="TRAINYARD_LIES says how many (make lies)")
@pytest.mark.parametrize("name", ALL)
def test_a_lie_harms_its_own_node_alone(stage, project, name):
    scene = lying_scenes.SCENES[name]
    lies = lying_values.sample(lying_scenes.lies_of(stage, scene), COUNT, SEED + name)[:COUNT]
    broken, heard = {}, set()

    def tell(items):
        said, told = stage.tell(scene, items)
        broken.update(said)
        heard.update(item["label"] for item in told)

    for first in range(0, len(lies), LIARS):
        tell(stage.one_each(lies[first : first + LIARS]))
    # A lie of one node can end the command before another comes to tell its own, and not every node
    # has every field: all liars tell that one.
    for lie in lies:
        if lie["label"] not in heard:
            tell([(node, lie) for node in stage.liars])
    assert {lie["label"] for lie in lies} == heard
    print("%s: %d of %d lies were told" % (name, len(heard), len(lies)))
    report(len(heard), broken)
    assert lying_run.project() == project


@pytest.mark.timeout(1200)
def test_the_gate_lets_nothing_through_that_ansible_obeys_or_a_terminal_executes(stage):
    broken, told, modules = {}, 0, set()
    for name in ALL if COUNT else TOLD:
        _done, answers = stage.honestly(lying_scenes.SCENES[name])
        for module, given in answers.items():
            answer = max(given, key=lambda one: len(str(one)))
            if module in modules:
                continue
            modules.add(module)
            lies = lying_scenes.lies_about(stage, module, answer)
            for lie in lies if COUNT else lying_values.sample(lies, LEAST, SEED + module)[:LEAST]:
                told += 1
                _through, why = lying_gate.said(module, answer, lie)
                broken.update({lie["label"]: why} if why else {})
    assert modules >= {
        "attempt_monitor",
        "rank_logs_info",
        "checkpoint_info",
        "attempt",
        "runs_info",
    }
    report(told, broken)


@pytest.mark.timeout(1200)
@pytest.mark.parametrize("module", answer_gate.modules())
def test_every_field_that_a_schema_has_takes_nothing_but_what_it_is(module):
    """Each field gets at least one lie in this process. Each path, name and digest gets more. An
    answer that passes is judged without the pattern of the schema.
    """
    where = Path("/tmp/lies/s")
    changes = lying_values.values(where, lying_scenes.RUN, lying_scenes.OTHER, "node3", "node1")
    large = ("huge text", "long list", "deep")
    chance = random.Random(SEED + module)

    kinds, told_of = lying_schema.definitions(module), {}

    def sampled(number, labels):
        if COUNT:
            return labels
        # every definition is told all that is pointed, spread over the fields that have it; each
        # field is told some of it and one more value
        seen = told_of.setdefault(kinds[number], [])
        pointed = POINTED if not seen else [POINTED[len(seen) % len(POINTED)]]
        seen.append(number)
        usual = chance.sample(
            [label for label in labels if label not in (*large, *POINTED)], 1
        ) + list(pointed)
        return usual + list(large) if number == 0 else usual

    found = lying_gate.about_schema(module, changes, sampled)
    more = lying_values.extra(where, lying_scenes.RUN, lying_scenes.OTHER, "node3")
    keys = (
        more
        if COUNT
        else dict(
            chance.sample(list(more.items()), 3),
            **{key: more[key] for key in answer_gate.OBEYED if key in more},
        )
    )
    told, wrong = lying_gate.keys_that_do_not_belong(module, keys)
    broken = dict(found["wrong"], **wrong)
    print("%s: %d of %d fields lied about" % (module, len(found["lied"]), found["fields"]))
    assert len(found["lied"]) == found["fields"]
    report(found["told"] + told, broken)


def test_an_honest_answer_passes_the_gate(stage):
    for name in ALL if COUNT else TOLD:
        _done, answers = stage.honestly(lying_scenes.SCENES[name])
        for module, given in answers.items():
            for answer in given:
                asked = (answer.get("invocation") or {}).get("module_args") or {}
                lying_gate.answer_gate.validate(module, answer, asked)


@pytest.mark.timeout(7200)
def test_what_is_no_answer_ends_that_node_alone(stage, project):
    scene = lying_scenes.SCENES["status"]
    lies = lying_values.raw("attempt_monitor")
    lies = [
        lying_values.flood("attempt_monitor", FLOOD_MIB),
        *(lies if COUNT else random.Random(SEED).sample(lies, LIARS - 1)),
    ]
    broken = {}
    for first in range(0, len(lies), LIARS):
        broken.update(stage.tell(scene, stage.one_each(lies[first : first + LIARS]))[0])
    report(len(lies), broken)
    assert lying_run.project() == project


@pytest.mark.timeout(1200)
@pytest.mark.skipif(not COUNT, reason="the gate waits 120 s for attempt_monitor (make lies)")
def test_a_node_that_never_answers_fails_alone_in_time(stage):
    scene = lying_scenes.SCENES["status"]
    base, _answers = stage.honestly(scene)
    lie = dict(do="raw", module="attempt_monitor", path=[], sleep=600, label="never answers")
    began = time.monotonic()
    done = stage.play(scene, {stage.liars[0]: [lie]}, seconds=300)
    took = time.monotonic() - began
    print(
        "never answers: %.0f s, %d MiB; honest: %.0f s, %d MiB"
        % (took, done.peak >> 20, base.seconds, base.peak >> 20)
    )
    assert (
        done.code not in ("late", 0)
        and took < answer_gate.definition("attempt_monitor")["seconds"] + base.seconds + 45
    )
    assert [text for text in stage.broken(scene, done, base) if not text.startswith("took ")] == []
    logins = [
        path
        for path in Path("/proc").glob("[0-9]*/cmdline")
        if os.fsencode(stage.top / "bin" / "ssh") in lying_run.content(path)
    ]
    assert not logins, "the login to it is still there"


@pytest.mark.timeout(7200)
@pytest.mark.skipif(
    not COUNT, reason="every verb is played with some rewritten files above; all of them: make lies"
)
@pytest.mark.parametrize("name", FILED)
def test_a_file_that_a_training_has_changed_harms_its_own_node_alone(stage, project, name):
    scene = lying_scenes.SCENES[name]
    changes = lying_files.changes(stage)
    changes = random.Random(SEED + name).sample(changes, min(COUNT, len(changes)))
    broken = {}
    for first in range(0, len(changes), LIARS):
        broken.update(stage.tell(scene, stage.one_each(changes[first : first + LIARS]))[0])
    print("%s: %d rewritten files" % (name, len(changes)))
    report(len(changes), broken)
    assert lying_run.project() == project


def test_the_proof_sees_what_it_is_to_see(stage):
    """Each kind of harm is done by hand after an honest command, and each is found. So a lie that
    does the same harm would be found.
    """
    scene = lying_scenes.SCENES["status"]
    base, _answers = stage.honestly(scene)
    for harm in (
        lambda done: done.after.update({"outside/pwned": (0,)}),
        lambda done: done.after.pop("home/.bashrc"),
        lambda done: done.after.update({f"runs/{lying_scenes.OTHER}/run.json": (1,)}),
        lambda done: setattr(done, "text", done.text + "\x1b]52;c;eA==\x07"),
        lambda done: done.plays.add(("Look at the run", "localhost", "attempt_monitor", "None")),
        lambda done: done.contacted.append("UNKNOWN:localhost id"),
        lambda done: setattr(done, "code", "late"),
        lambda done: setattr(done, "peak", 8 << 30),
        lambda done: setattr(done, "text", done.text.replace(stage.honest, "another")),
    ):
        done = stage.copy_of(base)
        assert not stage.broken(scene, done, base)
        harm(done)
        assert stage.broken(scene, done, base), harm
