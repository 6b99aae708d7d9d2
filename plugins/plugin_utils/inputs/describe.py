# SPDX-License-Identifier: Apache-2.0
"""A job's inputs as one description.

It has code, config chain, data, weights, the script's overrides and arguments, and the inputs that
lie on the nodes already. The parts come from sources.py, suite_table.py and scaling.py. Trees are
remembered and kept below one cache directory.
"""

from __future__ import annotations

import os
import re
import shutil
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any

from ansible_collections.trainyard.cluster.plugins.module_utils.base import manifest
from ansible_collections.trainyard.cluster.plugins.module_utils.base.files import (
    read_mapping,
    replace_file,
    write_json,
)
from ansible_collections.trainyard.cluster.plugins.module_utils.base.units import format_bytes
from ansible_collections.trainyard.cluster.plugins.module_utils.plan import (
    next_plan,
    resume_inputs,
    scaling,
)
from ansible_collections.trainyard.cluster.plugins.module_utils.suites import (
    override_check,
    suite_table,
)

from ..plan import resume_config
from . import code_tree, data_links, download, local_weights, outline_files, sources
from .sources import Entries, GitState

# {kind, name, digest, source, files (a count), bytes} of a tree.
Tree = dict[str, Any]
# {key, path, placement, exclude, needs, verify} of an input on the nodes.
PlacedInput = dict[str, Any]
Job = Mapping[str, Any]

# Placements of inputs that lie on the nodes already. They are verified there and never sent.
PLACED = ("present", "shared")


# --- trees and weights in the cache


def scan_cache(cache_dir: str, root: str) -> str:
    """Return the path of the cache with the digests of a directory's files."""
    return os.path.join(cache_dir, "scans", root.strip("/").replace("/", "%") + ".json")


def keep_manifest(
    kind: str,
    name: str,
    root: str,
    entries: Entries,
    cache_dir: str,
    remedy: str = manifest.LINK_REMEDY,
) -> Tree:
    """Keep a manifest in the cache and return the tree's summary.

    It has kind, name, digest, source, files (a count) and bytes. remedy: the choices of a user
    whose tree has a link that leads outside.
    """
    digest = manifest.digest(entries)
    base = os.path.join(cache_dir, "manifests", digest)
    manifest.refuse_links_out(root, entries, remedy)
    if not os.path.exists(base + ".json"):
        os.makedirs(os.path.dirname(base), mode=0o700, exist_ok=True)
        # rsync takes '#' and ';' at the start of a line for a comment.
        names = "".join(f"./{entry}\n" for entry in sorted(entries))
        replace_file(base + ".files", names, sync=False)
        write_json(base + ".json", entries)  # last: where it is, the list is too
    size = sum(entry[1] for entry in entries.values())
    return {
        "kind": kind,
        "name": name,
        "digest": digest,
        "source": root,
        "files": len(entries),
        "bytes": size,
    }


def fetch_url(
    url: str,
    folder: str,
    open_url: download.OpenUrl,
    hosts: Collection[str] = (),
    sha256: str | None = None,
) -> bool:
    """Fetch a URL into a new folder and return whether anything was fetched.

    An archive is unpacked. The folder appears in one step. open_url: a callable like
    ansible.module_utils.urls.open_url. hosts: see download.py. sha256: of the download, or None
    where it is not known. The digest of a download is kept beside the folder. Raises OSError and
    SourceError.
    """
    if os.path.isdir(folder):
        known = read_mapping(folder + ".json").get("sha256")
        if sha256 and known != sha256:
            raise sources.SourceError(
                "inputs.digest_differs",
                f"{url}: the cache has what came with the sha256 {known or 'unknown'}, the job says"
                f" {sha256}; remove {folder} to fetch it again",
            )
        return False
    part = folder + ".part"
    shutil.rmtree(part, ignore_errors=True)
    os.makedirs(part, mode=0o700)
    path = os.path.join(part, sources.weight_name(url))
    digest = _download(url, path, open_url, hosts)
    if sha256 and digest != sha256:
        shutil.rmtree(part, ignore_errors=True)
        raise sources.SourceError(
            "inputs.digest_differs",
            f"{url}: brought the sha256 {digest}, the job says {sha256}; nothing of it was kept",
        )
    sources.unpack(path)
    write_json(folder + ".json", {"url": url, "sha256": digest})
    os.replace(part, folder)
    return True


