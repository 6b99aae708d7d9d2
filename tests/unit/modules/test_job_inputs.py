# SPDX-License-Identifier: Apache-2.0
"""A job's inputs on the controller: code and commit, the suite's config chain, data, weights; core
and module.
"""

from __future__ import annotations

import hashlib
import http.server
import io
import json
import os
import socket
import subprocess
import tarfile
import threading
import zipfile

import pytest
from ansible_collections.trainyard.cluster.plugins.module_utils.base import manifest
from ansible_collections.trainyard.cluster.plugins.module_utils.base.files import read_json
from ansible_collections.trainyard.cluster.plugins.module_utils.suites import suite_table
from ansible_collections.trainyard.cluster.plugins.plugin_utils.config import job as jobs
from ansible_collections.trainyard.cluster.plugins.plugin_utils.inputs import (
    code_tree,
    download,
    sources,
)
from ansible_collections.trainyard.cluster.plugins.plugin_utils.live import problems
from core_support import put

CONFIG = "configs/ppyoloe/s.yml"
CODE = {
    "tools/train.py": "print(1)\n# reads pretrain_weights\n",
    CONFIG: (
        "_BASE_: ['../runtime.yml', './_base_/opt.yml']\nweights: output/s\nepoch: 300\nlr:"
        " !LearningRate {base_lr: 0.1}\n"
    ),
    "configs/ppyoloe/_base_/opt.yml": "_BASE_: '../../runtime.yml'\nepoch: 80\nsnapshot_epoch: 5\n",
    "configs/runtime.yml": "use_gpu: true\nepoch: 1\n_BASE_:\n",
}
JOB = {
    "suite": "paddledetection",
    "launcher": "paddle",
    "arguments": [],
    "overrides": {},
    "scaling": "advise",
}
SUITE = jobs.load_suite("paddledetection")


def git(root, *words):
    argv = ["git", "-C", str(root), "-c", "user.name=t", "-c", "user.email=t@example.org"] + list(
        words
    )
    environment = {"PATH": os.environ["PATH"], "HOME": str(root), "GIT_CONFIG_GLOBAL": os.devnull}
    return (
        subprocess.run(argv, check=True, capture_output=True, env=environment)
        .stdout.decode()
        .strip()
    )


@pytest.fixture
def code(tmp_path, monkeypatch):
    """A checkout outside any git work tree."""
    monkeypatch.setenv("GIT_CEILING_DIRECTORIES", str(tmp_path))
    return put(tmp_path / "code", CODE)


# --- the config chain


def chain(root, config=CONFIG):
    return sources.config_chain(root, config, "_BASE_", manifest.scan(root))


def test_a_later_file_wins_as_in_the_suites(code):
    files, values = chain(code)
    assert files == [CONFIG, "configs/runtime.yml", "configs/ppyoloe/_base_/opt.yml"]
    assert (values["epoch"], values["snapshot_epoch"], values["use_gpu"], values["lr"]) == (
        300,
        5,
        True,
        {"base_lr": 0.1},
    )


def test_the_bundled_example_is_read_as_it_is():
    root = str(os.path.join(os.path.dirname(jobs.HERE), "..", "..", "examples", "paddledetection"))
    files, values = chain(os.path.realpath(root), "configs/ppyoloe/ppyoloe_crn_s_300e_coco.yml")
    assert len(files) > 3 and isinstance(values["epoch"], int)


def test_a_circle_ends(code):
    put(code, {"configs/runtime.yml": "_BASE_: ppyoloe/s.yml\nx: 1\n"})
    assert chain(code)[1]["x"] == 1


