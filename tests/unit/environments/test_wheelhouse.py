# SPDX-License-Identifier: Apache-2.0
"""The wheelhouse's core, with the real pip and an index of files."""

from __future__ import annotations

import fcntl
import json
import os
import shutil
import subprocess
import sys

import pytest
from ansible_collections.trainyard.cluster.plugins.plugin_utils.environments import wheelhouse
from wheel_factory import make_index, make_paddle, make_source, make_wheel

PIP = [sys.executable, "-m", "pip"]
NO_PIP = [sys.executable, "-c", "raise SystemExit('pip was called')"]
PLENTY = 1 << 50


def want(**changes):
    base = {
        "digest": "a" * 16,
        "packages": {"paddlepaddle": "2.6.2", "numpy": "1.26.4"},
        "package": "paddlepaddle",
        "index_url": None,
        "python": "3.11",
        "machine": "x86_64",
        "libc": "2.36",
        "uv_version": "1.0",
    }
    return wheelhouse.Wanted(**{**base, **changes})


@pytest.fixture(scope="module")
def everything(tmp_path_factory):
    """An index (Paddle, NumPy for two Pythons and a newer glibc, uv) and a wheelhouse built from
    it; returns both directories.
    """
    base = tmp_path_factory.mktemp("everything")
    source = base / "source"
    make_index(
        base / "index",
        [
            make_paddle(source, tag="cp311-cp311-manylinux1_x86_64"),
            make_wheel(
                source,
                "numpy",
                "1.26.4",
                tag="cp311-cp311-manylinux_2_17_x86_64.manylinux2014_x86_64",
            ),
            make_wheel(source, "numpy", "2.0.0", tag="cp311-cp311-manylinux_2_39_x86_64"),
            make_wheel(source, "numpy", "1.20.0", tag="cp38-cp38-manylinux2014_x86_64"),
            make_wheel(
                source,
                "uv",
                "1.0",
                {"uv-1.0.data/scripts/uv": "binary"},
                tag="py3-none-manylinux_2_17_x86_64",
            ),
        ],
    )
    (base / "wheels").mkdir()
    with pytest.MonkeyPatch.context() as patch:
        configure(patch, base / "index")
        provide(str(base / "wheels"), want())
    return base / "index", base / "wheels"


@pytest.fixture
def index(everything, monkeypatch):
    """The index's directory; pip is configured for it."""
    configure(monkeypatch, everything[0])
    return everything[0]


@pytest.fixture
def built(everything, index, cache):
    """A cache that holds the wheelhouse already; returns what it provides."""
    shutil.copytree(everything[1], cache, dirs_exist_ok=True)
    return provide(cache, want(), NO_PIP)


def configure(monkeypatch, directory):
    for name, value in {
        "INDEX_URL": directory.as_uri(),
        "EXTRA_INDEX_URL": "",
        "FIND_LINKS": "",
        "NO_CACHE_DIR": "1",
        "CONFIG_FILE": os.devnull,
        "RETRIES": "0",
        "DEFAULT_TIMEOUT": "2",
    }.items():
        monkeypatch.setenv("PIP_" + name, value)


@pytest.fixture
def cache(tmp_path):
    (tmp_path / "wheels").mkdir()
    return str(tmp_path / "wheels")


def provide(cache, wanted, pip=PIP, free=PLENTY):
    return wheelhouse.provide(cache, wanted, pip, lambda: free)


def test_platforms_are_those_the_nodes_c_library_runs():
    tags = wheelhouse.platform_tags("x86_64", "2.17")
    assert tags[:3] == ["manylinux_2_17_x86_64", "manylinux2014_x86_64", "manylinux_2_16_x86_64"]
    assert "manylinux_2_18_x86_64" not in tags and tags[-2:] == [
        "manylinux1_x86_64",
        "linux_x86_64",
    ]
    assert "manylinux_2_28_aarch64" in wheelhouse.platform_tags("aarch64", "2.36")


def test_a_wheelhouse_is_built_once_and_then_needs_no_pip(index, cache):
    first = provide(cache, want())
    assert first["changed"] and first["packages"] == {"paddlepaddle": "2.6.2", "numpy": "1.26.4"}
    assert len(first["fetched"]) == 3 and first["needed_bytes"] > first["wheel_bytes"] > 0
    again = provide(cache, want(), NO_PIP)
    assert (again["changed"], again["fetched"], again["manifest_sha256"]) == (
        False,
        [],
        first["manifest_sha256"],
    )
    assert sorted(os.listdir(cache)) == ["a" * 16]