def _download(url: str, path: str, open_url: download.OpenUrl, hosts: Collection[str]) -> str:
    """Write the body of a URL to a file and return its sha256.

    Raises OSError where the body is cut off.
    """
    with download.open_checked(url, hosts, open_url) as answer, open(path, "wb") as handle:
        digest = download.copy_body(answer, handle)
        promised = answer.headers.get("Content-Length")
        # (the length of an encoded answer is that of its encoded form)
        if promised and not answer.headers.get("Content-Encoding"):
            if handle.tell() != int(promised):
                raise OSError(f"the server broke off after {handle.tell()} of {promised} bytes")
    return digest


def unverified_downloads(job: Job, fetched: Sequence[str], cache_dir: str) -> list[str]:
    """Return a line for each URL that was fetched without a digest to compare with."""
    lines = []
    for url in fetched:
        if url not in (job.get("weights") or {}):
            record = read_mapping(sources.weight_folder(cache_dir, url) + ".json")
            lines.append(
                f'weights: nothing says what {url} has to bring; it brought this: write "weights:'
                f' {{{url}: {record.get("sha256")}}}" into the job'
            )
    return lines


def keep_outline(outline: Any, cache_dir: str) -> tuple[str, Entries, GitState | None]:
    """Keep the texts of code that lies on the nodes.

    Returns (directory, its files' names as keys, git state) as for code on the controller. The
    outline is a node's answer. Raises SourceError for one that is not valid.
    """
    try:
        valid = outline_files.validate(outline)
        root = outline_files.keep_texts(valid["texts"], cache_dir)
    except outline_files.InvalidOutline as error:
        raise sources.SourceError("inputs.bad_outline", str(error)) from error
    state = None
    if valid["commit"]:
        reason = ""
        if valid["dirty"] is None:
            reason = "git on the node cannot compare the files with the commit"
        state = {
            "commit": valid["commit"],
            "dirty": valid["dirty"],
            "diff": "",
            "reason": reason,
        }
    return root, dict.fromkeys(valid["names"], ["f", 0, ""]), state


# --- the script's overrides and arguments


def settle_options(
    params: Mapping[str, Any],
    values: Mapping[str, Any],
    is_read: Callable[[str], bool] | None = None,
) -> dict[str, Any]:
    """Return the overrides and arguments of the training script, with advice.

    The keys are overrides, arguments, effective, advice, problems and warnings. They include the
    changes of scaling. effective: the config's values with all overrides. is_read: see
    override_check.judge.
    """
    job, suite = params["job"], params["suite"]
    nodes, devices = params["nodes"], params["devices"]
    chosen = dict(params["overrides"], **job["overrides"])
    overrides, problems = suite_table.settle_overrides(
        suite, values, chosen, params["accelerator"], nodes * devices
    )
    wrong, doubtful = override_check.judge(suite, values, chosen, is_read)
    planned = suite_table.apply_overrides(values, overrides)
    advice = scaling.advise(job, suite, planned, chosen, nodes, devices)
    scaled, arguments, lines = scaling.apply(advice)
    overrides = dict(scaled, **overrides)
    return {
        "overrides": overrides,
        "arguments": job["arguments"] + arguments,
        "effective": suite_table.apply_overrides(values, overrides),
        "advice": scaling.lines(advice) + lines,
        "problems": wrong + problems,
        "warnings": [_located(job, text) for text in doubtful],
    }


def location_of(job: Job, key: str) -> str:
    """Return 'file:line key' of the job, the beginning of every refusal.

    See docs/design.md, 12.
    """
    file, line = job.get("file", job["config"]), (job.get("lines") or {}).get(key)
    if line is None:
        return f"{file} {key}"
    return f"{file}:{line} {key}"


def problem_location(job: Job, text: str) -> str:
    """Return the place in the job that a problem is about.

    It is the override that the problem begins with, or else the suite's config.
    """
    for name in job["overrides"]:
        if re.match(re.escape(name) + "[:, ]", text):
            return location_of(job, "overrides." + name)
    return "{}: {}".format(location_of(job, "config"), job["config"])