@pytest.mark.parametrize(
    "files, config, words",
    [
        ({}, "configs/ppyoloe/m.yml", "configs/ppyoloe/m.yml: not in the code tree"),
        ({}, "configs/ppyolo/s.yml", "did you mean 'configs/ppyoloe/s.yml'?"),
        ({}, "../code/configs/runtime.yml", "not in the code tree"),
        ({CONFIG: "_BASE_: ../../../secret.yml\n"}, CONFIG, "../secret.yml: not in the code tree"),
        ({CONFIG: "_BASE_: /etc/x.yml\n"}, CONFIG, "/etc/x.yml: not in the code tree"),
        ({CONFIG: "_BASE_: gone.yml\n"}, CONFIG, "configs/ppyoloe/gone.yml: not in the code tree"),
        ({CONFIG: "_BASE_: gone.yml\n"}, CONFIG, f"(named by {CONFIG})"),
        ({CONFIG: "a: [\n"}, CONFIG, f"{CONFIG}: is not YAML"),
        ({CONFIG: "- a\n"}, CONFIG, f"{CONFIG}: is not a mapping"),
        (
            {CONFIG: "_BASE_: 5\n"},
            CONFIG,
            f"{CONFIG}: _BASE_ must be a file name or a list of them; got 5",
        ),
        ({CONFIG: "_BASE_: [1]\n"}, CONFIG, "must be a file name or a list of them"),
        ({CONFIG: "a: 2024-13-45\n"}, CONFIG, f"{CONFIG}: is not YAML"),
    ],
)
def test_a_config_that_is_not_there(code, files, config, words):
    put(code, files)
    with pytest.raises(sources.SourceError) as error:
        chain(code, config)
    assert words in str(error.value)


def test_python_tags_in_a_config_are_never_executed(code, tmp_path):
    put(code, {CONFIG: "a: !!python/object/apply:os.mkdir ['%s']\n" % (tmp_path / "ran")})
    with pytest.raises(sources.SourceError, match="is not YAML"):
        chain(code)
    assert not (tmp_path / "ran").exists()


# --- code and commit


def read_tree(root, covered=()):
    return code_tree.read(root, code_tree.list_names(root, covered), covered, None)


def test_code_outside_git_is_every_file(code):
    put(code, {"tools/__pycache__/x.pyc": "1"})
    entries, state = read_tree(code)
    assert set(entries) == set(CODE) and state is None


def test_code_in_git_has_commit_and_local_changes(code):
    git(code, "init", "-q")
    assert sources.git_state(code) is None  # no commit yet
    git(code, "add", ".")
    git(code, "commit", "-qm", "x")
    assert sources.git_state(code) == {
        "commit": git(code, "rev-parse", "HEAD"),
        "dirty": False,
        "diff": "",
        "reason": "",
    }
    put(code, {"tools/train.py": "print(2)\n", "output.log": "x", ".gitignore": "*.log\n"})
    entries, state = read_tree(code)
    assert "output.log" not in entries and state["dirty"] and "+print(2)" in state["diff"]
    git(code, "checkout", "-q", "tools/train.py")
    assert (
        sources.git_state(code)["dirty"] and sources.git_state(code)["diff"] == ""
    )  # an untracked file is sent, too
    below = read_tree(code + "/configs")
    assert (
        set(below[0]) == {"runtime.yml", "ppyoloe/s.yml", "ppyoloe/_base_/opt.yml"}
        and not below[1]["dirty"]
    )


def test_the_script_is_where_the_suite_has_put_it():
    suite = dict(SUITE, scripts=["tools/train.py", "train.py"])
    assert (
        sources.find_script(suite, {"train.py": 1}, "/x") == "train.py"
        and sources.find_script(suite, {"train.py": 1, "tools/train.py": 1}, "/x")
        == "tools/train.py"
    )
    with pytest.raises(
        sources.SourceError,
        match="/x has none of tools/train.py, train.py; is it a checkout of PaddleDetection?",
    ):
        sources.find_script(suite, {}, "/x")