def test_the_wheels_are_for_the_nodes_python_not_the_controllers(index, cache):
    other = provide(cache, want(packages={"numpy": "1.20.0"}, python="3.8"))
    assert other["fetched"][0] == "numpy-1.20.0-cp38-cp38-manylinux2014_x86_64.whl"


def test_every_package_without_a_wheel_is_named_at_once(index, cache):
    with pytest.raises(wheelhouse.WheelhouseError) as error:
        provide(cache, want(packages={"numpy": "2.0.0", "paddlepaddle": "3.0", "nowhere": "1"}))
    text = str(error.value)
    (numpy,) = [line for line in text.splitlines() if "numpy==2.0.0: " in line]
    assert "Python 3.11 on x86_64 " in numpy and "(glibc 2.36)" in numpy
    assert "no wheel for" in numpy and "it offers 1.26.4" in numpy
    assert "paddlepaddle==3.0: " in text and "nowhere==1: " in text and "no version at all" in text
    assert not os.path.exists(os.path.join(cache, "a" * 16))


def test_a_newer_c_library_gets_newer_wheels(index, cache):
    assert provide(cache, want(packages={"numpy": "2.0.0"}, libc="2.39"))["changed"]


def test_the_vendors_index_is_for_paddle_alone(index, cache, tmp_path):
    make_index(
        tmp_path / "vendor", [make_paddle(tmp_path / "v", "3.0.0", "paddlepaddle-gpu", "12.6")]
    )
    packages = {"paddlepaddle-gpu": "3.0.0", "numpy": "1.26.4"}
    wanted = want(
        packages=packages, package="paddlepaddle-gpu", index_url=(tmp_path / "vendor").as_uri()
    )
    result = provide(cache, wanted)
    assert result["packages"] == {"paddlepaddle-gpu": "3.0.0", "numpy": "1.26.4"}


def test_what_the_vendor_lacks_is_not_taken_from_elsewhere(index, cache, tmp_path, monkeypatch):
    (tmp_path / "vendor").mkdir()
    monkeypatch.setenv("PIP_EXTRA_INDEX_URL", index.as_uri())
    with pytest.raises(
        wheelhouse.WheelhouseError, match=r"paddlepaddle==2\.6\.2: the index has no wheel"
    ):
        provide(cache, want(index_url=(tmp_path / "vendor").as_uri()))


def test_a_damaged_wheel_is_fetched_again_and_only_that_one(built, cache):
    damaged = os.path.join(
        cache, "a" * 16, "numpy-1.26.4-cp311-cp311-manylinux_2_17_x86_64.manylinux2014_x86_64.whl"
    )
    with open(damaged, "r+b") as handle:
        handle.write(b"x")
    again = provide(cache, want())
    assert (
        again["changed"]
        and again["fetched"] == [os.path.basename(damaged)]
        and again["reused"] == 2
    )
    assert again["manifest_sha256"] == built["manifest_sha256"]


def test_an_interrupted_build_leaves_nothing_that_counts(index, cache):
    with pytest.raises(wheelhouse.WheelhouseError):
        provide(cache, want(), [sys.executable, "-c", "import sys; sys.exit('killed')"])
    assert os.listdir(cache) == []
    os.makedirs(os.path.join(cache, ".stage-" + "b" * 16, "half"))
    assert provide(cache, want())["changed"]
    assert sorted(os.listdir(cache)) == ["a" * 16]


@pytest.fixture
def digests(everything):
    """Return {package: sha256} of the wheels that the wheelhouse is made of."""
    return {
        wheel["name"]: wheel["sha256"]
        for wheel in wheelhouse.read_manifest(str(everything[1] / ("a" * 16)))["wheels"].values()
    }


@pytest.mark.parametrize("changed", ["numpy", "uv"])
def test_a_wheel_that_its_list_does_not_allow_is_refused_by_name(index, cache, digests, changed):
    hashes = {name: ["0" * 64, digest] for name, digest in digests.items()}
    good = provide(cache, want(hashes=hashes))
    assert good["changed"] and len(good["fetched"]) == 3
    shutil.rmtree(os.path.join(cache, "a" * 16))
    with pytest.raises(wheelhouse.WheelhouseError) as error:
        provide(cache, want(hashes={**hashes, changed: ["0" * 64]}))
    assert f"{changed}==" in str(error.value) and digests[changed] in str(error.value)
    assert os.listdir(cache) == []


