#!/usr/bin/python
# SPDX-License-Identifier: Apache-2.0
"""Describe a job's inputs on the controller."""

from __future__ import annotations

DOCUMENTATION = r"""
module: job_inputs
short_description: Describe a job's code, data and weights on the controller
description:
  - Runs on the controller. Makes the manifest of the code tree and of every data set, reads the suite's config chain, and fetches pretrained
    weights that the config names by URL, once (most configs do; fact 16). Each tree's manifest is kept in the cache as
    C(manifests/<digest>.json), and its list of files as C(manifests/<digest>.files) for rsync.
  - A repeat reads only files whose inode, size or times have changed.
options:
  suite:
    description: The suite's table (see C(plugins/module_utils/trainyard/suites/)).
    type: dict
    required: true
  job:
    description: The job, as read_job gives it.
    type: dict
    required: true
  code:
    description: Directory of the code on the controller; with C(outline), on the nodes.
    type: path
    required: true
  placement:
    description: How the code comes to the nodes (design, decision 8).
    type: str
    choices: [push, present, shared]
    default: push
  outline:
    description: What placement said of code that lies on the nodes already; the controller needs no copy of it.
    type: dict
    default: {}
  data:
    description: Data set name to directory on the controller, or to {path, placement}; with V(present) or V(shared) the path is the nodes'.
    type: dict
    default: {}
  weights:
    description: "{path, placement} of a directory that holds weights under the file names of their URLs; they are not fetched then."
    type: dict
    default: {}
  overrides:
    description: Config values of the site; they beat the config file's, and the job's own beat them.
    type: dict
    default: {}
  accelerator:
    description: What the nodes compute with; decides what the suite's script has to be told.
    type: str
    default: cpu
  nodes:
    description: Number of nodes.
    type: int
    default: 1
  devices:
    description: Number of devices, and so of ranks, of each node.
    type: int
    default: 1
  cache_dir:
    description: Where manifests and weights are kept.
    type: path
    required: true
attributes:
  check_mode: {support: full, description: Weights are not fetched in check mode.}
author: Trainyard
"""

EXAMPLES = r"""
- name: Describe code, data and weights
  job_inputs:
    suite: "{{ job_suite }}"
    job: "{{ read.job }}"
    code: ~/PaddleDetection
    data: {coco: /data/coco}
    cache_dir: ~/.cache/trainyard
  register: inputs
"""

RETURN = r"""
script: {description: The training script inside the code tree., type: str, returned: success}
code: {description: "digest, files (count), bytes, commit, dirty of the code tree.", type: dict, returned: success}
data: {description: Data set name to digest., type: dict, returned: success}
weights: {description: "Config key to {digest, file, url}.", type: dict, returned: success}
config:
  description: "files (the config chain); epochs, iterations, batch (of one card), learning_rate and save (folder), or null where unknown."
  type: dict
  returned: success
overrides: {description: "Config values that the command line carries: the suite's, the site's, the job's.", type: dict, returned: success}
arguments: {description: "Further words for the training script: the job's, and what scaling applies.", type: list, elements: str, returned: success}
advice:
  description: What this number of nodes does to batch, learning rate and iterations, in lines for people (see scaling.py).
  type: list
  elements: str
  returned: success
placed:
  description: "key, path, placement, exclude, needs, verify of what lies on the nodes already (see placement.py)."
  type: list
  elements: dict
  returned: success
trees: {description: "kind, digest, source directory, files and bytes of every tree that nodes need.", type: list, elements: dict, returned: success}
code_diff: {description: Local changes against the commit., type: str, returned: success}
"""

import os
import re
import shutil

from ansible.module_utils.basic import AnsibleModule
from ansible.module_utils.trainyard import manifest, scaling, sources, suites
from ansible.module_utils.trainyard.display import printable
from ansible.module_utils.urls import open_url

# Placements of what lies on the nodes already; it is verified there and never sent.
PLACED = ("present", "shared")


def keep(kind, name, root, entries, cache_dir):
    """Keep a manifest in the cache; return the tree's summary."""
    digest = manifest.digest(entries)
    base = os.path.join(cache_dir, "manifests", digest)
    manifest.refuse_links_out(root, entries)
    if not os.path.exists(base + ".json"):
        os.makedirs(os.path.dirname(base), mode=0o700, exist_ok=True)
        with open(base + ".part", "w", encoding="utf-8") as handle:
            handle.writelines("./%s\n" % entry for entry in sorted(entries))  # rsync takes '#' and ';' at the start of a line for a comment
        os.replace(base + ".part", base + ".files")
        manifest.write_json(base + ".json", entries)  # last: where it is, the list is, too
    size = sum(entry[1] for entry in entries.values())
    return {"kind": kind, "name": name, "digest": digest, "source": root, "files": len(entries), "bytes": size}


