# SPDX-License-Identifier: Apache-2.0
"""Which addresses the controller fetches from, when a config that a node may have written names
one.
"""

from __future__ import annotations

import io
import tarfile
import urllib.error

import pytest
from ansible_collections.trainyard.cluster.plugins.plugin_utils.inputs import download, sources
from core_support import put


@pytest.mark.parametrize(
    "address",
    [
        "127.0.0.1", "127.9.9.9", "169.254.169.254", "0.0.0.0", "0.1.2.3", "224.0.0.1", "100.100.100.200", "168.63.129.16", "::1", "::",
        "fe80::1", "fe80::1%eth0", "ff02::1", "fd00:ec2::254", "::ffff:127.0.0.1", "2002:7f00:1::", "64:ff9b::7f00:1",
    ],
)  # fmt: skip
def test_this_machine_its_link_and_its_cloud_are_private(address):
    assert download.is_private(address)


@pytest.mark.parametrize(
    "address",
    ["10.0.0.1", "192.168.1.1", "8.8.8.8", "2001:db8::1", "64:ff9b::808:808", "::ffff:8.8.8.8"],
)
def test_other_networks_are_not(address):
    assert not download.is_private(address)


@pytest.mark.parametrize(
    "url",
    [
        "http://example.org/x", "ftp://example.org/x", "file:///etc/passwd", "https:///x", "https://me:secret@example.org/x",
        "https://me@example.org/x", "https://127.0.0.1/x", "https://[::1]/x", "https://example.org:port/x", "https://example.org/a b",
        "https://example.org/\x1b", "https://ex\u00e4mple.org/x",
    ],
)  # fmt: skip
def test_what_is_not_fetched(url):
    with pytest.raises(download.Refused):
        download.validate(url, [])


def test_a_site_allows_single_hosts():
    assert download.validate("https://Example.org/x", []) == "example.org"
    assert download.validate("http://127.0.0.1/x", ["127.0.0.1"]) == "127.0.0.1"
    with pytest.raises(download.Refused):
        download.validate("https://me:secret@127.0.0.1/x", ["127.0.0.1"])


def test_redirects_are_bounded_and_never_followed_for_us():
    asked = []

    def open_url(url, **more):
        asked.append(more["follow_redirects"])
        assert len(asked) < 50, "without end"
        raise urllib.error.HTTPError(url, 302, "moved", {"Location": "https://example.org/x"}, None)

    with pytest.raises(download.Refused), download.open_checked(
        "https://example.org/", [], open_url
    ):
        pass
    assert asked == ["none"] * (download.REDIRECTS + 1)


@pytest.mark.parametrize("owner, bound", [(sources, "MOST_MEMBERS"), (download, "LARGEST_BYTES")])
def test_an_archive_is_bounded_before_it_is_unpacked(tmp_path, monkeypatch, owner, bound):
    put(tmp_path / "x", {"a": "1", "b": "2"})
    with tarfile.open(tmp_path / "w.tar", "w") as archive:
        for name in ("a", "b"):
            archive.add(tmp_path / "x" / name, "out/" + name)
    monkeypatch.setattr(owner, bound, 1)
    with pytest.raises(sources.SourceError):
        sources.unpack(str(tmp_path / "w.tar"))
    assert not (tmp_path / "out").exists()


def test_a_download_is_bounded(tmp_path, monkeypatch):
    monkeypatch.setattr(download, "LARGEST_BYTES", 10)
    with open(tmp_path / "x", "wb") as handle, pytest.raises(download.Refused):
        download.copy_body(io.BytesIO(b"x" * 11), handle)
    with open(tmp_path / "x", "wb") as handle:
        assert len(download.copy_body(io.BytesIO(b"x" * 10), handle)) == 64
    monkeypatch.setattr(download, "FREE_BYTES", 1 << 70)
    with open(tmp_path / "x", "wb") as handle, pytest.raises(OSError):
        download.copy_body(io.BytesIO(b"x"), handle)
