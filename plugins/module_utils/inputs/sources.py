# SPDX-License-Identifier: Apache-2.0
"""Where a job's inputs come from on the controller: the code tree and its commit, the suite's
config chain, data sets, weights. Controller only.
"""

from __future__ import annotations

import hashlib
import os
import re
import tarfile
import zipfile
import zlib

import yaml

from ..base import git_tree, manifest
from ..base.yaml_source import near
from ..suites import suite_table
from . import download

# How the suites' weights end: Paddle's and MindSpore's.
WEIGHT_ENDINGS = (".pdparams", ".ckpt")
# A URL may come from a config on a node.
FILE_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9._+=@~,%-]{0,200}")
MOST_MEMBERS = 10_000
# Local changes against the commit go into the run's record up to so many bytes.
LARGEST_DIFF = 16 << 20
# PyYAML reads about 100 kB a second. The longest config of the suites has 15 kB and the longest
# chain eight files.
MAX_CONFIG, MOST_CONFIGS, MAX_DEPTH, MOST_VALUES, LONGEST_NUMBER = 1 << 18, 60, 60, 100_000, 100
NUMBERS = ("tag:yaml.org,2002:int", "tag:yaml.org,2002:float")


class SourceError(Exception):
    """An input that is not there or does not fit; the message names it and the remedy."""


class _AnyTag(yaml.SafeLoader):
    """The suites' configs carry tags of their own (!LearningRate); their values are plain for our
    reading.

    A config may come from a node. Its depth is bounded while it is composed, and the values that
    its aliases stand for are counted before anything is made of them.
    """

    depth = 0

    def compose_node(self, parent, index):
        self.depth += 1
        if self.depth > MAX_DEPTH:
            raise yaml.YAMLError("nests deeper than %d levels" % MAX_DEPTH)
        node = super().compose_node(parent, index)
        self.depth -= 1
        return node

    def get_single_node(self):
        node = super().get_single_node()
        if node is not None and _values(node, {}) > MOST_VALUES:
            raise yaml.YAMLError("stands for more than %d values" % MOST_VALUES)
        return node


def _values(node, known):
    """Return how many values a node stands for, its aliases written out. known: what has been
    counted, None while it is being counted.
    """
    key = id(node)
    if key not in known:
        known[key] = None
        total = 1
        if isinstance(node, yaml.ScalarNode):
            if node.tag in NUMBERS and len(node.value) > LONGEST_NUMBER:
                raise yaml.YAMLError("has a number of more than %d digits" % LONGEST_NUMBER)
        else:
            for item in node.value:
                total += sum(
                    _values(part, known) for part in (item if isinstance(item, tuple) else (item,))
                )
        known[key] = total
    if known[key] is None:
        raise yaml.YAMLError("has an alias for what it stands in")
    return known[key]


def _plain(loader, _suffix, node):
    if isinstance(node, yaml.ScalarNode):
        return loader.construct_scalar(node)
    if isinstance(node, yaml.SequenceNode):
        return loader.construct_sequence(node, deep=True)
    return loader.construct_mapping(node, deep=True)


_AnyTag.add_multi_constructor("!", _plain)


def git_state(root):
    """Return {commit, dirty, diff} of the work tree that holds root, limited to root; None where
    there is none or no commit yet.

    Raises SourceError where git takes too long.
    """
    try:
        commit = git_tree.commit_of(root)
        diff, large = b"", False
        try:
            diff = git_tree.diff_of(root, LARGEST_DIFF)
        except git_tree.GitError as error:
            if error.reason != "large":
                raise
            large = True
        dirty = large or bool(diff) or git_tree.untracked(root)
    except git_tree.GitError as error:
        if error.reason == "late":
            raise SourceError(str(error)) from error
        return None
    text = "# The local changes are larger than %d bytes. They are not kept.\n" % LARGEST_DIFF
    return {
        "commit": commit,
        "dirty": dirty,
        "diff": text if large else diff.decode("utf-8", "surrogateescape"),
    }


def foreign(root):
    """Whether git refuses the tree because another account owns it."""
    try:
        git_tree.ask(root, ["rev-parse", "--git-dir"], limit=4096)
    except git_tree.GitError as error:
        return error.reason == "foreign"
    return False


def code_tree(root, cache):
    """Return (manifest entries, git state) of a code tree: what git tracks and does not ignore, or
    every file outside git (decision 9).
    """
    if not os.path.isdir(root):
        raise SourceError(f"the code is not there: {root} is no directory on the controller")
    names = manifest.git_files(root)
    return manifest.scan(root, names, cache), git_state(root) if names is not None else None


