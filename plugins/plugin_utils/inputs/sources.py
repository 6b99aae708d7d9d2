# SPDX-License-Identifier: Apache-2.0
"""Sources of a job's inputs on the controller.

They are the code tree and its commit, the suite's config chain, data sets and weights.
"""

from __future__ import annotations

import hashlib
import os
import re
import tarfile
import zipfile
import zlib
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from typing import Any, NamedTuple, NoReturn

import yaml
from ansible_collections.trainyard.cluster.plugins.module_utils.base import git_tree
from ansible_collections.trainyard.cluster.plugins.module_utils.base.coded_error import CodedError
from ansible_collections.trainyard.cluster.plugins.module_utils.base.files import read_text
from ansible_collections.trainyard.cluster.plugins.module_utils.base.value_text import suggest
from ansible_collections.trainyard.cluster.plugins.module_utils.suites import suite_table

from . import download

# {path: [kind, size, digest]} of a tree's files.
Entries = Mapping[str, Any]
# {commit, dirty (None: unknown), diff, reason} of a work tree.
GitState = dict[str, Any]

# Endings of the suites' weights: Paddle's and MindSpore's.
WEIGHT_ENDINGS = (".pdparams", ".ckpt")
_ARCHIVE_ENDINGS = (".tar", ".tar.gz", ".tgz", ".zip")
# A URL may come from a config on a node.
FILE_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9._+=@~,%-]{0,200}")
MOST_MEMBERS = 10_000
# Characters of a program or config in which a name is searched.
MOST_CHARACTERS = 1 << 20
_WORD = re.compile(r"\w+")
# Bytes of local changes against the commit that the run's record takes.
LARGEST_DIFF = 16 << 20
# PyYAML reads about 100 kB a second. The longest config of the suites has 15 kB and the longest
# chain eight files.
MAX_CONFIG, MOST_CONFIGS = 1 << 18, 60
MAX_DEPTH, MOST_VALUES, LONGEST_NUMBER = 60, 100_000, 100
NUMBERS = ("tag:yaml.org,2002:int", "tag:yaml.org,2002:float")


class SourceError(CodedError):
    """An input that is not there or does not fit. The message names it and the remedy."""


class InputProblem(NamedTuple):
    """One problem of a job's inputs.

    code: `inputs.<reason>`, which docs/messages.md lists. text: it begins with the override that it
    is about, if it is about one.
    """

    code: str
    text: str


class InputsRefused(SourceError):
    """Several problems of a job's inputs, one per line of the message.

    codes: their message codes, in the order of the lines.
    """

    def __init__(self, codes: Sequence[str], message: str) -> None:
        super().__init__(codes[0], message)
        self.codes = list(codes)


class _ConfigLoader(yaml.SafeLoader):
    """A loader for the suites' configs, which carry tags of their own (!LearningRate).

    A tag's value is read as a plain one. A config may come from a node. Its depth is bounded while
    it is composed, and the values that its aliases stand for are counted before objects are made of
    them.
    """

    depth = 0

    def compose_node(self, parent: yaml.Node | None, index: Any) -> yaml.Node | None:
        """Compose a node. Raises YAMLError where it nests too deeply."""
        self.depth += 1
        if self.depth > MAX_DEPTH:
            raise yaml.YAMLError(f"nests deeper than {MAX_DEPTH} levels")
        node = super().compose_node(parent, index)
        self.depth -= 1
        return node

    def get_single_node(self) -> yaml.Node | None:
        """Return the top node. Raises YAMLError where it stands for too many values."""
        node = super().get_single_node()
        if node is not None and _count_values(node, {}) > MOST_VALUES:
            raise yaml.YAMLError(f"stands for more than {MOST_VALUES} values")
        return node


def _count_values(node: yaml.Node, counts: dict[int, int | None]) -> int:
    """Return how many values a node stands for, its aliases written out.

    counts: {node's id: values}, None while a node is being counted.
    """
    key = id(node)
    if key not in counts:
        counts[key] = None
        if isinstance(node, yaml.ScalarNode):
            if node.tag in NUMBERS and len(node.value) > LONGEST_NUMBER:
                raise yaml.YAMLError(f"has a number of more than {LONGEST_NUMBER} digits")
            counts[key] = 1
        else:
            counts[key] = 1 + sum(_count_values(child, counts) for child in _children(node))
    count = counts[key]
    if count is None:
        raise yaml.YAMLError("has an alias for what it stands in")
    return count