def _located(job: Job, text: str) -> str:
    """Return a problem after its place in the job. A key that ends the place is not repeated."""
    place = problem_location(job, text)
    for name in job["overrides"]:
        if place == location_of(job, "overrides." + name):
            text = text.removeprefix(f"{name}: ")
    return f"{place}: {text}"


def refuse(job: Job, problems: Sequence[sources.InputProblem]) -> None:
    """Raise InputsRefused with all problems at once, each at its place in the job."""
    if problems:
        count = "1 problem"
        if len(problems) > 1:
            count = f"{len(problems)} problems"
        lines = [f"  {_located(job, problem.text)}" for problem in problems]
        raise sources.InputsRefused(
            [problem.code for problem in problems],
            "\n".join([f"{count}, nothing was touched:", *lines]),
        )


# --- the parts


def checkpoint_tree(point: Mapping[str, Any] | None, cache_dir: str) -> list[Tree]:
    """Return [the tree] of the checkpoint that the run is resumed from, or [].

    Its source is the controller's copy, so that the nodes need not have the checkpoint.
    """
    if not point:
        return []
    name = f"{point['name']} of attempt {point['attempt']}"
    files = {path: list(entry) for path, entry in point["files"].items()}
    return [keep_manifest(resume_inputs.KIND, name, point["home"], files, cache_dir)]


class DataSets:
    """The site's data sets, on the controller or on the nodes.

    Of data sets on the nodes, the files that the config reads are noted for the probe.
    """

    def __init__(self, given: Mapping[str, Any], suite: str = "SUITE") -> None:
        """Take the site's data sets.

        given: {name: directory on the controller, or {path, placement, follow_links}}. suite: the
        suite's name, for messages.
        """
        self.suite = suite
        self.remarks: list[str] = []
        self.given: dict[str, Mapping[str, Any]] = {}
        self.elsewhere: dict[str, Mapping[str, Any]] = {}  # those that lie on the nodes
        self.paths: dict[str, str] = {}
        self.needs: dict[str, set[str]] = {}  # {name: paths that the config reads}
        for name, item in given.items():
            if not isinstance(item, dict):
                item = {"path": item}
            self.given[name] = item
            if item.get("placement") in PLACED:
                self.elsewhere[name] = item
                self.paths[name] = item["path"]
            else:
                self.paths[name] = os.path.realpath(item["path"])

    def exists(self, path: str) -> bool:
        """Return whether a path exists. One on the nodes is noted and assumed to exist."""
        for name in self.elsewhere:
            root = self.paths[name]
            if path == root or path.startswith(root.rstrip("/") + "/"):
                self.needs.setdefault(name, set()).add(path)
                return True
        return os.path.exists(path)

    def described(
        self, names: Sequence[str], cache_dir: str
    ) -> tuple[list[Tree], dict[str, str], list[PlacedInput]]:
        """Return (trees, {name: digest}, placed) of the wanted data sets.

        Raises SourceError for one that does not exist.
        """
        trees, digests, placed = [], {}, []
        for name in names:
            if name in self.elsewhere:
                placed.append(self._placed(name))
            else:
                tree = self._tree(name, cache_dir)
                trees.append(tree)
                digests[name] = tree["digest"]
        return trees, digests, placed

    def _placed(self, name: str) -> PlacedInput:
        """Return the description of a data set on the nodes for the probe."""
        return {
            "key": "data/" + name,
            "path": self.paths[name],
            "placement": self.elsewhere[name]["placement"],
            "exclude": [],
            "needs": sorted(self.needs.get(name, ())),
            "verify": "listing",
        }

    def _tree(self, name: str, cache_dir: str) -> Tree:
        """Return the summary of a data set on the controller."""
        root = self.paths[name]
        if not os.path.isdir(root):
            raise sources.SourceError(
                "inputs.data_missing",
                f"the data set '{name}' is not there: {root} is no directory on the controller",
            )
        cache = scan_cache(cache_dir, root)
        entries = manifest.scan(root, None, cache)
        remedy = data_links.refusal_remedy(self.suite, name)
        outside = data_links.leading_out(root, entries)
        if not outside or not self.given[name].get("follow_links", True):
            return keep_manifest("data", name, root, entries, cache_dir, remedy)
        names = data_links.names_followed(
            root, "fix or remove it, or say placement: present if the data lies on the nodes"
        )
        entries = manifest.scan(root, names, cache, follow=True)
        tree = keep_manifest("data", name, root, entries, cache_dir)
        shown = [
            f"{link} -> {os.readlink(os.path.join(root, link))}"
            for link in outside[: manifest.MOST_NAMED]
        ]
        if len(outside) > len(shown):
            shown.append(f"and {len(outside) - len(shown)} more")
        self.remarks.append(
            f"data: links lead out of '{name}' ({', '.join(shown)}), so the contents of all its"
            f" links travel as files: {tree['files']} files, {format_bytes(tree['bytes'])}"
        )
        return dict(tree, follow=True)


