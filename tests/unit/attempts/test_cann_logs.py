# SPDX-License-Identifier: Apache-2.0
"""CANN's own logs of an attempt: which of them are fetched, under which names and bounds."""

from __future__ import annotations

import json
import os
import re
from pathlib import Path

import pytest
from ansible_collections.trainyard.cluster.plugins.module_utils.attempts import (
    cann_logs,
    evidence,
)
from ansible_collections.trainyard.cluster.plugins.module_utils.base import safe_names
from core_support import attempt_files, compiled, put
from device_support import report_of

# The layout of "Viewing Logs (Ascend EP)", CANN 9.0, log reference.
LOGS = {
    "debug/plog/plog-16027_20220618001623878.log": "[ERROR] HCCL(16027,python): x\n",
    "debug/plog/plog-16027_20220617001623878.log": "older\n",
    "debug/device-0/device-16027_20220618001623878.log": "device\n",
    "run/plog/plog-16027_20220618001623878.log": "run\n",
    "security/plog/plog-16027_20220618001623878.log": "not fetched\n",
    "debug/plog/notes.txt": "not CANN's\n",
    "debug/other/plog-1_2.log": "not CANN's\n",
}


def lay(folder, files):
    """Put files below an attempt's ascend/log and return a descriptor of the attempt."""
    put(folder, {f"ascend/log/{name}": text for name, text in files.items()})
    return os.open(folder, os.O_RDONLY | os.O_DIRECTORY)


def test_the_errors_come_first_and_the_newest_of_them(tmp_path):
    root = lay(tmp_path, LOGS)
    found = dict(cann_logs.find_logs(root, "node2"))
    os.close(root)
    assert list(found) == [
        "ascend/log/debug/device-0/device-16027_20220618001623878.log",
        "ascend/log/debug/plog/plog-16027_20220618001623878.log",
        "ascend/log/debug/plog/plog-16027_20220617001623878.log",
        "ascend/log/run/plog/plog-16027_20220618001623878.log",
    ]
    assert len(set(found.values())) == 4
    assert all(safe_names.at_home("node2").fullmatch(name) for name in found.values())


def test_the_bounds(tmp_path, monkeypatch):
    many = {f"debug/plog/plog-{number}_2022.log": "1234567890" for number in range(40)}
    root = lay(tmp_path, many)
    assert len(cann_logs.find_logs(root, "node2")) == cann_logs.FILES
    monkeypatch.setattr(cann_logs, "BYTES", 35)
    assert len(cann_logs.find_logs(root, "node2")) == 3
    monkeypatch.setattr(cann_logs, "FILE_BYTES", 9)
    assert cann_logs.find_logs(root, "node2") == []
    os.close(root)


def test_links_and_pipes_are_left_out(tmp_path):
    root = lay(tmp_path, {"debug/plog/plog-1_1.log": "x"})
    folder = tmp_path / "ascend/log/debug/plog"
    (folder / "plog-2_2.log").symlink_to("/etc/passwd")
    os.mkfifo(folder / "plog-3_3.log")
    (tmp_path / "ascend/log/run").symlink_to("/var/log")
    found = [name for name, _home in cann_logs.find_logs(root, "node2")]
    os.close(root)
    assert found == ["ascend/log/debug/plog/plog-1_1.log"]


@pytest.mark.parametrize("ended_badly", [True, False])
def test_they_come_home_after_a_bad_end_alone(tmp_path, ended_badly):
    made = compiled(count=2, devices=1, accelerator="ascend", job={"launcher": "msrun"})
    attempt = Path(attempt_files(tmp_path, made, "node2"))
    os.close(lay(attempt, LOGS))
    put(attempt, {"logs.txt": ""})
    if ended_badly:
        put(attempt, {"evidence/devices.json": json.dumps(report_of())})
    homes = [item["home"] for item in evidence.collect(str(attempt), "node2")["files"]]
    fetched = [name for name in homes if re.match("cann-|devices", name)]
    assert len(fetched) == (5 if ended_badly else 0) and len(set(homes)) == len(homes)