def _children(node: yaml.Node) -> Iterator[yaml.Node]:
    """Yield the nodes directly in a sequence, or the keys and values of a mapping."""
    for item in node.value:
        if isinstance(item, tuple):
            yield from item
        else:
            yield item


def _plain(loader: yaml.SafeLoader, _suffix: str, node: yaml.Node) -> Any:
    if isinstance(node, yaml.ScalarNode):
        return loader.construct_scalar(node)
    if isinstance(node, yaml.SequenceNode):
        return loader.construct_sequence(node, deep=True)
    assert isinstance(node, yaml.MappingNode)
    return loader.construct_mapping(node, deep=True)


_ConfigLoader.add_multi_constructor("!", _plain)


def git_state(root: str, exclude: Collection[str] = ()) -> GitState | None:
    """Return {commit, dirty, diff, reason} of the work tree that holds root, limited to root.

    exclude: paths that are no code. dirty and diff are None and '' where git cannot compare the
    files with the commit, as in a partial clone, and reason says why. None where there is no work
    tree or no commit yet. Raises SourceError where git takes too long.
    """
    try:
        commit = git_tree.commit_of(root)
    except git_tree.GitError as error:
        _refuse_late(error)
        return None
    try:
        dirty, diff = _changes(root, exclude)
    except git_tree.GitError as error:
        _refuse_late(error)
        reason = (
            "git cannot compare the files with the commit, as in a partial clone that lacks files"
            f" of it ({error.detail or error})"
        )
        return {"commit": commit, "dirty": None, "diff": "", "reason": reason}
    return {"commit": commit, "dirty": dirty, "diff": diff, "reason": ""}


def _refuse_late(error: git_tree.GitError) -> None:
    """Raise SourceError where git took too long."""
    if error.reason == "late":
        raise SourceError("inputs.git_late", str(error)) from error


def _changes(root: str, exclude: Collection[str]) -> tuple[bool, str]:
    """Return (whether there are local changes, the changes as text). Raises GitError."""
    try:
        diff = git_tree.diff_of(root, LARGEST_DIFF, exclude)
    except git_tree.GitError as error:
        if error.reason != "large":
            raise
        text = f"# The local changes are larger than {LARGEST_DIFF} bytes. They are not kept.\n"
        return True, text
    dirty = bool(diff) or git_tree.untracked(root, exclude)
    return dirty, diff.decode("utf-8", "surrogateescape")


def is_foreign(root: str) -> bool:
    """Return whether git refuses the tree because another account owns it."""
    try:
        git_tree.ask(root, ["rev-parse", "--git-dir"], limit=4096)
    except git_tree.GitError as error:
        return error.reason == "foreign"
    return False


def name_search(root: str, entries: Entries) -> Callable[[str], bool]:
    """Return a function that says whether the code's programs or configs have a name as a word.

    root: the code's directory. entries: its files by their path. The files are read when the first
    name is asked for. A name that is no single word counts as found.
    """
    paths = [name for name in entries if name.endswith((".py", ".yml", ".yaml"))]
    words: set[str] = set()

    def has_name(name: str) -> bool:
        if not words:
            for path in paths:
                words.update(_WORD.findall(read_text(os.path.join(root, path), MOST_CHARACTERS)))
        return name in words or not _WORD.fullmatch(name)

    return has_name


def config_chain(
    root: str, config: str, base_key: str | None, entries: Entries
) -> tuple[list[str], dict[str, Any]]:
    """Return ([relative paths], merged values) of a config and the files below it.

    The files below a config are those that it builds on. A later file wins, as in the suites.
    base_key: the key that names those files (a text or a list), or None for a suite without. Raises
    SourceError for a file that is missing from the code tree, with the near names.
    """
    chain = _ConfigChain(root, base_key, entries)
    chain.add(config)
    return chain.names, chain.values


