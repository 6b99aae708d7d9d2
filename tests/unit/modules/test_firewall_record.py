# SPDX-License-Identifier: Apache-2.0
"""firewall_record and root's other records: obeyed only where root alone could write them, and only
what they may hold.
"""

from __future__ import annotations

import json
import os

import firewall_record
import pytest
from ansible.module_utils.testing import patch_module_args
from ansible_collections.trainyard.cluster.plugins.module_utils.environments import root_records

GOOD = {"tool": "ufw", "peers": ["10.0.0.1", "10.1.0.0/16"], "zone": ""}


@pytest.fixture
def records(tmp_path):
    return root_records.Records("mysite", str(tmp_path / "trainyard"), os.getuid())


def test_a_record_is_read_as_it_was_written_and_leaves_nothing_behind(records, tmp_path):
    assert records.read("firewall") is None
    records.write("firewall", GOOD)
    assert records.read("firewall") == GOOD
    assert oct(os.stat(records.path("firewall")).st_mode & 0o777) == "0o644"
    records.remove("firewall")
    records.remove("firewall")
    assert records.read("firewall") is None and list(tmp_path.iterdir()) == []


def test_another_record_of_the_site_stays(records):
    records.write("firewall", GOOD)
    records.write("accounts", {"trainer": {"uid": 1000, "lingering": True}})
    records.remove("firewall")
    assert records.read("accounts") == {"trainer": {"uid": 1000, "lingering": True}}


BAD = [
    {**GOOD, "tool": "/home/trainer/firewalld"},
    {**GOOD, "tool": "../../../tmp/x"},
    {**GOOD, "tool": "UFW"},
    {**GOOD, "peers": ["0.0.0.0/0"]},
    {**GOOD, "peers": ["10.0.0.1\n"]},
    {**GOOD, "peers": ["10.0.0.1 -j ACCEPT"]},
    {**GOOD, "peers": ["300.0.0.1"]},
    {**GOOD, "peers": ["::/1"]},
    {**GOOD, "peers": "10.0.0.1"},
    {**GOOD, "peers": [{"a": 1}]},
    {**GOOD, "peers": ["10.0.0.1"] * 5000},
    {**GOOD, "zone": 'x" accept'},
    {**GOOD, "zone": "x\n"},
    {**GOOD, "more": 1},
    {"tool": "ufw", "peers": []},
    ["ufw"],
    None,
]


@pytest.mark.parametrize("record", BAD)
def test_a_record_with_another_value_is_neither_obeyed_nor_written(records, record):
    with pytest.raises(root_records.RecordError):
        records.write("firewall", record)
    records.write("firewall", GOOD)
    with open(records.path("firewall"), "w") as handle:
        json.dump(record, handle)
    with pytest.raises(root_records.RecordError):
        records.read("firewall")


@pytest.mark.parametrize(
    "record",
    [
        {"../x": {"uid": 1000, "lingering": True}},
        {"-x": {"uid": 1000, "lingering": True}},
        {"x": {"uid": "1000/../0", "lingering": True}},
        {"x": {"uid": True, "lingering": True}},
        {"x": {"uid": -1, "lingering": True}},
        {"x": {"uid": 1000, "lingering": "yes"}},
        {"x": {"uid": 1000}},
        {"x": 1},
        [],
    ],
)
def test_a_record_of_accounts_with_another_value_is_not_obeyed(records, record):
    with pytest.raises(root_records.RecordError):
        records.write("accounts", record)


@pytest.mark.parametrize("text", ["", "{", "[" * 100000, '"x"', "\xff", " " * (1 << 20) + "{}"])
def test_a_record_that_is_none_is_not_obeyed(records, text):
    records.write("firewall", GOOD)
    with open(records.path("firewall"), "wb") as handle:
        handle.write(text.encode("latin-1"))
    with pytest.raises(root_records.RecordError):
        records.read("firewall")


def writable(records):
    os.chmod(records.path("firewall"), 0o666)


def writable_folder(records):
    os.chmod(records.folder, 0o777)


def writable_base(records):
    os.chmod(records.base, 0o775)


def link(records):
    os.rename(records.path("firewall"), records.path("other"))
    os.symlink("other.json", records.path("firewall"))


def linked_folder(records):
    os.rename(records.folder, records.folder + "-2")
    os.symlink("mysite-2", records.folder)


def pipe(records):
    os.unlink(records.path("firewall"))
    os.mkfifo(records.path("firewall"), 0o644)
    os.write(os.open(records.path("firewall"), os.O_RDWR), json.dumps(GOOD).encode())


def other_owner(records):
    records.owner += 1


@pytest.mark.parametrize(
    "spoil", [writable, writable_folder, writable_base, link, linked_folder, pipe, other_owner]
)
def test_a_record_that_others_could_have_written_is_not_obeyed(records, spoil):
    records.write("firewall", GOOD)
    spoil(records)
    with pytest.raises(root_records.RecordError):
        records.read("firewall")


@pytest.mark.parametrize("site", ["../x", "", ".", "a/b", "-", "a\n"])
def test_a_site_is_one_part_of_a_path(site):
    with pytest.raises(root_records.RecordError):
        root_records.Records(site)


def call(monkeypatch, capsys, records, **given):
    """Run the module on records in a folder; return its answer."""
    monkeypatch.setattr(root_records, "Records", lambda site: records)
    with patch_module_args({"site": "mysite", **given}), pytest.raises(SystemExit):
        firewall_record.main()
    return json.loads(capsys.readouterr().out)


def test_the_module_writes_once_and_gives_the_record_before(monkeypatch, capsys, records):
    assert (
        call(monkeypatch, capsys, records, state="present", _ansible_check_mode=True, **GOOD)[
            "changed"
        ]
        is True
    )
    assert records.read("firewall") is None, "a look writes nothing"
    answer = call(monkeypatch, capsys, records, state="present", **GOOD)
    assert (answer["changed"], answer["record"]) == (True, None)
    answer = call(monkeypatch, capsys, records, state="present", **GOOD)
    assert (answer["changed"], answer["record"]) == (False, GOOD)
    assert call(monkeypatch, capsys, records)["record"] == GOOD
    assert (
        call(monkeypatch, capsys, records, state="present", **dict(GOOD, peers=["0.0.0.0/0"]))[
            "failed"
        ]
        is True
    )
    assert call(monkeypatch, capsys, records, state="absent")["changed"] is True
    assert records.read("firewall") is None