def config_chain(root, config, base_key, entries):
    """Return ([relative paths], merged values) of a suite config and the files it builds on; a
    later file wins, as in the suites.

    base_key: the key that names those files (a text or a list), or None for a suite without.

    Raises SourceError for a file that is missing from the code tree, with the near names.
    """
    order, merged = [], {}

    def visit(name, came_from):
        name = os.path.normpath(name)
        if name not in entries:
            same = [n for n in entries if n.endswith((".yml", ".yaml"))]
            said = near(name, same)
            text = (
                "%s: not in the code tree %s%s%s; the site's code has to be a checkout of the suite"
                " that has it"
            )
            raise SourceError(
                text % (name, root, f" (named by {came_from})" if came_from else "", said)
            )
        if name in order:
            return
        order.append(name)
        try:
            with open(os.path.join(root, name), encoding="utf-8") as handle:
                text = handle.read(MAX_CONFIG + 1)
            if len(text) > MAX_CONFIG or len(order) > MOST_CONFIGS:
                raise ValueError(
                    "is larger than %d bytes, or builds on more than %d files"
                    % (MAX_CONFIG, MOST_CONFIGS)
                )
            values = (
                yaml.load(text, Loader=_AnyTag) or {}
            )  # a SafeLoader that reads unknown tags as plain values
        except (yaml.YAMLError, ValueError, RecursionError) as error:
            raise SourceError(
                "{}: is not YAML: {}".format(name, " ".join(str(error).split()))
            ) from error
        if not isinstance(values, dict):
            raise SourceError(f"{name}: is not a mapping")
        bases = (values.pop(base_key, None) or []) if base_key else []
        if not isinstance(bases, (str, list)) or not all(isinstance(base, str) for base in bases):
            raise SourceError(
                f"{name}: {base_key} must be a file name or a list of them; got {bases!r}"
            )
        for base in [bases] if isinstance(bases, str) else bases:
            visit(os.path.join(os.path.dirname(name), base), name)
        merged.update(suite_table.merged(merged, values))

    visit(config, None)
    return order, merged


def find_script(suite, entries, root):
    """Return the training script's path inside the code tree; suites have moved it (contract B2)."""
    for name in suite["scripts"]:
        if name in entries:
            return name
    raise SourceError(
        "the code tree {} has none of {}; is it a checkout of {}?".format(
            root, ", ".join(suite["scripts"]), suite["title"]
        )
    )


def weight_urls(suite, effective):
    """Return {config key: URL} of the pretrained weights the job will ask for; effective: the
    config with all overrides.
    """
    found = {}
    for key in suite["config_keys"]["weights"]:
        value = suite_table.lookup(effective, key)
        if isinstance(value, str) and value.startswith(("http://", "https://")):
            found[key] = value
    return found


def weight_folder(cache_dir, url):
    """Return the folder in the controller's cache that a URL is fetched to, once."""
    return os.path.join(cache_dir, "weights", hashlib.sha256(url.encode()).hexdigest()[:16])


def weight_name(url):
    """Return the file name of a URL."""
    name = os.path.basename(re.split("[?#]", url)[0])
    return name if FILE_NAME.fullmatch(name) else "weights"


def local_weights(given, url):
    """Return the path of a URL's weights in the directory that the site names, or None where they
    are to be fetched; given: {path, placement}.

    On the controller a file that is not there is fetched; one on the nodes has to be there, and the
    probe looks. Raises SourceError for an archive on the nodes: the suites want the file in it.
    """
    if not given or not given.get("path"):
        return None
    path = os.path.join(given["path"], weight_name(url))
    if given.get("placement", "push") == "push":
        return os.path.realpath(path) if os.path.isfile(path) else None
    if path.endswith((".tar", ".tar.gz", ".tgz", ".zip")):
        text = (
            "%s comes as an archive, and the site's weights lie on the nodes: unpack it there and"
            " give its path with an override"
        )
        raise SourceError(text % url)
    return path


def unpack(path):
    """Unpack an archive beside itself and remove it; leave any other file alone. The archive is a
    stranger's: nothing in it leaves its folder.

    Most of PaddleSeg's weights are archives that its own code unpacks after its own download, and
    never from a path.
    """
    folder = os.path.dirname(path)
    try:
        _unpack(path, folder)
    except (EOFError, zlib.error, tarfile.TarError, zipfile.BadZipFile) as error:
        raise SourceError(
            f"{os.path.basename(path)} is damaged ({error}); fetch it again"
        ) from error


def _unpack(path, folder):
    is_zip = zipfile.is_zipfile(path) and path.endswith(
        ".zip"
    )  # a .pdparams may be a zip file itself
    if not is_zip and not tarfile.is_tarfile(path):
        if path.endswith((".tar", ".tar.gz", ".tgz", ".zip")):
            raise SourceError(
                f"{os.path.basename(path)} is no archive, whatever its name says; is it a page of"
                " the server's?"
            )
        return
    with zipfile.ZipFile(path) if is_zip else tarfile.open(path) as archive:
        members = archive.infolist() if is_zip else archive.getmembers()
        sizes = [member.file_size if is_zip else member.size for member in members]
        if len(sizes) > MOST_MEMBERS or sum(sizes) > download.LARGEST:
            raise SourceError(
                f"{os.path.basename(path)} unpacks to more than weights are; it was not unpacked"
            )
        for member in members:
            name = member.filename if is_zip else member.name
            if (
                os.path.isabs(name)
                or ".." in name.split("/")
                or not (is_zip or member.isfile() or member.isdir())
            ):
                raise SourceError(
                    f"{os.path.basename(path)} holds {name!r}, which is outside it or no file; it"
                    " was not unpacked"
                )
        for member in members:  # Python 3.11.2 has no filter for this
            archive.extract(member, folder)
    os.unlink(path)


def weight_file(entries, url):
    """Return the weights' path among the files that a URL brought. Raises SourceError where an
    archive holds none or several.
    """
    if weight_name(url) in entries:
        return weight_name(url)
    found = sorted(name for name in entries if name.endswith(WEIGHT_ENDINGS))
    if len(found) != 1:
        raise SourceError(
            "{} holds {}; one file ending in {} is expected".format(
                url, ", ".join(found) or "no weights", " or ".join(WEIGHT_ENDINGS)
            )
        )
    return found[0]
