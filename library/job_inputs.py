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
    description: Directory of the code on the controller.
    type: path
    required: true
  data:
    description: Data set name to directory on the controller.
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
trees: {description: "kind, digest, source directory, files and bytes of every tree that nodes need.", type: list, elements: dict, returned: success}
code_diff: {description: Local changes against the commit., type: str, returned: success}
"""

import os
import shutil

from ansible.module_utils.basic import AnsibleModule
from ansible.module_utils.trainyard import manifest, scaling, sources, suites
from ansible.module_utils.trainyard.display import printable
from ansible.module_utils.urls import open_url


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


def describe(params, check_mode):
    """Return the module's result; see RETURN. Raises SourceError and ManifestError."""
    cache_dir, suite = params["cache_dir"], params["suite"]

    def remembered(root):
        return os.path.join(cache_dir, "scans", root.strip("/").replace("/", "%") + ".json")

    root = os.path.realpath(params["code"])
    entries, state = sources.code_tree(root, remembered(root))
    script = sources.find_script(suite, entries, root)
    job, places = params["job"], {name: os.path.realpath(place) for name, place in params["data"].items()}
    files, values = sources.config_chain(root, job["config"], suite["config_keys"]["base"], entries)
    asked = settled(params, values)
    overrides, arguments, effective = asked["overrides"], asked["arguments"], asked["effective"]
    wanted, missing = suites.wanted_data(suite, effective, arguments, places, code=entries)
    settings = suites.settings(suite, effective, arguments, overrides)
    problems = asked["problems"] + missing + [text for text in [suites.save_problem(suite, settings["save"])] if text]
    if problems:
        head = "%d problem%s, nothing was touched:\n" % (len(problems), "s" if len(problems) > 1 else "")
        raise sources.SourceError(head + "\n".join("  %s: %s" % (job["config"], text) for text in problems))
    trees = [keep("code", suite["name"], root, entries, cache_dir)]
    data = {}
    for name in wanted:
        place = places[name]
        if not os.path.isdir(place):
            raise sources.SourceError("the data set '%s' is not there: %s is no directory on the controller" % (name, place))
        tree = keep("data", name, place, manifest.scan(place, None, remembered(place)), cache_dir)
        trees.append(tree)
        data[name] = tree["digest"]
    weights, fetched = {}, []
    for key, url in sources.weight_urls(suite, effective).items():
        place = sources.weight_folder(cache_dir, url)
        if check_mode and not os.path.isdir(place):
            weights[key] = {"digest": "0" * 64, "file": sources.weight_name(url), "url": url}
            continue
        try:
            fetched += [url] if fetch(url, place) else []
        except OSError as error:
            text = "%s: cannot fetch %s (%s); give the controller internet, or set the override %s to a path or to an empty value"
            raise sources.SourceError(text % (key, url, error, key)) from error
        entries = manifest.scan(place, None, remembered(place))
        tree = keep("weights", key, place, entries, cache_dir)
        trees.append(tree)
        weights[key] = {"digest": tree["digest"], "file": sources.weight_file(entries, url), "url": url}
    code = {
        "digest": trees[0]["digest"],
        "files": trees[0]["files"],
        "bytes": trees[0]["bytes"],
        "commit": state and state["commit"],
        "dirty": bool(state and state["dirty"]),
    }
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
        "trees": trees,
        "code_diff": state["diff"] if state else "",
        "fetched": fetched,
    }


def main():
    module = AnsibleModule(
        argument_spec={
            "suite": {"type": "dict", "required": True},
            "job": {"type": "dict", "required": True},
            "code": {"type": "path", "required": True},
            "data": {"type": "dict", "default": {}},
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
