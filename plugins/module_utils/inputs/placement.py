# SPDX-License-Identifier: Apache-2.0
"""Inputs that lie on the nodes already (docs/design.md, 8).

An input that is `present` or `shared` there must be equal everywhere, and no two nodes may write to
one path. A place is {key, path, placement, exclude, needs, verify}:

key       `code`, `data/NAME` or `weights/FILE`
exclude   directories below it that the training never sees
needs     paths in it that the config reads
verify    `content` (small: every byte counts, with a cache) or `listing` (names and sizes; blocks
          and bytes on request)

Nothing is ever written at a place. Caches about it lie below the product's directory.
"""

from __future__ import annotations

import contextlib
import os

from ..base import manifest
from ..base.files import read_mapping, write_json
from ..base.findings import finding, named, unequal
from ..base.units import format_bytes
from . import paths as places
from .paths import identity

# Nodes that are asked for files by name where trees differ, beside the reference.
QUERIED_NODES = 3
# Names, nodes or differences that a finding lists.
SHOWN = 8
REMEDY_HOME = (
    'give each node its own below it, in group_vars of the trainers: trainyard_home: ".trainyard/{{'
    ' inventory_hostname }}", or name a local disk'
)


def exchange_nonces(base, node, names):
    """Return {own, seen} of the nonces in <base>/nodes.

    own: this node's, written anew by every look. seen: those of the other nodes that lie here, too.
    A node that reads what another one has written in this very look shares its directory, on
    whatever file system: each writes before it reads, so the later of two sees the earlier's. A
    copied home or disk holds an older one.
    """
    folder = os.path.join(base, "nodes")
    if not os.path.isdir(base):
        return {"own": "", "seen": {}}
    value = os.urandom(16).hex()
    write_json(os.path.join(folder, node + ".json"), {"nonce": value})
    others = {}
    for name in names:
        if name != node:
            record = read_mapping(os.path.join(folder, name + ".json"))
            if record.get("nonce"):
                others[name] = record["nonce"]
    return {"own": value, "seen": others}


def look(run, base, questions):
    """Return {base, nonce, places: {key: description}, summary} of this node.

    questions: {node, nodes (all names), places, verify}. A description is that of
    paths.describe_path.
    """
    names, node = questions.get("nodes") or [], questions.get("node", "")
    verify = questions.get("verify") or "cached"
    if verify == "full":
        # Every byte is read by a task of its own, which says first how long it takes.
        verify = "estimate"
    described = {}
    for place in questions.get("places") or []:
        top_only = place["placement"] == "shared" and names and node != names[0]
        described[place["key"]] = places.describe_path(base, place, verify, top_only=top_only)
    return dict(describe_base(base, node, names), places=described, summary=summary(described))


def summary(descriptions):
    """Return one digest of all places that every node has read whole.

    Where it differs between nodes, files can be asked for by name.
    descriptions: {key: description}.
    """
    buckets = {
        key: [item["buckets"]]
        for key, item in descriptions.items()
        if item["buckets"] and item["placement"] != "shared"
    }
    if not buckets:
        return ""
    return manifest.digest(buckets)


def describe_base(base, node, names):
    """Return {base, nonce} of the product's directory, see `identity` and `exchange_nonces`."""
    nonces = {"own": "", "seen": {}}
    if node:
        # A base of another owner and a full or read-only disk are reported by the subjects that
        # look at those.
        with contextlib.suppress(OSError):
            nonces = exchange_nonces(base, node, names)
    return {"base": identity(base), "nonce": nonces}


def find_shared(identities, node_nonces=None):
    """Return {node: first node that has the very same directory}.

    identities: {node: [ids]}. node_nonces: {node: {own, seen}} of nonces.
    """
    nonces = {name: {"own": "", "seen": {}} for name in identities}
    nonces.update((name, value) for name, value in (node_nonces or {}).items() if value)
    owner = {}
    for name, ids in identities.items():
        for other in owner:
            is_same = _has_read(nonces, name, other) or _has_read(nonces, other, name)
            if is_same or set(ids) & set(identities[other]):
                owner[name] = owner[other]
                break
        owner.setdefault(name, name)
    return owner


def _has_read(nonces, reader, writer):
    """Return whether one node has read the nonce that another one wrote in this look."""
    value = nonces[writer].get("own", "")
    return value != "" and nonces[reader]["seen"].get(writer) == value