def describe_weights(
    params: Mapping[str, Any],
    effective: Mapping[str, Any],
    check_mode: bool,
    open_url: download.OpenUrl,
) -> dict[str, Any]:
    """Return {trees, weights, overrides, placed, fetched} of weights named by URL.

    effective: the config's values with all overrides. The overrides returned lead to files that lie
    on the nodes already. Raises SourceError.
    """
    result: dict[str, Any] = {
        "trees": [],
        "weights": {},
        "overrides": {},
        "placed": [],
        "fetched": [],
    }
    for key, url in sources.weight_urls(params["suite"], effective).items():
        local = sources.local_weights(params["weights"], url)
        if local and params["weights"].get("placement") in PLACED:
            result["placed"].append(_placed_weights(params, local))
            result["overrides"][key] = local
            continue
        folder = sources.weight_folder(params["cache_dir"], url)
        if not local and check_mode and not os.path.isdir(folder):
            _validate_url(params, key, url)
            result["weights"][key] = _weights_entry("0" * 64, sources.weight_name(url), url, 0)
            continue
        if not local and _fetch_weights(params, key, url, open_url):
            result["fetched"].append(url)
        tree, file = _weights_tree(params, key, url, local)
        result["trees"].append(tree)
        result["weights"][key] = _weights_entry(tree["digest"], file, url, tree["bytes"])
    return result


def _weights_entry(digest: str, file: str, url: str, size: int) -> dict[str, Any]:
    return {"digest": digest, "file": file, "url": url, "bytes": size}


def _placed_weights(params: Mapping[str, Any], path: str) -> PlacedInput:
    """Return the description of a weights file on the nodes for the probe."""
    return {
        "key": "weights/" + os.path.basename(path),
        "path": path,
        "placement": params["weights"]["placement"],
        "exclude": [],
        "needs": [],
        "verify": "content",
    }


def _validate_url(params: Mapping[str, Any], key: str, url: str) -> None:
    """Raise SourceError where a URL may not be fetched."""
    try:
        download.validate(url, params["weights"].get("hosts") or ())
    except download.Refused as error:
        raise sources.SourceError(
            "inputs.download_refused", f"{key}: {download.displayed_url(url)} {error}"
        ) from error


def _fetch_weights(
    params: Mapping[str, Any], key: str, url: str, open_url: download.OpenUrl
) -> bool:
    """Fetch weights into the cache and return whether anything was fetched.

    Raises SourceError.
    """
    folder = sources.weight_folder(params["cache_dir"], url)
    hosts = params["weights"].get("hosts") or ()
    sha256 = (params["job"].get("weights") or {}).get(url)
    try:
        return fetch_url(url, folder, open_url, hosts, sha256)
    except download.Refused as error:
        raise sources.SourceError(
            "inputs.download_refused", f"{key}: {download.displayed_url(url)} {error}"
        ) from error
    except OSError as error:
        raise sources.SourceError(
            "inputs.download_failed",
            f"{key}: cannot fetch {url} ({error}); give the controller internet, or set the"
            f" override {key} to a path or to an empty value",
        ) from error