class _ConfigChain:
    """The files of a suite config, each after the ones that it builds on."""

    def __init__(self, root: str, base_key: str | None, entries: Entries) -> None:
        self.root, self.base_key, self.entries = root, base_key, entries
        self.names: list[str] = []
        self.values: dict[str, Any] = {}

    def add(self, name: str, parent: str | None = None) -> None:
        """Add a file and the files that it builds on. parent: the file that names it."""
        name = os.path.normpath(name)
        if name not in self.entries:
            self._refuse_missing(name, parent)
        if name in self.names:
            return
        self.names.append(name)
        values = self._read(name)
        for base in self._bases(name, values):
            self.add(os.path.join(os.path.dirname(name), base), name)
        self.values.update(suite_table.merge(self.values, values))

    def _refuse_missing(self, name: str, parent: str | None) -> NoReturn:
        origin = ""
        if parent:
            origin = f" (named by {parent})"
        configs = [entry for entry in self.entries if entry.endswith((".yml", ".yaml"))]
        raise SourceError(
            "inputs.config_missing",
            f"{name}: not in the code tree {self.root}{origin}{suggest(name, configs)}; the site's"
            " code has to be a checkout of the suite that has it",
        )

    def _read(self, name: str) -> dict[str, Any]:
        """Return the values of one file."""
        try:
            with open(os.path.join(self.root, name), encoding="utf-8") as handle:
                text = handle.read(MAX_CONFIG + 1)
            if len(text) > MAX_CONFIG or len(self.names) > MOST_CONFIGS:
                raise ValueError(
                    f"is larger than {MAX_CONFIG} bytes, or builds on more than"
                    f" {MOST_CONFIGS} files"
                )
            # (a SafeLoader that reads unknown tags as plain values)
            values = yaml.load(text, Loader=_ConfigLoader) or {}
        except (yaml.YAMLError, ValueError, RecursionError) as error:
            reason = " ".join(str(error).split())
            raise SourceError(
                "inputs.config_unreadable", f"{name}: is not YAML: {reason}"
            ) from error
        if not isinstance(values, dict):
            raise SourceError("inputs.config_unreadable", f"{name}: is not a mapping")
        return values

    def _bases(self, name: str, values: dict[str, Any]) -> list[str]:
        """Return the names of the files that a file builds on.

        They are taken out of its values.
        """
        if not self.base_key:
            return []
        bases = values.pop(self.base_key, None) or []
        if isinstance(bases, str):
            return [bases]
        if not isinstance(bases, list) or not all(isinstance(base, str) for base in bases):
            raise SourceError(
                "inputs.config_unreadable",
                f"{name}: {self.base_key} must be a file name or a list of them; got {bases!r}",
            )
        return bases


def find_script(suite: Mapping[str, Any], entries: Entries, root: str) -> str:
    """Return the training script's path inside the code tree.

    Suites have moved it (contract B2).
    """
    for name in suite["scripts"]:
        if name in entries:
            return name
    raise SourceError(
        "inputs.not_a_checkout",
        "the code tree {} has none of {}; is it a checkout of {}?".format(
            root, ", ".join(suite["scripts"]), suite["title"]
        ),
    )


def weight_urls(suite: Mapping[str, Any], effective: Mapping[str, Any]) -> dict[str, str]:
    """Return {config key: URL} of the pretrained weights that the job will ask for.

    effective: the config with all overrides.
    """
    urls = {}
    for key in suite["config_keys"]["weights"]:
        value = suite_table.lookup(effective, key)
        if isinstance(value, str) and value.startswith(("http://", "https://")):
            urls[key] = value
    return urls


def weight_folder(cache_dir: str, url: str) -> str:
    """Return the folder in the controller's cache that a URL is fetched to, once."""
    return os.path.join(cache_dir, "weights", hashlib.sha256(url.encode()).hexdigest()[:16])


def weight_name(url: str) -> str:
    """Return the file name of a URL."""
    name = os.path.basename(re.split("[?#]", url)[0])
    if FILE_NAME.fullmatch(name):
        return name
    return "weights"


