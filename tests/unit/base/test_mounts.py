# SPDX-License-Identifier: Apache-2.0
"""Mounted file systems."""

from __future__ import annotations

from ansible_collections.trainyard.cluster.plugins.module_utils.base import files, mounts

TABLE = """\
22 1 8:1 / / rw shared:1 - ext4 /dev/sda1 rw
30 22 0:40 /export/my\\040data /data\\040set rw shared:2 - nfs4 server:/export rw
31 30 0:41 / /data\\040set/a\\134b rw - tmpfs tmpfs rw
32 22 0:42 / /data\\040set rw - nfs4 other:/x rw
no line of a table
"""


def test_the_last_mount_on_a_point_is_visible():
    assert mounts.mount_of("/data set/x", TABLE) == ("/data set", "/", "nfs4", "other:/x")
    assert mounts.mount_of("/data set2", TABLE).point == "/"
    assert mounts.mount_of("/data set/a\\b", TABLE).kind == "tmpfs"
    assert mounts.mount_of("/x", "") == mounts.NO_MOUNT


def test_a_mount_below_a_folder_is_found(tmp_path):
    assert mounts.mount_point_in("/data set", TABLE) == "/data set"
    assert mounts.mount_point_in("/data set/a\\b", TABLE) == "/data set/a\\b"
    assert mounts.mount_point_in(str(tmp_path), TABLE) is None
    assert mounts.mount_of("/proc/self", files.read_text(mounts.TABLE)).kind == "proc"