def _weights_tree(
    params: Mapping[str, Any], key: str, url: str, local: str | None
) -> tuple[Tree, str]:
    """Return (the tree's summary, the file in it) of weights on the controller.

    local: path of the file in the site's directory, or None for the one in the cache.
    """
    cache_dir = params["cache_dir"]
    folder, names = sources.weight_folder(cache_dir, url), None
    if local:
        folder, names = os.path.dirname(local), [os.path.basename(local)]
    entries = manifest.scan(folder, names, scan_cache(cache_dir, folder))
    tree = keep_manifest("weights", key, folder, entries, cache_dir)
    return tree, sources.weight_file(entries, url)


def describe_placed_code(params: Mapping[str, Any], data: DataSets) -> PlacedInput:
    """Return the description of code on the nodes for the probe."""
    return {
        "key": "code",
        "path": params["code"],
        "placement": params["placement"],
        "exclude": suite_table.linked_folders(params["suite"], data.given),
        "verify": "content",
    }


class Code:
    """The code of a job: the controller's tree, or the outline of one that lies on the nodes."""

    def __init__(self, params: Mapping[str, Any], data: DataSets) -> None:
        """Read the names of the files.

        data: the site's data sets. What lies where they appear is no code.
        """
        self.params = params
        self.state: GitState | None = None
        self.placed: list[PlacedInput] = []
        self.left_out: list[code_tree.LeftOut] = []
        self.covered = set(suite_table.linked_folders(params["suite"], data.given))
        if params["outline"]:
            self.root, entries, self.state = keep_outline(params["outline"], params["cache_dir"])
            self.names = list(entries)
            self.placed = [describe_placed_code(params, data)]
        else:
            self.root = os.path.realpath(params["code"])
            self.names = code_tree.list_names(self.root, self.covered)

    def describe(
        self, save: str | None, needed: Collection[str]
    ) -> tuple[dict[str, Any], list[Tree]]:
        """Return (the plan's entry of the code, [its tree]), and note what is left out.

        save: the folder to which the config saves. needed: files that the training reads, which are
        code wherever they lie. Code on the nodes has a path and no tree.
        """
        outline = self.params["outline"]
        if outline:
            summary, trees = outline, []
        else:
            summary = self._keep(save, needed)
            trees = [summary]
        code = {name: summary[name] for name in ("digest", "files", "bytes")}
        if outline:
            code["path"] = self.params["code"]
        code["commit"] = self.state and self.state["commit"]
        code["dirty"] = bool(self.state and self.state["dirty"])
        if self.state and self.state["dirty"] is None:
            code["dirty"], code["reason"] = None, self.state["reason"]
        return code, trees

    def _keep(self, save: str | None, needed: Collection[str]) -> Tree:
        """Keep the manifest of the controller's tree and return its summary."""
        folder = os.path.normpath(save or "")
        # A config that saves over its own code would leave nothing to run.
        if save and code_tree.without(needed, [folder]) == list(needed):
            self.covered.add(folder)
        names = code_tree.without(self.names, self.covered)
        cache_dir, suite = self.params["cache_dir"], self.params["suite"]["name"]
        cache = scan_cache(cache_dir, self.root)
        entries, self.state = code_tree.read(self.root, names, self.covered, cache)
        self.left_out = code_tree.left_out(self.root, self.covered)
        remedy = code_tree.LINK_REMEDY.format(suite=suite)
        return keep_manifest("code", suite, self.root, entries, cache_dir, remedy)

    def remarks(self) -> list[str]:
        """Return lines on what was taken of the tree."""
        lines = code_tree.describe_left_out(self.left_out)
        if self.state and self.state["reason"]:
            lines.append(f"code: local changes are unknown: {self.state['reason']}")
        return lines


def foreign_owner_lines(params: Mapping[str, Any], root: str, state: GitState | None) -> list[str]:
    """Return the line that a code tree of another account was taken whole, or nothing."""
    if params["outline"] or state or not sources.is_foreign(root):
        return []
    return [
        f"code: git refuses {root}, which another account owns: every file was taken and the commit"
        " is unknown. If you trust that account: git config --global --add safe.directory PATH"
    ]