@pytest.mark.parametrize(
    "values, overrides, found",
    [
        (
            {"pretrain_weights": "https://h/a.pdparams"},
            {},
            {"pretrain_weights": "https://h/a.pdparams"},
        ),
        (
            {"pretrain_weights": "https://h/a.pdparams"},
            {"pretrain_weights": "http://h/b"},
            {"pretrain_weights": "http://h/b"},
        ),
        ({"pretrain_weights": "https://h/a.pdparams"}, {"pretrain_weights": ""}, {}),
        ({"pretrain_weights": "https://h/a.pdparams"}, {"pretrain_weights": "/data/a"}, {}),
        ({"pretrain_weights": None}, {}, {}),
        ({}, {}, {}),
        ({"weights": "https://h/c"}, {}, {}),
    ],
)
def test_weights_that_come_by_url(values, overrides, found):
    assert sources.weight_urls(SUITE, suite_table.apply_overrides(values, overrides)) == found


def test_one_place_for_a_url_and_no_two_urls_in_one():
    assert sources.weight_name("https://h/v1/m.pdparams?sig=1") == "m.pdparams"
    assert (
        len(
            {
                sources.weight_folder("/c", f"https://h/{version}/m.pdparams")
                for version in ("v1", "v2")
            }
        )
        == 2
    )


# --- the module


