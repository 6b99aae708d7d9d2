# SPDX-License-Identifier: Apache-2.0
"""Where things lie on the nodes (design, decision 8): what is `present` or `shared` there is equal
everywhere, and no two nodes write to one path.

A place is {key, path, placement, exclude, needs, verify}: key is `code`, `data/NAME` or
`weights/FILE`; exclude names directories below it that the training never sees; needs are paths in
it that the config reads; verify is `content` (small: every byte counts, with a cache) or `listing`
(names and sizes; blocks and bytes on request). Nothing is ever written at a place; what is
remembered of it lies below the product's directory.
"""

from __future__ import annotations

import os

from ..base import manifest
from ..base.findings import finding, named, unequal
from . import paths
from .paths import gigabytes, identity

# Nodes that are asked for files by name where trees differ: the reference and so many that are
# unlike it.
ASKED = 3
SHOWN = 8


def nonce(base, node, names):
    """Return {own, seen} of the nonces in <base>/nodes: this node's, written anew by every look,
    and the ones of the other nodes that lie here, too.

    A node that reads what another one has written in this very look shares its directory, on
    whatever file system: each writes before it reads, so the later of two sees the earlier's. A
    copied home or disk holds an older one.
    """
    folder = os.path.join(base, "nodes")
    if not os.path.isdir(base):
        return {"own": "", "seen": {}}
    own = os.urandom(16).hex()
    manifest.write_json(os.path.join(folder, node + ".json"), {"nonce": own})
    others = {
        name: manifest.read_mapping(os.path.join(folder, name + ".json")).get("nonce")
        for name in names
        if name != node
    }
    return {"own": own, "seen": {name: value for name, value in others.items() if value}}


def look(run, base, asked):
    """Return {base, nonce, places: {key: what lies there}, summary}. asked: {node, nodes (all
    names), places, verify}.
    """
    names, node = asked.get("nodes") or [], asked.get("node", "")
    found = {}
    for place in asked.get("places") or []:
        aside = place["placement"] == "shared" and names and node != names[0]
        # every byte is read by a task of its own, which says first how long it takes
        verify = {"full": "estimate"}.get(asked.get("verify"), asked.get("verify") or "cached")
        found[place["key"]] = paths.seen(base, place, verify, top_only=aside)
    return dict(of_base(base, node, names), places=found, summary=summary(found))


def summary(found):
    """Return one digest of all places that every node has seen whole; where it differs, files can
    be asked for by name.
    """
    told = {
        key: [item["buckets"]]
        for key, item in found.items()
        if item["buckets"] and item["placement"] != "shared"
    }
    return manifest.digest(told) if told else ""


def of_base(base, node, names):
    """Return {base, nonce}: which directory the product's is, see `identity` and `nonce`."""
    left = {"own": "", "seen": {}}
    try:
        left = nonce(base, node, names) if node else left
    except (
        OSError
    ):  # a base of another owner, a full or read-only disk: the subjects that look at those say so
        pass
    return {"base": identity(base), "nonce": left}


def sharing(identities, seen=None):
    """Return {node: first node that has the very same directory}; identities: {node: [ids]}, seen:
    {node: {own, seen}} of nonces.
    """
    owner = {}
    for name, ids in identities.items():
        heard = (seen or {}).get(name) or {"seen": {}}
        for other in owner:
            said = (seen or {}).get(other) or {"own": "", "seen": {}}
            told = (
                heard["seen"].get(other) == said["own"] != ""
                or said["seen"].get(name) == heard.get("own", "") != ""
            )
            if told or set(ids) & set(identities[other]):
                owner[name] = owner[other]
                break
        owner.setdefault(name, name)
    return owner


def judge(nodes, facts, allowed):
    """Return findings; allowed: {named: {node: {key: what placement's `named` found}}} where files
    were asked for by name.
    """
    heard = {
        node["name"]: facts[node["name"]]["placement"]
        for node in nodes
        if facts[node["name"]].get("placement")
    }
    result = homes(heard)
    for key in dict.fromkeys(key for said in heard.values() for key in said["places"]):
        here = {name: said["places"][key] for name, said in heard.items() if key in said["places"]}
        result += _place(
            key,
            here,
            {name: (items or {}).get(key) for name, items in (allowed.get("named") or {}).items()},
        )
    return result


def homes(heard):
    """Return the findings that nodes have one product directory; heard: {node: {base, nonce}}."""
    owner = sharing(
        {name: said["base"] for name, said in heard.items()},
        {name: said["nonce"] for name, said in heard.items()},
    )
    result = []
    for first in sorted(set(owner.values())):
        group = [name for name in owner if owner[name] == first]
        if len(group) > 1:
            text = (
                "one product directory (trainyard_home) is seen by %s: they would write runs,"
                " environments and trees over each other"
            )
            result.append(finding("placement", text % named(group), REMEDY_HOME, group))
    return result


REMEDY_HOME = (
    'give each node its own below it, in group_vars of the trainers: trainyard_home: ".trainyard/{{'
    ' inventory_hostname }}", or name a local disk'
)


