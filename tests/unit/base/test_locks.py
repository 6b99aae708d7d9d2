# SPDX-License-Identifier: Apache-2.0
"""Locks between processes."""

from __future__ import annotations

import errno
import os
import subprocess
import sys
import time

import pytest
from ansible_collections.trainyard.cluster.plugins.module_utils.base import locks

HOLDER = """
import fcntl, os, sys
handle = os.open(sys.argv[1], os.O_RDWR | os.O_CREAT, 0o600)
fcntl.flock(handle, fcntl.LOCK_EX)
print("held", flush=True)
sys.stdin.read()
"""


@pytest.fixture
def holder(tmp_path):
    """A process that holds the lock of tmp_path/lock until its input ends."""
    process = subprocess.Popen(
        [sys.executable, "-c", HOLDER, str(tmp_path / "lock")],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    )
    process.stdout.readline()
    yield process
    process.kill()
    process.wait()


def test_a_lock_of_another_process_is_waited_for_and_goes_with_it(tmp_path, holder):
    path = str(tmp_path / "lock")
    assert locks.is_locked(path)
    started = time.monotonic()
    with pytest.raises(locks.Locked), locks.lock_file(path, seconds=0.3):
        raise AssertionError("the lock of another process was taken")
    assert time.monotonic() - started >= 0.3
    holder.kill()
    with locks.lock_file(path, seconds=20) as descriptor:
        assert os.fstat(descriptor).st_mode & 0o777 == 0o600 and locks.is_locked(path)
    assert not locks.is_locked(path)


def test_a_file_system_that_cannot_tell_counts_as_locked(tmp_path, monkeypatch):
    def flock(_descriptor, _operation):
        raise OSError(errno.ENOLCK, "no locks available")

    (tmp_path / "lock").touch()
    assert not locks.is_locked(tmp_path / "lock")
    monkeypatch.setattr(locks.fcntl, "flock", flock)
    assert locks.is_locked(tmp_path / "lock")


def test_a_lock_is_no_link_to_another_file(tmp_path):
    (tmp_path / "lock").symlink_to("other")
    with pytest.raises(OSError), locks.lock_file(str(tmp_path / "lock")):
        raise AssertionError("a link was followed")
    assert not (tmp_path / "other").exists()


def test_a_directory_is_locked_as_well(tmp_path):
    first, second = os.open(tmp_path, os.O_RDONLY), os.open(tmp_path, os.O_RDONLY)
    assert locks.try_lock(first) and not locks.try_lock(second)
    locks.unlock(first)
    assert locks.try_lock(second)
    os.close(first)
    os.close(second)