def fetch(url, folder):
    """Fetch a URL into a folder of its own, in one step, an archive unpacked; return whether anything was fetched."""
    if os.path.isdir(folder):
        return False
    part = folder + ".part"
    shutil.rmtree(part, ignore_errors=True)
    os.makedirs(part)
    path = os.path.join(part, sources.weight_name(url))
    with open_url(url, timeout=60) as answer, open(path, "wb") as handle:
        shutil.copyfileobj(answer, handle)
        promised = answer.headers.get("Content-Length")
        if promised and not answer.headers.get("Content-Encoding") and handle.tell() != int(promised):
            raise OSError("the server broke off after %d of %s bytes" % (handle.tell(), promised))
    sources.unpack(path)
    os.replace(part, folder)
    return True


def settled(params, values):
    """Return {overrides, arguments, effective, advice, problems}: what the script is told, with what scaling applies, and what comes of it."""
    job, suite, cards = params["job"], params["suite"], (params["nodes"], params["devices"])
    given = dict(params["overrides"], **job["overrides"])
    overrides, problems = suites.settle(suite, values, given, params["accelerator"], cards[0] * cards[1])
    advice = scaling.advise(job, suite, suites.overridden(values, overrides), given, *cards)
    more, arguments, lines = scaling.apply(advice)
    overrides = dict(more, **overrides)
    return {
        "overrides": overrides,
        "arguments": job["arguments"] + arguments,
        "effective": suites.overridden(values, overrides),
        "advice": scaling.lines(advice) + lines,
        "problems": problems,
    }


def outlined(outline, cache_dir):
    """Keep the texts of code that lies on the nodes; return (where, its files' names as keys, git state) as for code on the controller."""
    root = os.path.join(cache_dir, "outlines", outline["digest"])
    for name, text in outline["texts"].items():
        path = os.path.normpath(os.path.join(root, name))
        if not path.startswith(root + "/"):
            raise sources.SourceError("%r: the code's outline names a file outside of it" % name)
        os.makedirs(os.path.dirname(path), mode=0o700, exist_ok=True)
        with open(path, "w", encoding="utf-8") as handle:
            handle.write(text)
    state = {"commit": outline["commit"], "dirty": outline["dirty"], "diff": ""} if outline["commit"] else None
    return root, dict.fromkeys(outline["names"], ["f", 0, ""]), state


def place_of(job, key):
    """Return 'file:line key' of the job, as every refusal begins (design, decision 12)."""
    line = (job.get("lines") or {}).get(key)
    return "%s%s %s" % (job.get("file", job["config"]), "" if line is None else ":%d" % line, key)


def about(job, text):
    """Return the place in the job that a problem is about: the override that it names at its head, or else the suite's config."""
    name = next((name for name in job["overrides"] if re.match(re.escape(name) + "[: ]", text)), None)
    return "%s: %s" % (place_of(job, "config"), job["config"]) if name is None else place_of(job, "overrides." + name)


