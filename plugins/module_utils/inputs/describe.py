# SPDX-License-Identifier: Apache-2.0
"""A job's inputs as one description: code, config chain, data, weights, what the script is told,
and what lies on the nodes already. Controller only.

What each of them is comes from sources.py, suites.py and scaling.py; trees are remembered and kept
below one cache directory.
"""

from __future__ import annotations

import os
import re
import shutil

from ..base import manifest
from ..plan import resume_inputs, scaling
from ..suites import suite_table
from . import download, outline_files, sources

# Placements of what lies on the nodes already; it is verified there and never sent.
PLACED = ("present", "shared")


# --- trees and weights in the cache


def remembered(cache_dir, root):
    """Return the file that remembers the digests of a directory's files."""
    return os.path.join(cache_dir, "scans", root.strip("/").replace("/", "%") + ".json")


def keep(kind, name, root, entries, cache_dir):
    """Keep a manifest in the cache; return the tree's summary: kind, name, digest, source, files,
    bytes.
    """
    digest = manifest.digest(entries)
    base = os.path.join(cache_dir, "manifests", digest)
    manifest.refuse_links_out(root, entries)
    if not os.path.exists(base + ".json"):
        os.makedirs(os.path.dirname(base), mode=0o700, exist_ok=True)
        with open(base + ".part", "w", encoding="utf-8") as handle:
            handle.writelines(
                f"./{entry}\n" for entry in sorted(entries)
            )  # rsync takes '#' and ';' at the start of a line for a comment
        os.replace(base + ".part", base + ".files")
        manifest.write_json(base + ".json", entries)  # last: where it is, the list is, too
    size = sum(entry[1] for entry in entries.values())
    return {
        "kind": kind,
        "name": name,
        "digest": digest,
        "source": root,
        "files": len(entries),
        "bytes": size,
    }


def fetch(url, folder, open_url, hosts=(), sha256=None):
    """Fetch a URL into a folder of its own, in one step, an archive unpacked; return whether
    anything was fetched.

    open_url: a callable like ansible.module_utils.urls.open_url. hosts: see download.py. sha256: of
    what the URL brings, None where nobody has said. What came is remembered beside the folder.
    Raises OSError and SourceError.
    """
    if os.path.isdir(folder):
        known = manifest.read_mapping(folder + ".json").get("sha256")
        if sha256 and known != sha256:
            text = (
                "%s: the cache has what came with the sha256 %s, the job says %s; remove %s to"
                " fetch it again"
            )
            raise sources.SourceError(text % (url, known or "unknown", sha256, folder))
        return False
    part = folder + ".part"
    shutil.rmtree(part, ignore_errors=True)
    os.makedirs(part, mode=0o700)
    path = os.path.join(part, sources.weight_name(url))
    with download.opened(url, hosts, open_url) as answer, open(path, "wb") as handle:
        found = download.copy(answer, handle)
        promised = answer.headers.get("Content-Length")
        if (
            promised
            and not answer.headers.get("Content-Encoding")
            and handle.tell() != int(promised)
        ):
            raise OSError("the server broke off after %d of %s bytes" % (handle.tell(), promised))
    if sha256 and found != sha256:
        shutil.rmtree(part, ignore_errors=True)
        raise sources.SourceError(
            f"{url}: brought the sha256 {found}, the job says {sha256}; nothing of it was kept"
        )
    sources.unpack(path)
    manifest.write_json(folder + ".json", {"url": url, "sha256": found})
    os.replace(part, folder)
    return True


def unverified(job, fetched, cache_dir):
    """Return a line for each URL that was fetched without a digest to compare with."""
    lines = []
    for url in fetched:
        if url not in (job.get("weights") or {}):
            found = manifest.read_mapping(sources.weight_folder(cache_dir, url) + ".json").get(
                "sha256"
            )
            lines.append(
                f'weights: nothing says what {url} has to bring; it brought this: write "weights:'
                f' {{{url}: {found}}}" into the job'
            )
    return lines


def outlined(outline, cache_dir):
    """Keep the texts of code that lies on the nodes; return (where, its files' names as keys, git
    state) as for code on the controller.

    The outline is what a node says. Raises SourceError for one that is not valid.
    """
    try:
        told = outline_files.validate(outline)
        root = outline_files.keep(told["texts"], cache_dir)
    except outline_files.InvalidOutline as error:
        raise sources.SourceError(str(error)) from error
    state = (
        {"commit": told["commit"], "dirty": told["dirty"], "diff": ""} if told["commit"] else None
    )
    return root, dict.fromkeys(told["names"], ["f", 0, ""]), state


# --- what the script is told


def settled(params, values):
    """Return {overrides, arguments, effective, advice, problems}: what the script is told, with
    what scaling applies, and what comes of it.
    """
    job, suite, cards = params["job"], params["suite"], (params["nodes"], params["devices"])
    given = dict(params["overrides"], **job["overrides"])
    overrides, problems = suite_table.settle(
        suite, values, given, params["accelerator"], cards[0] * cards[1]
    )
    advice = scaling.advise(job, suite, suite_table.overridden(values, overrides), given, *cards)
    more, arguments, lines = scaling.apply(advice)
    overrides = dict(more, **overrides)
    return {
        "overrides": overrides,
        "arguments": job["arguments"] + arguments,
        "effective": suite_table.overridden(values, overrides),
        "advice": scaling.lines(advice) + lines,
        "problems": problems,
    }