@pytest.fixture
def web(tmp_path):
    """A web server with weights; returns its address and what was asked of it."""
    put(tmp_path / "web", {"m.pdparams": "weights"})
    asked = []

    class Handler(http.server.SimpleHTTPRequestHandler):
        def __init__(self, *args):
            super().__init__(*args, directory=str(tmp_path / "web"))

        def log_message(self, *args):
            asked.append(self.path)

    server = http.server.HTTPServer(("127.0.0.1", 0), Handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield "http://127.0.0.1:%d" % server.server_port, asked
    server.shutdown()
    server.server_close()


@pytest.fixture
def given(code, tmp_path, monkeypatch):
    """Arguments of the module for a small site."""
    for name in ("http_proxy", "HTTP_PROXY", "all_proxy", "ALL_PROXY"):
        monkeypatch.delenv(name, raising=False)
    put(tmp_path / "coco", {"annotations/a.json": "{}", "images/1.jpg": "x"})
    return {
        "suite": SUITE,
        "job": dict(JOB, config=CONFIG),
        "code": code,
        "data": {"coco": str(tmp_path / "coco")},
        "cache_dir": str(tmp_path / "cache"),
        "overrides": {},
        "weights": {"hosts": ["127.0.0.1"]},
    }


def test_module_describes_and_remembers(run_action, given, tmp_path):
    result = run_action("job_inputs", given)
    assert (
        result["changed"] is False
        and result["script"] == "tools/train.py"
        and result["config"]["files"] == chain(given["code"])[0]
        and result["config"]["epochs"] == 300
        and result["overrides"] == {"use_gpu": False}
    )
    entries = manifest.scan(given["code"])
    assert result["code"] == {
        "digest": manifest.digest(entries),
        "files": 4,
        "bytes": sum(e[1] for e in entries.values()),
        "commit": None,
        "dirty": False,
    }
    assert (
        result["data"] == {"coco": manifest.digest(manifest.scan(given["data"]["coco"]))}
        and result["weights"] == {}
        and result["code_diff"] == ""
    )
    for tree in result["trees"]:
        kept = os.path.join(given["cache_dir"], "manifests", tree["digest"])
        assert read_json(kept + ".json") == manifest.scan(tree["source"])
        with open(kept + ".files", encoding="utf-8") as handle:
            assert handle.read().splitlines() == [
                "./" + name for name in sorted(manifest.scan(tree["source"]))
            ]  # for rsync --files-from
    assert [(tree["kind"], tree["name"], tree["files"]) for tree in result["trees"]] == [
        ("code", "paddledetection", 4),
        ("data", "coco", 2),
    ]
    assert run_action("job_inputs", given) == result
    put(tmp_path / "coco", {"images/1.jpg": "y"})
    assert run_action("job_inputs", given)["data"] != result["data"]


@pytest.mark.parametrize("overrides, epochs", [({"epoch": 3}, 3), ({}, 300)])
def test_an_override_of_the_epochs_counts(run_action, given, overrides, epochs):
    assert run_action("job_inputs", dict(given, overrides=overrides))["config"]["epochs"] == epochs


def test_weights_are_fetched_once_and_shipped_as_a_tree(run_action, given, web):
    given["overrides"] = {"pretrain_weights": web[0] + "/m.pdparams"}
    checked = run_action("job_inputs", given, check=True)
    assert (
        web[1] == []
        and checked["weights"]["pretrain_weights"]["digest"] == "0" * 64
        and checked["changed"] is False
    )
    first, again = run_action("job_inputs", given), run_action("job_inputs", given)
    assert (first["changed"], again["changed"]) == (True, False) and web[1] == ["/m.pdparams"]
    weights = first["weights"]["pretrain_weights"]
    tree = first["trees"][-1]
    url = web[0] + "/m.pdparams"
    assert tree["kind"] == "weights" and tree["bytes"] > 0
    assert weights == {
        "digest": tree["digest"],
        "file": "m.pdparams",
        "url": url,
        "bytes": tree["bytes"],
    }
    assert os.listdir(tree["source"]) == ["m.pdparams"] and again["weights"] == first["weights"]


def archive(path, files):
    """Write an archive of {name: text}, whose names may be hostile."""
    if path.endswith(".zip"):
        with zipfile.ZipFile(path, "w") as made:
            for name, text in files.items():
                made.writestr(name, text)
        return
    with tarfile.open(path, "w:gz") as made:
        for name, text in files.items():
            entry = tarfile.TarInfo(name)
            entry.size = len(text)
            made.addfile(entry, io.BytesIO(text.encode()))


@pytest.mark.parametrize("name", ["stdc1.tar.gz", "stdc1.zip"])
def test_weights_in_an_archive_are_unpacked_and_named(run_action, given, web, tmp_path, name):
    """PaddleSeg's are; its code unpacks after a download of its own and never from a path."""
    archive(
        str(tmp_path / "web" / name), {"stdc1/model.pdparams": "weights", "stdc1/readme.txt": "x"}
    )
    given["overrides"] = {"pretrain_weights": web[0] + "/" + name}
    first = run_action("job_inputs", given)
    assert first["weights"]["pretrain_weights"]["file"] == "stdc1/model.pdparams"
    assert (
        os.listdir(first["trees"][-1]["source"]) == ["stdc1"]
        and run_action("job_inputs", given)["changed"] is False
    )


@pytest.mark.parametrize(
    "files, refusal",
    [
        ({"readme.txt": "x"}, "inputs.weights_ambiguous"),
        ({"a/m.pdparams": "x", "b/m.pdparams": "y"}, "inputs.weights_ambiguous"),
        ({"../out.pdparams": "x"}, "inputs.weights_refused"),
    ],
)
def test_an_archive_that_cannot_be_taken(run_action, given, web, tmp_path, files, refusal):
    archive(str(tmp_path / "web" / "a.tar.gz"), files)
    result = run_action(
        "job_inputs", dict(given, overrides={"pretrain_weights": web[0] + "/a.tar.gz"})
    )
    assert result["failed"] and result["code"] == refusal
    assert "a.tar.gz" in result["msg"] and not list(tmp_path.rglob("out.pdparams"))


def test_a_download_that_breaks_off_is_not_kept(run_action, given, tmp_path):
    class Handler(http.server.BaseHTTPRequestHandler):
        def do_GET(self):
            self.send_response(200)
            self.send_header("Content-Length", "1000")
            self.end_headers()
            self.wfile.write(b"0123456789")

        def log_message(self, *args):
            pass

    server = http.server.HTTPServer(("127.0.0.1", 0), Handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    try:
        url = "http://127.0.0.1:%d/m.pdparams" % server.server_port
        result = run_action("job_inputs", dict(given, overrides={"pretrain_weights": url}))
    finally:
        server.shutdown()
        server.server_close()
    assert (
        result["code"] == "inputs.download_failed"
        and url in result["msg"]
        and "10 of 1000 bytes" in result["msg"]
    )
    assert not os.path.exists(sources.weight_folder(given["cache_dir"], url))


@pytest.mark.parametrize(
    "content",
    [b"<html>", None],
    ids=["a page", "cut off"],
)
def test_an_archive_that_is_none(run_action, given, web, tmp_path, content):
    path = str(tmp_path / "web" / "a.tar.gz")
    archive(path, {"m/m.pdparams": os.urandom(3000).hex()})
    with open(path, "rb") as handle:
        whole = handle.read()
    with open(path, "wb") as handle:
        handle.write(content or whole[: len(whole) // 2])
    result = run_action(
        "job_inputs", dict(given, overrides={"pretrain_weights": web[0] + "/a.tar.gz"})
    )
    assert result["code"] == "inputs.weights_damaged" and "a.tar.gz" in result["msg"]


def test_weights_that_cannot_be_fetched_name_the_remedy(run_action, given, web):
    result = run_action("job_inputs", dict(given, overrides={"pretrain_weights": web[0] + "/none"}))
    assert result["code"] == "inputs.download_failed" and f"{web[0]}/none" in result["msg"]
    assert "pretrain_weights: " in result["msg"] and "controller internet" in result["msg"]


@pytest.mark.parametrize(
    "change, refusal, named",
    [
        ({"code": "/no/such/code"}, "inputs.code_missing", "/no/such/code"),
        ({"data": {"coco": "/no/such/data"}}, "inputs.data_missing", "/no/such/data"),
        (
            {"job": dict(JOB, config="configs/none.yml")},
            "inputs.config_missing",
            "configs/none.yml",
        ),
        ({"suite": dict(SUITE, scripts=["run.py"])}, "inputs.not_a_checkout", "PaddleDetection"),
    ],
)
def test_what_is_not_there(run_action, given, change, refusal, named):
    result = run_action("job_inputs", json.loads(json.dumps(dict(given, **change))))
    assert result["failed"] and result["code"] == refusal and named in result["msg"]


def test_every_problem_of_a_job_has_its_code(run_action, given):
    """The codes are in the order of the lines, as problems.describe takes them."""
    overrides = {"snapshot_epoh": 1, "save_dir": "/", "pretrain_weights": "none.pdparams"}
    result = run_action("job_inputs", dict(given, job=dict(given["job"], overrides=overrides)))
    assert result["codes"] == [
        "inputs.bad_override",
        "inputs.weights_missing",
        "inputs.bad_output",
    ], result["msg"]
    assert "save_dir: save_dir" not in result["msg"], "a key is named once"
    lines = problems.describe(result)[1:]
    assert [line.rpartition(" ")[2].strip("[]") for line in lines] == result["codes"]


# --- where weights may come from


@pytest.mark.parametrize(
    "url",
    [
        "http://example.org/m.pdparams", "https://127.0.0.1/m", "https://localhost/m", "https://[::1]/m", "https://169.254.169.254/latest/m",
        "https://[fd00:ec2::254]/m", "https://[::ffff:169.254.169.254]/m", "https://[64:ff9b::a9fe:a9fe]/m", "https://100.100.100.200/m",
        "https://0.0.0.0/m", "https://2130706433/m", "https://0x7f.1/m", "https://u:p@example.org/m", "https:///m", "https://h:x/m", "https://a b/m",
    ],
)  # fmt: skip
def test_addresses_that_are_not_fetched(run_action, given, url):
    result = run_action("job_inputs", dict(given, weights={}, overrides={"pretrain_weights": url}))
    assert result["code"] == "inputs.download_refused"
    assert not os.path.exists(sources.weight_folder(given["cache_dir"], url))
    assert ":p@" not in result["msg"]
    if url.startswith("http:"):  # said before anything is fetched
        assert run_action(
            "job_inputs", dict(given, weights={}, overrides={"pretrain_weights": url}), check=True
        )["failed"]


def test_a_name_is_checked_as_it_is_resolved(monkeypatch):
    """The first answer is harmless, the one at the connection is not."""
    answers = [("203.0.113.5", 443), ("169.254.169.254", 443)]
    monkeypatch.setattr(
        socket, "getaddrinfo", lambda *_args, **_more: [(socket.AF_INET, 1, 6, "", answers.pop(0))]
    )
    with download.refuse_private_addresses([]):
        socket.getaddrinfo("example.org", 443)
        with pytest.raises(download.Refused):
            socket.getaddrinfo("example.org", 443)
    answers[:] = [("10.0.0.5", 443), ("127.0.0.1", 443)]
    with download.refuse_private_addresses(["mirror"]):
        assert socket.getaddrinfo("intranet", 443) and socket.getaddrinfo(
            "mirror", 443
        )  # a mirror behind a router is the site's business


@pytest.mark.parametrize(
    "target", ["http://localhost:%d/m.pdparams", "file:///etc/passwd", "ftp://127.0.0.1/m"]
)
def test_a_redirect_is_checked_again(run_action, given, target):
    asked = []

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_GET(self):
            asked.append(self.path)
            self.send_response(302)
            self.send_header("Location", target % server.server_port if "%" in target else target)
            self.end_headers()

        def log_message(self, *args):
            pass

    server = http.server.HTTPServer(("127.0.0.1", 0), Handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    try:
        url = "http://127.0.0.1:%d/start" % server.server_port
        result = run_action("job_inputs", dict(given, overrides={"pretrain_weights": url}))
    finally:
        server.shutdown()
        server.server_close()
    assert (
        result["failed"]
        and asked == ["/start"]
        and not os.path.exists(sources.weight_folder(given["cache_dir"], url))
    )


def test_the_sha256_of_weights_is_compared_and_recorded(run_action, given, web):
    url = web[0] + "/m.pdparams"
    given["overrides"] = {"pretrain_weights": url}
    right = hashlib.sha256(b"weights").hexdigest()
    wrong = run_action(
        "job_inputs", dict(given, job=dict(JOB, config=CONFIG, weights={url: "0" * 64}))
    )
    assert (
        wrong["code"] == "inputs.digest_differs"
        and right in wrong["msg"]
        and not os.path.exists(sources.weight_folder(given["cache_dir"], url))
    )
    told = run_action("job_inputs", given)
    assert [line for line in told["advice"] if right in line] and read_json(sources.weight_folder(given["cache_dir"], url) + ".json") == {
        "url": url, "sha256": right,
    }  # fmt: skip
    assert not run_action(
        "job_inputs", dict(given, job=dict(JOB, config=CONFIG, weights={url: right}))
    ).get("failed")
    assert run_action(
        "job_inputs", dict(given, job=dict(JOB, config=CONFIG, weights={url: "0" * 64}))
    )["failed"]


def test_a_download_has_a_largest_size(run_action, given, web, tmp_path, monkeypatch):
    monkeypatch.setattr(download, "LARGEST_BYTES", 3)
    result = run_action(
        "job_inputs", dict(given, overrides={"pretrain_weights": web[0] + "/m.pdparams"})
    )
    assert result["code"] == "inputs.download_refused" and "more than 3 bytes" in result["msg"]


def test_a_name_that_is_no_file_name_is_not_used():
    assert {
        sources.weight_name("https://h/" + end) for end in ("..", ".", "", "-rf", "a\nb", "x#/../y")
    } == {"weights", "x"}