def test_a_wheel_of_the_cache_that_a_list_does_not_allow_is_not_used(built, cache, digests):
    hashes = {"numpy": [digests["numpy"]]}
    assert not provide(cache, want(hashes=hashes), NO_PIP)["changed"]
    for digest in (
        "a" * 16,
        "b" * 16,
    ):  # the wheelhouse itself, and another one that would take its wheels
        with pytest.raises(
            wheelhouse.WheelhouseError, match=r"numpy==1\.26\.4: the index serves a file"
        ):
            provide(cache, want(digest=digest, hashes={"numpy": ["0" * 64]}))


def test_a_wheel_that_no_list_locks_may_not_change_later(everything, cache, tmp_path, monkeypatch):
    shutil.copytree(everything[0], tmp_path / "index")
    configure(monkeypatch, tmp_path / "index")
    provide(cache, want())
    name = "numpy-1.26.4-cp311-cp311-manylinux_2_17_x86_64.manylinux2014_x86_64.whl"
    other = make_wheel(
        tmp_path / "evil",
        "numpy",
        "1.26.4",
        {"numpy.py": "evil"},
        tag=name[len("numpy-1.26.4-") : -len(".whl")],
    )
    shutil.copy(other, tmp_path / "index" / "numpy" / name)
    os.unlink(os.path.join(cache, "a" * 16, name))
    with pytest.raises(wheelhouse.WheelhouseError) as error:
        provide(cache, want())
    assert str(error.value).startswith(name + ": ") and not os.path.exists(
        os.path.join(cache, "a" * 16, name)
    )
    locked = provide(cache, want(hashes={"numpy": [wheelhouse.file_sha256(other)]}))
    assert locked["fetched"] == [name]


def test_pins_with_hashes_that_have_no_wheel_are_named_at_once(index, cache):
    packages = {"numpy": "2.0.0", "paddlepaddle": "3.0", "nowhere": "1"}
    with pytest.raises(wheelhouse.WheelhouseError) as error:
        provide(cache, want(packages=packages, hashes={"numpy": ["0" * 64], "nowhere": ["0" * 64]}))
    text = str(error.value)
    assert all(name in text for name in ("numpy==2.0.0: ", "paddlepaddle==3.0: ", "nowhere==1: "))
    assert "has no wheel" in text
    assert "it offers 1.26.4" in text and "/tmp" not in text


def test_a_source_that_its_list_does_not_allow_is_not_built(index, cache, tmp_path, monkeypatch):
    sources = tmp_path / "sources"
    make_source(sources, "seqeval", "1.2.2")
    monkeypatch.setenv("PIP_FIND_LINKS", str(sources))
    asked = want(
        packages={"seqeval": "1.2.2"}, from_source=("seqeval",), hashes={"seqeval": ["0" * 64]}
    )
    with pytest.raises(
        wheelhouse.WheelhouseError, match=r"seqeval==1\.2\.2.* which its list does not allow"
    ):
        provide(cache, asked)
    assert os.listdir(cache) == []
    good = {"seqeval": [wheelhouse.file_sha256(sources / "seqeval-1.2.2.tar.gz")]}
    assert (
        "seqeval-1.2.2-py3-none-any.whl" in provide(cache, asked._replace(hashes=good))["fetched"]
    )
    assert not provide(cache, asked._replace(hashes=good), NO_PIP)["changed"]


def test_the_manifest_that_nodes_get_does_not_hold_the_indexs_address(index, cache, tmp_path):
    make_index(tmp_path / "T0pSecret", [make_paddle(tmp_path / "v")])
    asked = want(index_url=(tmp_path / "T0pSecret").as_uri())
    provide(cache, asked)
    path = os.path.join(cache, "a" * 16, wheelhouse.MANIFEST)
    with open(path) as handle:
        text = handle.read()
    assert "T0pSecret" not in text
    # one of an earlier Trainyard is written again, without the network
    manifest = json.loads(text)
    for wheel in manifest["wheels"].values():
        wheel["index_url"] = asked.index_url if wheel.pop("index") else None
    with open(path, "w") as handle:
        json.dump(manifest, handle)
    again = provide(cache, asked, NO_PIP)
    with open(path) as handle:
        assert again["changed"] and again["fetched"] == [] and json.loads(text) == json.load(handle)


