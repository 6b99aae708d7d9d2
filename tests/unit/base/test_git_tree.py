# SPDX-License-Identifier: Apache-2.0
"""Asking git about a tree runs nothing that the tree's own configuration names, and ends in bounded
time and output.
"""

from __future__ import annotations

import os
import subprocess
import time

import pytest
from ansible_collections.trainyard.cluster.plugins.module_utils.base import git_tree, manifest
from ansible_collections.trainyard.cluster.plugins.module_utils.inputs import remote_outline
from ansible_collections.trainyard.cluster.plugins.plugin_utils.inputs import (
    code_tree,
    describe,
    sources,
)
from core_support import put

PLAIN = (["status", "--porcelain"], ["diff", "HEAD"], ["ls-files", "--others"])


def git(root, *words, check=True):
    argv = ["git", "-C", str(root), "-c", "user.name=t", "-c", "user.email=t@example.org", *words]
    environment = {"PATH": os.environ["PATH"], "HOME": str(root), "GIT_CONFIG_GLOBAL": os.devnull}
    done = subprocess.run(
        argv,
        check=check,
        capture_output=True,
        env=environment,
        stdin=subprocess.DEVNULL,
        timeout=30,
    )
    return done.stdout.decode().strip()


@pytest.fixture
def trap(tmp_path, monkeypatch):
    """A repository with a local change and a program that leaves a mark; returns (root, program,
    mark).
    """
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    monkeypatch.setenv("GIT_CEILING_DIRECTORIES", str(tmp_path))
    (tmp_path / "home").mkdir()
    root, mark, program = tmp_path / "code", tmp_path / "ran", tmp_path / "program"
    put(root, {"train.py": "print(1)\n", "w.bin": "weights\n"})
    program.write_text(f"#!/bin/sh\necho \"$0 $*\" >> '{mark}'\ntimeout 0.2 cat 2> /dev/null\n")
    program.chmod(0o755)
    git(root, "init", "-q")
    git(root, "add", ".")
    git(root, "commit", "-qm", "x")
    put(root, {"train.py": "print(2)\n", "w.bin": "other\n"})
    return root, program, mark


def fsmonitor(root, program):
    git(root, "config", "core.fsmonitor", str(program))


def included(root, program):
    put(root, {".git/more": f"[core]\n\tfsmonitor = {program}\n"})
    git(root, "config", f"includeIf.gitdir:{root}/.path", "more")
    git(root, "config", "include.path", "more")


def external_diff(root, program):
    git(root, "config", "diff.external", str(program))


def diff_driver(root, program):
    put(root, {".git/info/attributes": "* diff=trap\n"})
    git(root, "config", "diff.trap.command", str(program))


def textconv(root, program):
    put(root, {".git/info/attributes": "* diff=trap\n"})
    git(root, "config", "diff.trap.textconv", str(program))


def clean_filter(root, program):
    put(root, {".git/info/attributes": "* filter=trap\n"})
    git(root, "config", "filter.trap.clean", str(program))
    git(root, "config", "filter.trap.required", "true")


def process_filter(root, program):
    put(root, {".git/info/attributes": "* filter=a.b\n"})
    git(root, "config", "filter.a.b.process", str(program))


def worktree_filter(root, program):
    git(root, "config", "extensions.worktreeConfig", "true")
    put(root, {".git/info/attributes": "* filter=trap\n"})
    git(root, "config", "--worktree", "filter.trap.clean", str(program))


def hook(root, program):
    put(root, {"hooks/post-index-change": f"#!/bin/sh\nexec '{program}'\n"})
    os.chmod(root / "hooks/post-index-change", 0o755)
    git(root, "config", "core.hooksPath", str(root / "hooks"))
    put(root, {"w.bin": "weights\n"})  # as committed, so that git writes the index anew


def submodule(root, program):
    git(root, "init", "-q", "sub")
    put(root, {"sub/a.py": "1\n"})
    git(root / "sub", "add", ".")
    git(root / "sub", "commit", "-qm", "x")
    git(root, "add", "sub")
    git(root, "commit", "-qm", "y")
    put(root, {"sub/a.py": "2\n"})
    fsmonitor(root / "sub", program)