def local_weights(entry: Mapping[str, Any] | None, url: str) -> str | None:
    """Return the path of a URL's weights in the directory that the site names.

    None where they have to be fetched. entry: {path, placement}. On the controller a file that is
    not there is fetched. On the nodes it has to be there, and the probe looks for it. Raises
    SourceError for an archive on the nodes: the suites want the file in it.
    """
    if not entry or not entry.get("path"):
        return None
    path = os.path.join(entry["path"], weight_name(url))
    if entry.get("placement", "push") == "push":
        if os.path.isfile(path):
            return os.path.realpath(path)
        return None
    if path.endswith(_ARCHIVE_ENDINGS):
        raise SourceError(
            "inputs.weights_packed",
            f"{url} comes as an archive, and the site's weights lie on the nodes: unpack it there"
            " and give its path with an override",
        )
    return path


def unpack(path: str) -> None:
    """Unpack an archive beside itself and remove it. Leave any other file alone.

    The archive comes from elsewhere, so no member may lie outside its folder. Most of PaddleSeg's
    weights are archives that its own code unpacks after its own download, and never from a path.
    Raises SourceError.
    """
    try:
        _unpack(path)
    except (EOFError, zlib.error, tarfile.TarError, zipfile.BadZipFile) as error:
        raise SourceError(
            "inputs.weights_damaged",
            f"{os.path.basename(path)} is damaged ({error}); fetch it again",
        ) from error


def _unpack(path: str) -> None:
    # A .pdparams may be a zip file itself.
    if path.endswith(".zip") and zipfile.is_zipfile(path):
        with zipfile.ZipFile(path) as zipped:
            files = [(each, each.filename, each.file_size) for each in zipped.infolist()]
            _extract(zipped, files, path)
    elif tarfile.is_tarfile(path):
        with tarfile.open(path) as archive:
            rows = [(each, each.name, each.size) for each in archive.getmembers()]
            _extract(archive, rows, path)
    elif path.endswith(_ARCHIVE_ENDINGS):
        raise SourceError(
            "inputs.weights_damaged",
            f"{os.path.basename(path)} is no archive, whatever its name says; is it a page of the"
            " server's?",
        )
    else:
        return
    os.unlink(path)


def _extract(
    archive: zipfile.ZipFile | tarfile.TarFile, rows: Sequence[tuple[Any, str, int]], path: str
) -> None:
    """Extract all members of an archive into its folder, or none.

    rows: [(member, name, size in bytes)].
    """
    if (
        len(rows) > MOST_MEMBERS
        or sum(size for _member, _name, size in rows) > download.LARGEST_BYTES
    ):
        raise SourceError(
            "inputs.weights_refused",
            f"{os.path.basename(path)} unpacks to more than weights are; it was not unpacked",
        )
    for member, name, _size in rows:
        if os.path.isabs(name) or ".." in name.split("/") or not _is_file_or_folder(member):
            raise SourceError(
                "inputs.weights_refused",
                f"{os.path.basename(path)} holds {name!r}, which is outside it or no file; it was"
                " not unpacked",
            )
    for member, _name, _size in rows:  # Python 3.11.2 has no filter for this
        archive.extract(member, os.path.dirname(path))


def _is_file_or_folder(member: zipfile.ZipInfo | tarfile.TarInfo) -> bool:
    """Return whether a member is a file or folder. In a zip file every one is."""
    if isinstance(member, zipfile.ZipInfo):
        return True
    return member.isfile() or member.isdir()


def weight_file(entries: Entries, url: str) -> str:
    """Return the weights' path among the files of a download.

    Raises SourceError where an archive holds none or several.
    """
    if weight_name(url) in entries:
        return weight_name(url)
    names = sorted(name for name in entries if name.endswith(WEIGHT_ENDINGS))
    if len(names) != 1:
        raise SourceError(
            "inputs.weights_ambiguous",
            "{} holds {}; one file ending in {} is expected".format(
                url, ", ".join(names) or "no weights", " or ".join(WEIGHT_ENDINGS)
            ),
        )
    return names[0]