def test_wheels_of_another_wheelhouse_are_used_again(built, cache):
    other = provide(cache, want(digest="b" * 16, packages={"paddlepaddle": "2.6.2"}), NO_PIP)
    assert (other["reused"], other["fetched"]) == (2, [])


def test_wheels_for_a_newer_c_library_are_not_used_for_an_older_one(built, cache):
    assert not provide(cache, want(libc="2.39"), NO_PIP)["changed"]
    with pytest.raises(wheelhouse.WheelhouseError, match="pip was called"):
        provide(cache, want(libc="2.17"), NO_PIP)


def test_wheels_from_another_index_are_not_taken_for_the_vendors(built, cache):
    with pytest.raises(wheelhouse.WheelhouseError, match="pip was called"):
        provide(cache, want(digest="b" * 16, index_url="https://vendor.invalid/"), NO_PIP)


def test_a_package_without_a_wheel_is_built_where_its_list_says_so(
    index, cache, tmp_path, monkeypatch
):
    make_source(tmp_path / "sources" / "seqeval", "seqeval", "1.2.2")
    monkeypatch.setenv("PIP_FIND_LINKS", str(tmp_path / "sources" / "seqeval"))
    asked = want(packages={"numpy": "1.26.4", "seqeval": "1.2.2"})
    with pytest.raises(
        wheelhouse.WheelhouseError, match=r"seqeval==1\.2\.2: the index has no wheel"
    ):
        provide(cache, asked)
    made = provide(cache, asked._replace(from_source=("seqeval",)))
    assert (
        "seqeval-1.2.2-py3-none-any.whl" in made["fetched"]
        and made["packages"]["seqeval"] == "1.2.2"
    )
    other = provide(cache, asked._replace(digest="b" * 16, from_source=("seqeval",)), NO_PIP)
    assert (other["fetched"], other["reused"]) == ([], 3)  # built once


def test_a_wheel_with_compiled_code_is_not_built_for_the_nodes(index, cache, tmp_path, monkeypatch):
    make_source(tmp_path / "sources", "native", "1.0", tag="cp311-cp311-linux_x86_64")
    monkeypatch.setenv("PIP_FIND_LINKS", str(tmp_path / "sources"))
    with pytest.raises(wheelhouse.WheelhouseError, match=r"native==1\.0: has compiled code"):
        provide(cache, want(packages={"native": "1.0"}, from_source=("native",)))
    assert os.listdir(cache) == []


def test_a_source_that_cannot_be_built_is_named(index, cache):
    with pytest.raises(
        wheelhouse.WheelhouseError,
        match=r"nowhere==1 is to be built from source .*pip ended with 1",
    ):
        provide(cache, want(packages={"nowhere": "1"}, from_source=("nowhere",)))


def test_too_little_room_on_the_controller_is_refused_with_numbers(cache):
    with pytest.raises(
        wheelhouse.WheelhouseError,
        match=r"has 0\.5 GB free, fetching paddlepaddle needs about 1 GB",
    ):
        provide(cache, want(), NO_PIP, free=500_000_000)


def test_an_index_that_serves_another_package_is_refused(cache, tmp_path):
    liar = make_wheel(tmp_path / "liar", "other", "1.26.4").rename(
        tmp_path / "numpy-1.26.4-py3-none-any.whl"
    )
    stage = os.path.join(cache, "stage")
    os.makedirs(os.path.join(stage, wheelhouse.TOOLS))
    liar.rename(os.path.join(stage, liar.name))
    with pytest.raises(
        wheelhouse.WheelhouseError, match="other packages than were asked for: .*other"
    ):
        wheelhouse._finish(stage, want())


def test_an_index_out_of_reach_is_not_called_a_missing_package(cache, monkeypatch, tmp_path):
    configure(monkeypatch, tmp_path)
    monkeypatch.setenv("PIP_INDEX_URL", "http://127.0.0.1:1/simple")
    monkeypatch.setenv("PIP_RETRIES", "1")
    with pytest.raises(wheelhouse.WheelhouseError, match="cannot reach the package index"):
        provide(cache, want())