def place_of(job, key):
    """Return 'file:line key' of the job, as every refusal begins (design, decision 12)."""
    line = (job.get("lines") or {}).get(key)
    return "{}{} {}".format(
        job.get("file", job["config"]), "" if line is None else ":%d" % line, key
    )


def about(job, text):
    """Return the place in the job that a problem is about: the override that it names at its head,
    or else the suite's config.
    """
    name = next(
        (name for name in job["overrides"] if re.match(re.escape(name) + "[: ]", text)), None
    )
    return (
        "{}: {}".format(place_of(job, "config"), job["config"])
        if name is None
        else place_of(job, "overrides." + name)
    )


def refuse(job, problems):
    """Raise SourceError with all problems at once, each at its place in the job."""
    if problems:
        head = "%d problem%s, nothing was touched:\n" % (
            len(problems),
            "s" if len(problems) > 1 else "",
        )
        raise sources.SourceError(
            head + "\n".join(f"  {about(job, text)}: {text}" for text in problems)
        )


# --- the parts


def point_tree(point, cache_dir):
    """Return [the tree] of the checkpoint that the run is resumed from, or []; its source is the
    copy at home, which the nodes may do without.
    """
    if not point:
        return []
    name = "%s of attempt %d" % (point["name"], point["attempt"])
    return [
        keep(
            resume_inputs.KIND,
            name,
            point["home"],
            {path: list(entry) for path, entry in point["files"].items()},
            cache_dir,
        )
    ]


class DataSets:
    """The site's data sets: on the controller, or on the nodes, where the probe looks for what the
    config reads.
    """

    def __init__(self, given):
        """given: name to a directory on the controller, or to {path, placement}."""
        self.given = {
            name: item if isinstance(item, dict) else {"path": item} for name, item in given.items()
        }
        self.elsewhere = {
            name: item for name, item in self.given.items() if item.get("placement") in PLACED
        }
        self.places = {
            name: item["path"] if name in self.elsewhere else os.path.realpath(item["path"])
            for name, item in self.given.items()
        }
        self.needs = {}

    def exists(self, path):
        """Return whether a path is there; one that lies on the nodes is noted and taken for there."""
        owner = next(
            (
                n
                for n in self.elsewhere
                if path == self.places[n] or path.startswith(self.places[n].rstrip("/") + "/")
            ),
            None,
        )
        if owner is None:
            return os.path.exists(path)
        self.needs.setdefault(owner, set()).add(path)
        return True

    def described(self, wanted, cache_dir):
        """Return (trees, {name: digest}, placed) of the wanted data sets. Raises SourceError for
        one that is not there.
        """
        trees, digests, placed = [], {}, []
        for name in wanted:
            place = self.places[name]
            if name in self.elsewhere:
                more = {
                    "exclude": [],
                    "needs": sorted(self.needs.get(name, ())),
                    "verify": "listing",
                }
                placed.append(
                    dict(
                        more,
                        key="data/" + name,
                        path=place,
                        placement=self.elsewhere[name]["placement"],
                    )
                )
                continue
            if not os.path.isdir(place):
                raise sources.SourceError(
                    f"the data set '{name}' is not there: {place} is no directory on the controller"
                )
            trees.append(
                keep(
                    "data",
                    name,
                    place,
                    manifest.scan(place, None, remembered(cache_dir, place)),
                    cache_dir,
                )
            )
            digests[name] = trees[-1]["digest"]
        return trees, digests, placed


def weights(params, effective, check_mode, open_url):
    """Return {trees, weights, overrides, placed, fetched} of the weights that the config names by
    URL.

    effective: the config's values with all overrides; the overrides returned lead to files that lie
    on the nodes already. Raises SourceError.
    """
    cache_dir, found = (
        params["cache_dir"],
        {"trees": [], "weights": {}, "overrides": {}, "placed": [], "fetched": []},
    )
    for key, url in sources.weight_urls(params["suite"], effective).items():
        local = sources.local_weights(params["weights"], url)
        if local and params["weights"].get("placement") in PLACED:
            more = {"exclude": [], "needs": [], "verify": "content"}
            item = dict(
                more,
                key="weights/" + os.path.basename(local),
                path=local,
                placement=params["weights"]["placement"],
            )
            found["placed"].append(item)
            found["overrides"][key] = local
            continue
        place = os.path.dirname(local) if local else sources.weight_folder(cache_dir, url)
        if not local and check_mode and not os.path.isdir(place):
            try:
                download.validate(url, params["weights"].get("hosts") or ())
            except download.Refused as error:
                raise sources.SourceError(f"{key}: {download.shown(url)} {error}") from error
            found["weights"][key] = {
                "digest": "0" * 64,
                "file": sources.weight_name(url),
                "url": url,
            }
            continue
        try:
            hosts, wanted = (
                params["weights"].get("hosts") or (),
                (params["job"].get("weights") or {}).get(url),
            )
            found["fetched"] += (
                [url] if not local and fetch(url, place, open_url, hosts, wanted) else []
            )
        except download.Refused as error:
            raise sources.SourceError(f"{key}: {download.shown(url)} {error}") from error
        except OSError as error:
            text = (
                "%s: cannot fetch %s (%s); give the controller internet, or set the override %s to"
                " a path or to an empty value"
            )
            raise sources.SourceError(text % (key, url, error, key)) from error
        entries = manifest.scan(
            place, [os.path.basename(local)] if local else None, remembered(cache_dir, place)
        )
        tree = keep("weights", key, place, entries, cache_dir)
        found["trees"].append(tree)
        found["weights"][key] = {
            "digest": tree["digest"],
            "file": sources.weight_file(entries, url),
            "url": url,
        }
    return found


