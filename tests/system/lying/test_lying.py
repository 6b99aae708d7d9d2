# SPDX-License-Identifier: Apache-2.0
"""Nothing that a node says is trusted: real playbooks on pretended nodes, some of which lie about a field of an answer, a file, or all of it.

What runs here is a sample by a seed: every field of every module goes to the gate, one handful a verb goes through the playbooks.
    TRAINYARD_LIES=600   so many lies a verb through the playbooks, over all verbs (`make lies`)
    TRAINYARD_SEED=text  another sample
"""

from __future__ import annotations

import os
import random
import shutil
import sys
import tempfile
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).resolve().parent))
import lying_files  # noqa: E402
import lying_gate  # noqa: E402
import lying_run  # noqa: E402
import lying_scenes  # noqa: E402
import lying_values  # noqa: E402
from ansible.module_utils.trainyard import answer_gate  # noqa: E402

COUNT = int(os.environ.get("TRAINYARD_LIES", "0"))
SEED = os.environ.get("TRAINYARD_SEED", "lies")
LIARS = 6
# What every field of every schema is told: the ways out of a name, a path, a word and a line.
POINTED = ("parent", "absolute", "dot", "dots", "option", "shell", "ends in newline", "escapes", "missing")
USUAL = ("status", "follow", "stop", "prune")
# What is told through playbooks in CI; the nodes of `check` get the mesh and the code first, by an honest sync.
TOLD = (*USUAL, "logs", "check")
ALL = tuple(lying_scenes.SCENES)


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


def report(told, broken, untold):
    """Say how many lies held, and fail with those that did not."""
    print("lies: %d of %d held" % (told - len(broken) - len(untold), told))
    assert not broken, "\n".join("%s -> %s" % pair for pair in broken.items())
    assert not untold, "never told: %s" % ", ".join(untold)


@pytest.mark.timeout(7200)
@pytest.mark.parametrize("name", ALL if COUNT else TOLD)
def test_a_lie_harms_its_own_node_alone(stage, project, name):
    scene = lying_scenes.SCENES[name]
    lies = lying_values.sample(lying_scenes.lies_of(stage, scene), COUNT or LIARS, SEED + name)[: COUNT or LIARS]
    broken, untold = {}, []
    for first in range(0, len(lies), LIARS):
        said, silent = stage.tell(scene, lies[first : first + LIARS])
        broken.update(said)
        untold += silent
    report(len(lies), broken, untold)
    assert lying_run.project() == project


@pytest.mark.timeout(1200)
def test_the_gate_lets_nothing_through_that_ansible_obeys_or_a_terminal_executes(stage):
    broken, told, modules = {}, 0, set()
    for name in ALL if COUNT else USUAL:
        _done, answers = stage.honestly(lying_scenes.SCENES[name])
        for module, given in answers.items():
            answer = max(given, key=lambda one: len(str(one)))
            if module in modules:
                continue
            modules.add(module)
            lies = lying_scenes.lies_about(stage, module, answer)
            for lie in lies if COUNT else lying_values.sample(lies, 300, SEED + module):
                told += 1
                _through, why = lying_gate.said(module, answer, lie)
                broken.update({lie["label"]: why} if why else {})
    assert modules >= {"attempt_status", "rank_logs", "checkpoint", "attempt", "prune"}
    report(told, broken, [])


@pytest.mark.timeout(1200)
@pytest.mark.parametrize("module", answer_gate.modules())
def test_every_field_that_a_schema_has_takes_nothing_but_what_it_is(module):
    """In-process: each field is told at least once, and each path, name and digest more; what passes is judged without the schema's pattern."""
    where = Path("/tmp/lies/s")
    changes = lying_values.values(where, lying_scenes.RUN, lying_scenes.OTHER, "node3", "node1")
    large = ("huge text", "long list", "deep")
    chance = random.Random(SEED + module)

    def sampled(number, labels):
        if COUNT:
            return labels
        # the few that are long once a module; of the rest some for a plain field, more is `make lies`
        usual = chance.sample([label for label in labels if label not in (*large, *POINTED)], 3) + list(POINTED)
        return usual + list(large) if number == 0 else usual

    found = lying_gate.about_schema(module, changes, sampled)
    more = lying_values.extra(where, lying_scenes.RUN, lying_scenes.OTHER, "node3")
    keys = more if COUNT else dict(chance.sample(list(more.items()), 12), **{key: more[key] for key in answer_gate.OBEYED if key in more})
    told, wrong = lying_gate.keys_that_do_not_belong(module, keys)
    broken = dict(found["wrong"], **wrong)
    print("%s: %d of %d fields lied about" % (module, len(found["lied"]), found["fields"]))
    assert len(found["lied"]) == found["fields"]
    report(found["told"] + told, broken, [])


def test_an_honest_answer_passes_the_gate(stage):
    for name in USUAL:
        _done, answers = stage.honestly(lying_scenes.SCENES[name])
        for module, given in answers.items():
            for answer in given:
                asked = (answer.get("invocation") or {}).get("module_args") or {}
                lying_gate.answer_gate.validate(module, answer, asked)


@pytest.mark.timeout(7200)
def test_what_is_no_answer_ends_that_node_alone(stage, project):
    scene = lying_scenes.SCENES["status"]
    lies = lying_values.raw("attempt_status")
    lies = lies if COUNT else random.Random(SEED).sample(lies, LIARS)
    broken = {}
    for first in range(0, len(lies), LIARS):
        said, _silent = stage.tell(scene, lies[first : first + LIARS])
        broken.update(said)
    report(len(lies), broken, [])
    assert lying_run.project() == project


@pytest.mark.timeout(7200)
def test_a_file_that_a_training_has_changed_harms_its_own_node_alone(stage, project):
    scene = lying_scenes.SCENES["follow"]
    changes = lying_files.changes(stage)
    changes = changes if COUNT else random.Random(SEED).sample(changes, LIARS)
    broken = {}
    for first in range(0, len(changes), LIARS):
        broken.update(stage.rewrite(scene, changes[first : first + LIARS]))
    report(len(changes), broken, [])
    assert lying_run.project() == project


def test_the_proof_sees_what_it_is_to_see(stage):
    """Each kind of harm, done by hand after an honest command, is found; so a lie that does it would be."""
    scene = lying_scenes.SCENES["status"]
    base, _answers = stage.honestly(scene)
    for harm in (
        lambda done: done.after.update({"outside/pwned": (0,)}),
        lambda done: done.after.pop("home/.bashrc"),
        lambda done: done.after.update({"runs/%s/run.json" % lying_scenes.OTHER: (1,)}),
        lambda done: setattr(done, "text", done.text + "\x1b]52;c;eA==\x07"),
        lambda done: done.plays.add(("Look at the run", "localhost", "attempt_status", "None")),
        lambda done: done.contacted.append("UNKNOWN:localhost id"),
        lambda done: setattr(done, "code", "late"),
        lambda done: setattr(done, "peak", 8 << 30),
        lambda done: setattr(done, "text", done.text.replace(stage.honest, "another")),
    ):
        done = stage.copy_of(base)
        assert not stage.broken(scene, done, base)
        harm(done)
        assert stage.broken(scene, done, base), harm