def describe(
    params: Mapping[str, Any], check_mode: bool, open_url: download.OpenUrl
) -> dict[str, Any]:
    """Return the result of library/job_inputs.py from its parameters.

    In check mode nothing is fetched. open_url: see `fetch_url`. Raises SourceError, ManifestError
    and OSError.
    """
    try:
        return _describe(params, check_mode, open_url)
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
        # The config came from a node and may hold any value at any place.
        raise sources.SourceError(
            "inputs.config_unreadable",
            f"{location_of(params['job'], 'config')}: the config on the nodes cannot be used"
            f" ({type(error).__name__}: {error}); compare it with the suite's own",
        ) from error


def _describe(
    params: Mapping[str, Any], check_mode: bool, open_url: download.OpenUrl
) -> dict[str, Any]:
    job, suite, cache_dir = params["job"], params["suite"], params["cache_dir"]
    data = DataSets(params["data"], suite["name"])
    if params["unread"]:
        # Without its config nothing else of the code is known. The probe looks at it all the same.
        return {
            "changed": False,
            "unread": params["unread"],
            "trees": [],
            "placed": [describe_placed_code(params, data)],
        }
    read = Code(params, data)
    root, entries = read.root, dict.fromkeys(read.names)
    script = sources.find_script(suite, entries, root)
    files, values = _read_config(params, root, entries)
    # The texts of code on the nodes are not here.
    is_read = None
    if not params["outline"]:
        is_read = sources.name_search(root, entries)
    settled_values = settle_options(params, values, is_read)
    effective, arguments = settled_values["effective"], settled_values["arguments"]
    names, missing = suite_table.find_data(
        suite, effective, arguments, data.paths, data.exists, code=entries
    )
    settings = suite_table.settings(suite, effective, arguments, settled_values["overrides"])
    save_problem = suite_table.save_problem(suite, settings["save"])
    weight_sets, weightless = local_weights.find(
        suite, effective, data.paths, data.exists, data.elsewhere, read.names, read.covered
    )
    names = sorted({*names, *weight_sets})
    problems = [
        sources.InputProblem("inputs.bad_override", text) for text in settled_values["problems"]
    ]
    problems += [sources.InputProblem("inputs.data_missing", text) for text in missing]
    problems += [sources.InputProblem("inputs.weights_missing", text) for text in weightless]
    if save_problem:
        problems.append(sources.InputProblem("inputs.bad_output", save_problem))
    refuse(job, problems)
    code, trees = read.describe(settings["save"], [script, *files])
    data_trees, digests, data_placed = data.described(names, cache_dir)
    pretrained = describe_weights(params, effective, check_mode, open_url)
    resume_point = params.get("resume")
    return {
        "changed": bool(pretrained["fetched"]),
        "script": script,
        "code": code,
        "data": digests,
        "weights": pretrained["weights"],
        "config": dict(settings, files=files),
        "overrides": dict(settled_values["overrides"], **pretrained["overrides"]),
        "arguments": arguments,
        "advice": (
            settled_values["advice"]
            + foreign_owner_lines(params, root, read.state)
            + unverified_downloads(job, pretrained["fetched"], cache_dir)
        ),
        "placed": read.placed + data_placed + pretrained["placed"],
        "trees": trees
        + data_trees
        + pretrained["trees"]
        + checkpoint_tree(resume_point, cache_dir),
        "resume_config": (
            resume_point and resume_config.config_file(suite, job["config"], values, resume_point)
        ),
        # for the attempts that the nodes begin themselves (job_plan.py)
        "resumable_config": resume_config.config_file(
            suite, job["config"], values, next_plan.PLACEHOLDER
        ),
        "code_diff": (read.state or {}).get("diff", ""),
        "left_out": read.left_out,
        "remarks": read.remarks() + data.remarks,
        "fetched": pretrained["fetched"],
        "doubts": settled_values["warnings"],
    }


def _read_config(
    params: Mapping[str, Any], root: str, entries: Entries
) -> tuple[list[str], dict[str, Any]]:
    """Return (names of the config's files, their merged values). Raises SourceError."""
    job, base_key = params["job"], params["suite"]["config_keys"]["base"]
    try:
        return sources.config_chain(root, job["config"], base_key, entries)
    except sources.SourceError as error:
        raise sources.SourceError(
            error.code, "{}: {}".format(location_of(job, "config"), error)
        ) from error