def placed_code(params, data):
    """Return the place of code that lies on the nodes."""
    more = {"exclude": suite_table.hidden(params["suite"], data.given), "verify": "content"}
    return dict(more, key="code", path=params["code"], placement=params["placement"])


def code_of(params, data):
    """Return (root, entries, git state, placed) of the code: of the controller's tree, or of the
    outline of the one that lies on the nodes.
    """
    if params["outline"]:
        return (*outlined(params["outline"], params["cache_dir"]), [placed_code(params, data)])
    root = os.path.realpath(params["code"])
    return (root, *sources.code_tree(root, remembered(params["cache_dir"], root)), [])


def foreign_lines(params, root, state):
    """Return the line that a code tree of another account was taken whole, or nothing."""
    if params["outline"] or state or not sources.foreign(root):
        return []
    text = (
        "code: git refuses %s, which another account owns: every file was taken and the commit is"
        " unknown. If you trust that account: %s"
    )
    return [text % (root, "git config --global --add safe.directory PATH")]


def describe(params, check_mode, open_url):
    """Return what library/job_inputs.py returns, from its parameters; in check mode nothing is
    fetched.

    open_url: see `fetch`. Raises SourceError, ManifestError and OSError.
    """
    try:
        return _described(params, check_mode, open_url)
    except (
        ArithmeticError,
        AttributeError,
        KeyError,
        RecursionError,
        TypeError,
        ValueError,
    ) as error:
        if not params["outline"]:
            raise
        # the config came from a node and may hold any value at any place
        text = (
            "%s: the config on the nodes cannot be used (%s: %s); compare it with the suite's own"
        )
        raise sources.SourceError(
            text % (place_of(params["job"], "config"), type(error).__name__, error)
        ) from error


def _described(params, check_mode, open_url):
    job, suite, cache_dir = params["job"], params["suite"], params["cache_dir"]
    data = DataSets(params["data"])
    if params[
        "unread"
    ]:  # without its config nothing else can be said; the nodes are looked at all the same
        return {
            "changed": False,
            "unread": params["unread"],
            "trees": [],
            "placed": [placed_code(params, data)],
        }
    root, entries, state, placed = code_of(params, data)
    script = sources.find_script(suite, entries, root)
    try:
        files, values = sources.config_chain(
            root, job["config"], suite["config_keys"]["base"], entries
        )
    except sources.SourceError as error:
        raise sources.SourceError("{}: {}".format(place_of(job, "config"), error)) from error
    asked = settled(params, values)
    wanted, missing = suite_table.wanted_data(
        suite, asked["effective"], asked["arguments"], data.places, data.exists, code=entries
    )
    settings = suite_table.settings(
        suite, asked["effective"], asked["arguments"], asked["overrides"]
    )
    refuse(
        job,
        asked["problems"]
        + missing
        + [text for text in [suite_table.save_problem(suite, settings["save"])] if text],
    )
    trees = [] if params["outline"] else [keep("code", suite["name"], root, entries, cache_dir)]
    code = {name: (params["outline"] or trees[0])[name] for name in ("digest", "files", "bytes")}
    code.update(
        {"path": params["code"]} if params["outline"] else {},
        commit=state and state["commit"],
        dirty=bool(state and state["dirty"]),
    )
    data_trees, digests, data_placed = data.described(wanted, cache_dir)
    pretrained = weights(params, asked["effective"], check_mode, open_url)
    return {
        "changed": bool(pretrained["fetched"]),
        "script": script,
        "code": code,
        "data": digests,
        "weights": pretrained["weights"],
        "config": dict(settings, files=files),
        "overrides": dict(asked["overrides"], **pretrained["overrides"]),
        "arguments": asked["arguments"],
        "advice": (
            asked["advice"]
            + foreign_lines(params, root, state)
            + unverified(job, pretrained["fetched"], cache_dir)
        ),
        "placed": placed + data_placed + pretrained["placed"],
        "trees": (
            trees + data_trees + pretrained["trees"] + point_tree(params.get("resume"), cache_dir)
        ),
        "resume_config": (
            params.get("resume")
            and resume_inputs.config_file(suite, job["config"], values, params["resume"])
        ),
        "code_diff": (state or {}).get("diff", ""),
        "fetched": pretrained["fetched"],
    }
