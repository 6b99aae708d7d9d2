# SPDX-License-Identifier: Apache-2.0
"""Tell every lie to the gate itself, without a playbook: it refuses, or what it lets through is
harmless in form.
"""

from __future__ import annotations

import copy
import json

import lying_run
import lying_schema
import lying_values
from ansible_collections.trainyard.cluster.plugins.plugin_utils.gate import answer_gate

# So many values are tried for a field that the gate may take.
TRIES = 12


def changed(answer, lie):
    """Return an answer with the lie in it, as the stand-in for ssh makes it, or None where its
    field is not in this answer.
    """
    made = place = copy.deepcopy(answer)
    path = lie["path"]
    for word in path[:-1]:
        try:
            place = place[word]
        except (KeyError, IndexError, TypeError):
            return None
    if not isinstance(place, (dict, list)) or (isinstance(place, list) and path[-1] >= len(place)):
        return None
    if lie.get("there") and isinstance(place, dict) and path[-1] not in place:
        return None
    if lie["do"] == "drop":
        if isinstance(place, dict) and path[-1] not in place:
            return None
        del place[path[-1]]
        return made
    value = lie["value"]
    for times in lie.get("times", []):
        value = value * times
    for _ in range(lie.get("deep", 0)):
        value = [value]
    place[path[-1]] = value
    return made


def said(module, answer, lie):
    """Return (whether the gate lets an answer with this lie through, what is wrong with what it
    lets through or '').
    """
    made = changed(answer, lie)
    if made is None:
        return False, ""
    # what the controller asked is in the honest answer, as the module has it
    asked = (answer.get("invocation") or {}).get("module_args") or {}
    try:
        clean = answer_gate.validate(module, made, asked)
    except answer_gate.InvalidAnswer as error:
        text = str(error)
        return False, (
            f"its refusal: {text[:80]!r}"
            if lying_run.CONTROL.search(text) or len(text) > 4000
            else ""
        )
    obeyed = [
        key
        for key in clean
        if key in answer_gate.OBEYED and key != "ansible_facts" or key.startswith("_ansible_")
    ]
    facts = set(clean.get("ansible_facts") or ()) - {"discovered_interpreter_python"}
    if obeyed or facts:
        return True, "lets {} through".format(", ".join(obeyed or facts))
    raw = answer_gate.definition(module)["raw"]
    text = json.dumps(
        {key: value for key, value in clean.items() if key not in raw}, ensure_ascii=False
    )
    found = lying_run.CONTROL.search(text)
    return True, (
        "lets a control character through:"
        f" {text[max(0, found.start() - 40) : found.start() + 10]!r}"
        if found
        else ""
    )


def passes(module, answer):
    """Return whether the gate lets an answer through as it is."""
    try:
        answer_gate.validate(
            module, answer, (answer.get("invocation") or {}).get("module_args") or {}
        )
    except answer_gate.InvalidAnswer:
        return False
    return True


def believed(module, answers, changes, chance, most=60):
    """Return lies about one node's answers of a module that the gate lets through all at once: one
    lie a field.
    """
    leaves = sorted({path for answer in answers for path in lying_values.leaves(answer)}, key=str)
    chance.shuffle(leaves)
    lies = []
    for path in leaves[:most]:
        for label in chance.sample(list(changes), TRIES):
            lie = dict(lying_values.told(module, path, label, changes[label]), there=True)
            lied = [changed(answer, lie) or answer for answer in answers]
            if lied != answers and all(passes(module, answer) for answer in lied):
                lies.append(lie)
                answers = lied
                break
    return lies


def about_schema(module, changes, sampled):
    """Tell every field that a module's schema has the lies of `changes`; return {fields, told,
    through, wrong: {lie: why}}.

    changes: {label: how a field is changed}. sampled: the labels that one field is told, given its
    number and all labels.
    """
    honest, places = lying_schema.answer(module)
    answer_gate.validate(module, honest, {})
    result = {"fields": len(places), "lied": set(), "told": 0, "through": 0, "wrong": {}}
    raw = answer_gate.definition(module)["raw"]
    for number, (path, (part, name)) in enumerate(places.items()):
        for label in sampled(number, list(changes)):
            lie = dict(changes[label], path=list(path))
            made = changed(honest, lie)
            if made is None:
                continue
            result["told"] += 1
            result["lied"].add(path)
            shown = "{} {}: {}".format(module, ".".join(map(str, path)), label)
            passed, why = said(module, honest, lie)
            result["through"] += passed
            if passed and not why and lie["do"] == "set" and path[0] not in raw:
                why = lying_schema.wrong(
                    _at(answer_gate.validate(module, made, {}), path), part, name
                )
            if why:
                result["wrong"][shown] = why
    return result


def keys_that_do_not_belong(module, more):
    """Tell each mapping of a module's answer keys of its own; return (told, {lie: why})."""
    honest, places = lying_schema.answer(module)
    raw = answer_gate.definition(module)["raw"]
    told, wrong = 0, {}
    folders = [()] + [path for path in places if isinstance(_at(honest, path), dict)]
    for folder in folders:
        for key, value in more.items():
            told += 1
            _passed, why = said(
                module, honest, {"do": "set", "path": [*folder, key], "value": value}
            )
            if why and not set(folder[:1]) & set(raw):
                wrong["{} {}: extra key".format(module, ".".join(map(str, folder + (key,))))] = why
    return told, wrong


def _at(value, path):
    for word in path:
        try:
            value = value[word]
        except (KeyError, IndexError, TypeError):
            return None
    return value