def partial_clone(root, program):
    blob = git(root, "rev-parse", "HEAD:w.bin")
    git(root, "config", "core.repositoryFormatVersion", "1")
    git(root, "config", "extensions.partialClone", "origin")
    git(root, "config", "remote.origin.promisor", "true")
    git(root, "config", "protocol.ext.allow", "always")
    git(root, "config", "remote.origin.url", f"ext::{program}")
    os.unlink(root / ".git/objects" / blob[:2] / blob[2:])


@pytest.mark.parametrize(
    "lay",
    [
        fsmonitor,
        included,
        external_diff,
        diff_driver,
        textconv,
        clean_filter,
        process_filter,
        worktree_filter,
        hook,
        submodule,
        partial_clone,
    ],
)
def test_nothing_of_the_repository_runs(trap, lay):
    root, program, mark = trap
    lay(root, program)
    found = (
        manifest.git_files(str(root)),
        sources.git_state(str(root)),
        remote_outline.read_commit(str(root)),
    )
    assert not mark.exists(), mark.read_text()
    assert "train.py" in found[0]
    for words in PLAIN:
        git(root, *words, check=False)
    # The trap works, so the test shows something.
    assert mark.exists()


def test_a_bare_repository_in_the_tree_is_not_asked(trap, tmp_path):
    root, program, mark = trap
    bare = tmp_path / "bare"
    git(tmp_path, "clone", "-q", "--bare", str(root), str(bare))
    git(bare, "config", "core.bare", "false")
    git(bare, "config", "core.worktree", ".")
    fsmonitor(bare, program)
    assert manifest.git_files(str(bare)) is None and not mark.exists()


def test_a_tree_of_another_account_is_walked(trap):
    root, program, mark = trap
    fsmonitor(root, program)
    put(root, {".gitignore": "*.bin\n"})
    git(root, "rm", "-q", "--cached", "w.bin")
    mark.unlink(missing_ok=True)
    assert "w.bin" not in manifest.git_files(str(root)) and not sources.is_foreign(str(root))
    for path in (root, root / ".git"):
        os.chown(path, 65534, 65534)
    entries, state = code_tree.read(str(root), code_tree.list_names(str(root), ()), (), None)
    assert (
        state is None and "w.bin" in entries and sources.is_foreign(str(root)) and not mark.exists()
    )
    assert remote_outline.read_commit(str(root)) == (None, False)
    assert describe.foreign_owner_lines(
        {"outline": {}}, str(root), state
    ) and not describe.foreign_owner_lines({"outline": {}}, "/tmp", None)


def test_the_users_own_filter_still_counts(trap, tmp_path):
    """Files kept by a filter of the user's, Git LFS say, are not called changed."""
    root, _program, _mark = trap
    put(
        root,
        {".gitattributes": "*.bin filter=large\n", "train.py": "print(1)\n", "w.bin": "large\n"},
    )
    put(
        tmp_path / "home",
        {".gitconfig": '[filter "large"]\n\tclean = sed s/large/small/\n\trequired = true\n'},
    )
    own = {
        "PATH": os.environ["PATH"],
        "HOME": str(tmp_path / "home"),
        "GIT_AUTHOR_NAME": "t",
        "GIT_AUTHOR_EMAIL": "t",
    }
    own.update(GIT_COMMITTER_NAME="t", GIT_COMMITTER_EMAIL="t")
    for words in (["add", "."], ["commit", "-qm", "y"]):
        subprocess.run(["git", "-C", str(root), *words], check=True, env=own)
    git(root, "config", "filter.large.clean", "false")
    time.sleep(0.01)
    os.utime(root / "w.bin", (1, 1))  # git has to read it again
    assert remote_outline.read_commit(str(root)) == (git(root, "rev-parse", "HEAD"), False)
    assert sources.git_state(str(root))["dirty"] is False


def test_names_that_leave_the_tree_are_not_taken(trap, tmp_path, monkeypatch):
    root, _program, _mark = trap
    put(tmp_path / "outside", {"key": "secret"})
    put(root, {"folder/key": "x"})
    git(root, "add", "folder/key")
    os.unlink(root / "folder/key")
    os.rmdir(root / "folder")
    os.symlink(tmp_path / "outside", root / "folder")
    assert [name for name in manifest.git_files(str(root)) if name.startswith("folder")] == [
        "folder"
    ]
    monkeypatch.setattr(
        git_tree,
        "listed",
        lambda _root, _exclude: [
            "train.py",
            "../outside/key",
            "/etc/passwd",
            "a/../../outside/key",
        ],
    )
    assert manifest.git_files(str(root)) == ["train.py"]