def judge(nodes, facts, allowed):
    """Return the findings about places and product directories.

    allowed: {named: {node: {key: `places` of tree_files_info}}} where files were asked for by
    name.
    """
    answers = {}
    for node in nodes:
        answer = facts[node["name"]].get("placement")
        if answer:
            answers[node["name"]] = answer
    result = judge_bases(answers)
    for key in dict.fromkeys(key for answer in answers.values() for key in answer["places"]):
        items = {
            name: answer["places"][key]
            for name, answer in answers.items()
            if key in answer["places"]
        }
        files = {
            name: (by_key or {}).get(key) for name, by_key in (allowed.get("named") or {}).items()
        }
        result += _path_findings(key, items, files)
    return result


def judge_bases(heard):
    """Return the findings that nodes have one product directory.

    heard: {node: {base, nonce}}.
    """
    owner = find_shared(
        {name: answer["base"] for name, answer in heard.items()},
        {name: answer["nonce"] for name, answer in heard.items()},
    )
    result = []
    for first in sorted(set(owner.values())):
        group = [name for name in owner if owner[name] == first]
        if len(group) > 1:
            text = (
                f"one product directory (trainyard_home) is seen by {named(group)}: they would"
                " write runs, environments and trees over each other"
            )
            result.append(finding("placement.shared_home", text, REMEDY_HOME, group))
    return result


def _path_findings(key, items, files):
    """Return the findings about one place. items: {node: description}."""
    result = []
    for name, item in items.items():
        result += _node_findings(key, name, item)
    usable = {name: item for name, item in items.items() if not item["problem"]}
    placement = next(iter(items.values()))["placement"]
    result += _sharing_findings(key, usable, placement)
    return result + _content_findings(key, usable, files)


def _node_findings(key, name, item):
    """Return the findings about a place on one node."""
    result = []
    if item["problem"]:
        remedy = (
            f"correct {key.replace('/', '.')} in the site, or mount it; placement: push sends the"
            " controller's copy"
        )
        result.append(finding("placement.unusable", f"{key}: {item['problem']}", remedy, name))
    for path in item["lacks"]:
        text = f"{key}: the config reads {path}, and it is not there"
        result.append(finding("placement.file_missing", text, "", name))
    if item["unreadable"]:
        paths = ", ".join(item["unreadable"][:SHOWN])
        text = f"{key}: cannot be read by the training user: {paths}"
        remedy = (
            "give the user leave to read where the training needs it, fix or remove links to"
            " nothing"
        )
        result.append(finding("placement.unreadable", text, remedy, name, "warn"))
    return result


def _sharing_findings(key, items, placement):
    """Return the finding that a place is shared against its placement, or is not."""
    if len(items) < 2:
        return []
    owner = find_shared({name: item["identity"] for name, item in items.items()})
    first, path = next(iter(owner.values())), next(iter(items.values()))["path"]
    is_one = len(set(owner.values())) == 1
    if placement == "shared" and not is_one:
        filesystems = [f"{items[name]['filesystem']} on {name}" for name in list(items)[:SHOWN]]
        text = f"{key}: {path} is not one directory on all nodes: {'; '.join(filesystems)}"
        remedy = "mount the same file system everywhere, or say placement: present"
        odd = [name for name in items if owner[name] != first]
        return [finding("placement.not_shared", text, remedy, odd)]
    if placement == "present" and is_one:
        text = (
            f"{key}: {path} is one directory on all nodes; with placement: shared one of them reads"
            " it for all"
        )
        return [finding("placement.is_shared", text, "", level="note")]
    return []


_REMEDY_UNEQUAL = (
    "make the copies equal (rsync from the node that is right); nothing is ever changed at a"
    " place that is not ours"
)


def _content_findings(key, items, files):
    """Return the findings about differences between the nodes.

    Files are named where they were asked for.
    """
    result = _unequal_names(key, items) or _unequal_content(key, items)
    if not result:
        return _unequal_samples(key, items)
    lines = name_differences(files)
    if lines:
        for item in result:
            item["text"] += ": " + "; ".join(lines)
    return result


def _unequal_names(key, items):
    """Return the finding that names or sizes differ, or []."""
    figures = {
        name: "{} files, {}, names and sizes {}".format(
            item["files"], format_bytes(item["bytes"]), item["listing"][:8]
        )
        for name, item in items.items()
        if item["listing"]
    }
    result = unequal("placement.names_differ", key, figures, _REMEDY_UNEQUAL)
    if result:
        return result
    tops = {name: item["top"][:8] for name, item in items.items() if item["top"]}
    label = f"{key}: the entries of the directory itself"
    return unequal("placement.names_differ", label, tops, _REMEDY_UNEQUAL)