def describe(params, check_mode):
    """Return the module's result; see RETURN. Raises SourceError and ManifestError."""
    cache_dir, suite = params["cache_dir"], params["suite"]

    def remembered(root):
        return os.path.join(cache_dir, "scans", root.strip("/").replace("/", "%") + ".json")

    placed, needs = [], {}
    data_sources = {name: item if isinstance(item, dict) else {"path": item} for name, item in params["data"].items()}
    elsewhere = {name: item for name, item in data_sources.items() if item.get("placement") in PLACED}
    if params["outline"]:
        root, entries, state = outlined(params["outline"], cache_dir)
        exclude = suites.hidden(suite, data_sources)
        placed.append({"key": "code", "path": params["code"], "placement": params["placement"], "exclude": exclude, "verify": "content"})
    else:
        root = os.path.realpath(params["code"])
        entries, state = sources.code_tree(root, remembered(root))
    script = sources.find_script(suite, entries, root)
    job = params["job"]
    places = {name: item["path"] if name in elsewhere else os.path.realpath(item["path"]) for name, item in data_sources.items()}

    def exists(path):
        """What lies on the nodes is looked for there, by the probe."""
        owner = next((name for name in elsewhere if path == places[name] or path.startswith(places[name].rstrip("/") + "/")), None)
        if owner is None:
            return os.path.exists(path)
        needs.setdefault(owner, []).append(path)
        return True

    try:
        files, values = sources.config_chain(root, job["config"], suite["config_keys"]["base"], entries)
    except sources.SourceError as error:
        raise sources.SourceError("%s: %s" % (place_of(job, "config"), error)) from error
    asked = settled(params, values)
    overrides, arguments, effective = asked["overrides"], asked["arguments"], asked["effective"]
    wanted, missing = suites.wanted_data(suite, effective, arguments, places, exists, code=entries)
    settings = suites.settings(suite, effective, arguments, overrides)
    problems = asked["problems"] + missing + [text for text in [suites.save_problem(suite, settings["save"])] if text]
    if problems:
        head = "%d problem%s, nothing was touched:\n" % (len(problems), "s" if len(problems) > 1 else "")
        raise sources.SourceError(head + "\n".join("  %s: %s" % (about(job, text), text) for text in problems))
    trees = [] if params["outline"] else [keep("code", suite["name"], root, entries, cache_dir)]
    data = {}
    for name in wanted:
        place = places[name]
        if name in elsewhere:
            more = {"exclude": [], "needs": sorted(set(needs.get(name, []))), "verify": "listing"}
            placed.append(dict(more, key="data/" + name, path=place, placement=elsewhere[name]["placement"]))
            continue
        if not os.path.isdir(place):
            raise sources.SourceError("the data set '%s' is not there: %s is no directory on the controller" % (name, place))
        tree = keep("data", name, place, manifest.scan(place, None, remembered(place)), cache_dir)
        trees.append(tree)
        data[name] = tree["digest"]
    weights, fetched = {}, []
    for key, url in sources.weight_urls(suite, effective).items():
        local = sources.local_weights(params["weights"], url)
        if local and params["weights"].get("placement") in PLACED:
            more = {"exclude": [], "needs": [], "verify": "content"}
            placed.append(dict(more, key="weights/" + os.path.basename(local), path=local, placement=params["weights"]["placement"]))
            overrides = dict(overrides, **{key: local})
            continue
        place = os.path.dirname(local) if local else sources.weight_folder(cache_dir, url)
        if not local and check_mode and not os.path.isdir(place):
            weights[key] = {"digest": "0" * 64, "file": sources.weight_name(url), "url": url}
            continue
        try:
            fetched += [url] if not local and fetch(url, place) else []
        except OSError as error:
            text = "%s: cannot fetch %s (%s); give the controller internet, or set the override %s to a path or to an empty value"
            raise sources.SourceError(text % (key, url, error, key)) from error
        entries = manifest.scan(place, [os.path.basename(local)] if local else None, remembered(place))
        tree = keep("weights", key, place, entries, cache_dir)
        trees.append(tree)
        weights[key] = {"digest": tree["digest"], "file": sources.weight_file(entries, url), "url": url}
    first = params["outline"] or trees[0]
    code = {
        "digest": first["digest"],
        "files": first["files"],
        "bytes": first["bytes"],
        "commit": state and state["commit"],
        "dirty": bool(state and state["dirty"]),
    }
    if params["outline"]:
        code["path"] = params["code"]
    return {
        "changed": bool(fetched),
        "script": script,
        "code": code,
        "data": data,
        "weights": weights,
        "config": dict(settings, files=files),
        "overrides": overrides,
        "arguments": arguments,
        "advice": asked["advice"],
        "placed": placed,
        "trees": trees,
        "code_diff": (state or {}).get("diff", ""),
        "fetched": fetched,
    }


def main():
    module = AnsibleModule(
        argument_spec={
            "suite": {"type": "dict", "required": True},
            "job": {"type": "dict", "required": True},
            "code": {"type": "path", "required": True},
            "placement": {"type": "str", "choices": ["push", "present", "shared"], "default": "push"},
            "outline": {"type": "dict", "default": {}},
            "data": {"type": "dict", "default": {}},
            "weights": {"type": "dict", "default": {}},
            "overrides": {"type": "dict", "default": {}},
            "accelerator": {"type": "str", "default": "cpu"},
            "nodes": {"type": "int", "default": 1},
            "devices": {"type": "int", "default": 1},
            "cache_dir": {"type": "path", "required": True},
        },
        supports_check_mode=True,
    )
    try:
        module.exit_json(**describe(module.params, module.check_mode))
    except (sources.SourceError, manifest.ManifestError, OSError) as error:
        module.fail_json(msg=printable(str(error), newlines=True))


if __name__ == "__main__":
    main()