def _place(key, here, files):
    result = []
    for name, item in here.items():
        text = "{}: {}".format(key, item["problem"])
        if item["problem"]:
            remedy = "correct {} in the site, or mount it; placement: push sends the controller's copy".format(
                key.replace("/", ".")
            )
            result.append(finding("placement", text, remedy, name))
        for path in item["lacks"]:
            result.append(
                finding(
                    "placement",
                    f"{key}: the config reads {path}, and it is not there",
                    "",
                    name,
                )
            )
        if item["unreadable"]:
            text = "{}: cannot be read by the training user: {}".format(
                key,
                ", ".join(item["unreadable"][:SHOWN]),
            )
            remedy = (
                "give the user leave to read where the training needs it, mend or remove links to"
                " nothing"
            )
            result.append(finding("placement", text, remedy, name, "warn"))
    there = {name: item for name, item in here.items() if not item["problem"]}
    owner = sharing({name: item["identity"] for name, item in there.items()})
    one = len(set(owner.values())) == 1 and len(there) > 1
    kind = next(iter(here.values()))["placement"]
    if kind == "shared" and len(there) > 1 and not one:
        text = "{}: {} is not one directory on all nodes: {}".format(
            key,
            next(iter(there.values()))["path"],
            "; ".join(
                "{} on {}".format(there[name]["filesystem"], name) for name in list(there)[:SHOWN]
            ),
        )
        odd = [name for name in there if owner[name] != next(iter(owner.values()))]
        result.append(
            finding(
                "placement",
                text,
                "mount the same file system everywhere, or say placement: present",
                odd,
            )
        )
    if kind == "present" and one:
        text = (
            "%s: %s is one directory on all nodes; with placement: shared one of them reads it"
            " for all"
        )
        result.append(
            finding("placement", text % (key, next(iter(there.values()))["path"]), "", level="note")
        )
    return result + _contents(key, there, files)


def _contents(key, there, files):
    """Findings about what differs between the nodes, with files by name where they were asked for."""
    found = unlike_files(files)
    remedy = (
        "make the copies equal (rsync from the node that is right); nothing is ever changed at a"
        " place that is not ours"
    )
    whole = {name: item for name, item in there.items() if item["listing"]}
    figures = {
        name: (
            "%d files, %s, names and sizes %s"
            % (item["files"], gigabytes(item["bytes"]), item["listing"][:8])
        )
        for name, item in whole.items()
    }
    result = unequal("placement", key, figures, remedy)
    tops = {name: item["top"] for name, item in there.items() if item["top"]}
    result = result or unequal(
        "placement",
        f"{key}: the entries of the directory itself",
        {n: t[:8] for n, t in tops.items()},
        remedy,
    )
    if not result:
        texts = {name: item["content"][:8] for name, item in whole.items() if item.get("content")}
        result = unequal("placement", f"{key}: content (equal names and sizes)", texts, remedy)
    if not result:
        samples = {name: item["sample"] for name, item in there.items() if item.get("sample")}
        for path in sorted({path for sample in samples.values() for path in sample}):
            text = f"{key}: a sampled block of {path}"
            result += unequal(
                "placement",
                text,
                {name: sample.get(path, "nothing")[:8] for name, sample in samples.items()},
                remedy,
            )
        found = []
    for item in result:
        item["text"] += ": " + "; ".join(found) if found else ""
    return result


def unlike_files(files):
    """Return lines that name the files in which nodes differ; files: {node: {entries, more} or
    None}, the reference node first.
    """
    told = [(name, item) for name, item in files.items() if item]
    lines = []
    for name, item in told[1:]:
        # a bucket that only one of them could show whole would look like missing files
        common = set(item["buckets"]) & set(told[0][1]["buckets"])
        mine, rule = (
            {k: v for k, v in said["entries"].items() if paths.bucket(k) in common}
            for said in (item, told[0][1])
        )
        said = manifest.differences(rule, mine, SHOWN)
        lines += [f"{name} against {told[0][0]}: {line}" for line in said]
    return lines


def unlike(facts):
    """Return {nodes, buckets}: which nodes are to be asked for files by name, the reference first,
    and for which parts of which places.
    """
    heard = {
        name: fact["placement"]["places"]
        for name, fact in facts.items()
        if (fact.get("placement") or {}).get("places")
    }
    asked, buckets = [], {}
    for key in dict.fromkeys(key for said in heard.values() for key in said):
        here = {
            name: said[key] for name, said in heard.items() if (said.get(key) or {}).get("buckets")
        }
        groups = {}
        for name, item in here.items():
            groups.setdefault(item["buckets"], []).append(name)
        if len(groups) < 2:
            continue
        ordered = sorted(groups.values(), key=len, reverse=True)
        others = [name for group in ordered[1:] for name in group][:ASKED]
        rule = here[ordered[0][0]]["buckets"]
        buckets[key] = sorted(
            {n for name in others for n in paths.differing(rule, here[name]["buckets"])}
        )
        asked += [name for name in [ordered[0][0]] + others if name not in asked]
    return {"nodes": asked, "buckets": buckets}


def estimates(node, facts, trees):
    """Return a line for each tree and place of which a full verification reads every byte, with the
    time it will take and how that is known.

    The rate is that of a sample of it that the probe has just read (up to 64 blocks of 1 MiB), else
    of another's on this node, else places.RATE.
    """
    rows = [
        (key, item["bytes"], item.get("rate"))
        for key, item in facts["placement"]["places"].items()
        if item.get("bytes")
    ]
    for tree in trees:
        state = facts["trees"].get("{}/{}".format(tree["kind"], tree["digest"][:16])) or {}
        if state.get("present"):
            rows.append(
                ("{} {}".format(tree["kind"], tree["name"]), tree["bytes"], state.get("rate"))
            )
    measured = [(rate, f"as {key} was read") for key, _size, rate in rows if rate]
    lines = []
    for key, size, own in rows:
        rate, how = (
            (own, "as a sample of it was read")
            if own
            else (measured or [(paths.RATE, "assumed: too little lies here to measure it")])[0]
        )
        words = (node, gigabytes(size), key, max(1, size / rate), gigabytes(rate), how)
        lines.append("%s: reads %s of %s, about %d s at %s/s, %s" % words)
    return lines