@pytest.mark.parametrize(
    "text, words",
    [
        ("/usr/bin/python3: No module named pip", "has no pip"),
        (
            (
                "ERROR: Could not install packages due to an OSError: [Errno 28] No space left on"
                " device"
            ),
            "disk is full",
        ),
        ("WARNING: x\nERROR: something else\n", "pip ended with 2: ERROR: something else"),
    ],
)
def test_reasons_of_pip_in_words(text, words):
    assert words in wheelhouse.explain(text, 2, None)


def test_two_controllers_do_not_build_at_once(cache):
    with wheelhouse.lock_cache(cache, 0):
        pass
    holder = subprocess.Popen(
        [
            sys.executable,
            "-c",
            (
                "import fcntl, sys, time; f = open(sys.argv[1], 'a'); fcntl.flock(f, 2);"
                " f.truncate(0); f.write('4711'); f.flush(); print('held', flush=True);"
                " time.sleep(60)"
            ),
            os.path.join(cache, ".lock"),
        ],
        stdout=subprocess.PIPE,
    )
    try:
        assert holder.stdout.readline() == b"held\n"
        with pytest.raises(
            wheelhouse.WheelhouseError, match=r"in use by process 4711 for 0 s"
        ), wheelhouse.lock_cache(cache, 0):
            pass
    finally:
        holder.kill()
        holder.wait()
        holder.stdout.close()
    with wheelhouse.lock_cache(cache, 0), open(
        os.path.join(cache, ".lock")
    ) as handle:  # the kernel let go
        assert handle.read().strip() == str(os.getpid())
        with pytest.raises(BlockingIOError):
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)


def test_a_manifest_of_another_format_does_not_count(built, cache):
    path = os.path.join(cache, "a" * 16, wheelhouse.MANIFEST)
    with open(path) as handle:
        manifest = json.load(handle)
    with open(path, "w") as handle:
        json.dump(dict(manifest, version=0), handle)
    assert wheelhouse.read_wheelhouse(os.path.join(cache, "a" * 16), want()) is None


def test_another_installer_version_is_brought_without_fetching_the_rest(
    built, cache, tmp_path, monkeypatch
):
    configure(monkeypatch, tmp_path / "newer")
    newer = make_wheel(
        tmp_path / "more",
        "uv",
        "1.1",
        {"uv-1.1.data/scripts/uv": "binary"},
        tag="py3-none-manylinux_2_17_x86_64",
    )
    make_index(tmp_path / "newer", [newer])
    assert provide(cache, want(uv_version="1.1"))["fetched"] == [
        "uv-1.1-py3-none-manylinux_2_17_x86_64.whl"
    ]


def test_a_token_in_the_index_stands_in_no_command_line_and_no_message(tmp_path):
    """A fake pip notes its words and its environment, and repeats the address in its error."""
    script = (
        "import json, os, sys; json.dump([sys.argv, dict(os.environ)], open(%r, 'w'));"
        " sys.exit('ERROR: no ' + os.environ['PIP_INDEX_URL'])"
    )
    pip = [sys.executable, "-c", script % str(tmp_path / "told")]
    address = "https://index.invalid/T0pSecretT0ken/simple/"
    with pytest.raises(wheelhouse.WheelhouseError) as error:
        wheelhouse.fetch(pip, str(tmp_path), ["paddlepaddle==2.6.2"], want(), address)
    words, environment = json.loads((tmp_path / "told").read_text())
    assert environment["PIP_INDEX_URL"] == address and "T0pSecret" not in " ".join(words)
    assert "T0pSecret" not in str(error.value) and "https://index.invalid" in str(error.value)
    assert "T0pSecret" not in wheelhouse.explain("Retrying (", 1, address)
    assert "hunter22" not in wheelhouse.explain(
        "ERROR: https://me:hunter22@other.invalid/ failed", 1, address
    )
    # another path of the index, and an index that pip's own configuration names
    for other in (
        "https://index.invalid/T0pSecretT0ken/files/x.whl",
        "http://mirror.invalid/T0pSecretT0ken/x",
        "https://me:T0/pSecret@x/",
    ):
        said = wheelhouse.explain(f"ERROR: HTTP error 403 while getting {other}", 1, address)
        assert "403" in said and "pSecret" not in said