def test_time_and_output_are_bounded(trap, tmp_path, monkeypatch):
    root, _program, _mark = trap
    with pytest.raises(git_tree.GitError) as error:
        git_tree.ask(str(root), ["diff", "HEAD", *git_tree.PLAIN_DIFF], limit=10)
    assert error.value.reason == "large"
    monkeypatch.setattr(sources, "LARGEST_DIFF", 10)
    state = sources.git_state(str(root))
    assert state["dirty"] and len(state["diff"]) < 200 and "print(2)" not in state["diff"]
    put(tmp_path / "bin", {"git": "#!/bin/sh\nsleep 60 & wait\n"})
    os.chmod(tmp_path / "bin/git", 0o755)
    monkeypatch.setenv("PATH", str(tmp_path / "bin"), prepend=":")
    begun = time.monotonic()
    with pytest.raises(git_tree.GitError) as error:
        git_tree.ask(str(root), ["status"], seconds=0.3)
    assert error.value.reason == "late" and time.monotonic() - begun < 10


def test_each_switch_of_git_holds_by_itself(trap, tmp_path):
    """A question that writes the index would run its hook, a look does not write, and no transport
    starts.
    """
    root, program, mark = trap
    hook(root, program)
    index = (root / ".git/index").stat().st_mtime_ns
    git_tree.is_dirty(str(root))
    assert (root / ".git/index").stat().st_mtime_ns == index
    git_tree.ask(str(root), ["update-index", "-q", "--refresh", "w.bin"])
    assert (root / ".git/index").stat().st_mtime_ns != index and not mark.exists()
    git(root, "config", "protocol.ext.allow", "always")
    with pytest.raises(git_tree.GitError):
        git_tree.ask(str(root), ["ls-remote", f"ext::{program}"])
    assert not mark.exists()


def test_a_filter_that_no_setting_can_name_is_refused(trap):
    root, _program, mark = trap
    git(root, "config", "filter.a=b.clean", "false")
    with pytest.raises(git_tree.GitError):
        git_tree.is_dirty(str(root))


def test_what_is_no_commit_is_none(trap, tmp_path, monkeypatch):
    put(tmp_path / "bin", {"git": "#!/bin/sh\necho 'main; rm -r x'\n"})
    os.chmod(tmp_path / "bin/git", 0o755)
    monkeypatch.setenv("PATH", str(tmp_path / "bin"), prepend=":")
    with pytest.raises(git_tree.GitError):
        git_tree.commit_of(str(trap[0]))


def test_git_is_ended_where_it_says_more_than_anybody_reads(trap):
    root, _program, _mark = trap
    put(root, {"%s%04d" % ("n" * 60, number): "" for number in range(2500)})
    with pytest.raises(git_tree.GitError) as error:
        git_tree.ask(str(root), ["ls-files", "--others"], limit=10, seconds=20)
    assert error.value.reason == "large"


def test_what_git_is_given_holds_no_secret_of_the_environment(trap, tmp_path, monkeypatch):
    """A fake git notes its words and its environment."""
    root, _program, _mark = trap
    put(tmp_path / "bin", {"git": "#!/bin/sh\nenv > '%s'\n" % (tmp_path / "env")})
    os.chmod(tmp_path / "bin/git", 0o755)
    monkeypatch.setenv("PATH", str(tmp_path / "bin"), prepend=":")
    for name in (
        "GIT_DIR",
        "GIT_EXTERNAL_DIFF",
        "GIT_SSH_COMMAND",
        "GIT_CONFIG_PARAMETERS",
        "MY_TOKEN",
    ):
        monkeypatch.setenv(name, "secret")
    git_tree.ask(str(root), ["status"])
    told = (tmp_path / "env").read_text()
    assert "secret" not in told and {"GIT_TERMINAL_PROMPT=0", "GIT_NO_LAZY_FETCH=1"} <= set(
        told.splitlines()
    )