def _unequal_content(key, items):
    """Return the finding that contents differ, or []."""
    digests = {
        name: item["content"][:8]
        for name, item in items.items()
        if item["listing"] and item.get("content")
    }
    label = f"{key}: content (equal names and sizes)"
    return unequal("placement.content_differs", label, digests, _REMEDY_UNEQUAL)


def _unequal_samples(key, items):
    """Return a finding for every file whose sampled block differs."""
    samples = {name: item["sample"] for name, item in items.items() if item.get("sample")}
    result = []
    for path in sorted({path for sample in samples.values() for path in sample}):
        blocks = {name: sample.get(path, "nothing")[:8] for name, sample in samples.items()}
        label = f"{key}: a sampled block of {path}"
        result += unequal("placement.content_differs", label, blocks, _REMEDY_UNEQUAL)
    return result


def name_differences(files):
    """Return lines that name the files in which nodes differ.

    files: {node: {entries, buckets} or None}, the reference node first.
    """
    answers = [(name, item) for name, item in files.items() if item]
    lines = []
    for name, item in answers[1:]:
        reference, expected = answers[0]
        # A bucket that only one of them could show whole would look like missing files.
        common = set(item["buckets"]) & set(expected["buckets"])
        differences = manifest.differences(
            _entries_in(expected, common), _entries_in(item, common), SHOWN
        )
        lines += [f"{name} against {reference}: {line}" for line in differences]
    return lines


def _entries_in(answer, buckets):
    """Return the entries of a node's answer that lie in these buckets."""
    return {
        name: entry for name, entry in answer["entries"].items() if places.bucket(name) in buckets
    }


def find_differing_nodes(facts):
    """Return {nodes, buckets}: the nodes that are to be asked for files by name.

    nodes: the reference first. buckets: {key: parts of the place to ask for}.
    """
    described = {
        name: fact["placement"]["places"]
        for name, fact in facts.items()
        if (fact.get("placement") or {}).get("places")
    }
    nodes, buckets = [], {}
    for key in dict.fromkeys(key for by_key in described.values() for key in by_key):
        items = {
            name: by_key[key]
            for name, by_key in described.items()
            if (by_key.get(key) or {}).get("buckets")
        }
        groups = {}
        for name, item in items.items():
            groups.setdefault(item["buckets"], []).append(name)
        if len(groups) < 2:
            continue
        ordered = sorted(groups.values(), key=len, reverse=True)
        reference = ordered[0][0]
        others = [name for group in ordered[1:] for name in group][:QUERIED_NODES]
        numbers = set()
        for name in others:
            numbers.update(
                places.differing_buckets(items[reference]["buckets"], items[name]["buckets"])
            )
        buckets[key] = sorted(numbers)
        nodes += [name for name in [reference] + others if name not in nodes]
    return {"nodes": nodes, "buckets": buckets}


def estimate_verification(node, facts, trees):
    """Return a line on the time of a full verification for each tree and place.

    A full verification reads every byte. The rate is that of a sample of it that the probe has just
    read (up to 64 blocks of 1 MiB), else of another's on this node, else an assumed one. The line
    says which.
    """
    rows = [
        (key, item["bytes"], item.get("rate"))
        for key, item in facts["placement"]["places"].items()
        if item.get("bytes")
    ]
    for tree in trees:
        state = facts["trees"].get("{}/{}".format(tree["kind"], tree["digest"][:16])) or {}
        if state.get("present"):
            name = "{} {}".format(tree["kind"], tree["name"])
            rows.append((name, tree["bytes"], state.get("rate")))
    measured = [(rate, f"as {key} was read") for key, _size, rate in rows if rate]
    measured.append(
        (places.ASSUMED_BYTES_PER_SECOND, "assumed: too little lies here to measure it")
    )
    lines = []
    for key, size, rate in rows:
        source = "as a sample of it was read"
        if not rate:
            rate, source = measured[0]
        seconds = int(max(1, size / rate))
        lines.append(
            f"{node}: reads {format_bytes(size)} of {key}, about {seconds} s at"
            f" {format_bytes(rate)}/s, {source}"
        )
    return lines
