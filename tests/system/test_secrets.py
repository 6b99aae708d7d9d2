# SPDX-License-Identifier: Apache-2.0
"""A canary in everything that the product shows. Secret values must not be visible, and text must
stay text. Both go through Ansible itself.

The nodes here are directories of this machine. molecule/logs/test_keep.py tests the same with a
training on real nodes.
"""

from __future__ import annotations

import base64
import functools
import http.server
import json
import os
import pathlib
import re
import shutil
import subprocess
import sys
import threading

import attempt
import core_support
import pytest
import yaml
from ansible_collections.trainyard.cluster.plugins.module_utils.plan import compiler as plans
from ansible_collections.trainyard.cluster.plugins.plugin_utils.config import site_fields
from ansible_collections.trainyard.cluster.plugins.plugin_utils.plan import render
from core_support import ROOT, RUN, compiled, modes, program, put
from system.test_playbooks import ANSIBLE, COCO, JOB, site

# Made of pieces, so that no file holds the shape of a token. By name: sounds secret, is marked by
# the site, is in a URL, is an override.
CANARIES = {
    "MY_TOKEN": "canary-by-name-1",
    "WANDB_LOGIN": "canary-marked-2",
    "MULTI": "canary-first-line-3\ncanary-second-line-4",
    "http_proxy": "http://joe:canary-proxy-5@proxy.example:3128",
    "override": "canary-override-6",
    "shape": "gh" + "p_" + "CaNaRy77" * 5,
    "dumped": "canary-of-the-login-shell-8",
    "index": "canary-index-9",
}
HIDDEN = [value for key, value in CANARIES.items() if key not in ("MULTI", "http_proxy")] + [
    "canary-first-line-3",
    "canary-second-line-4",
    "canary-proxy-5",
]
JINJA = "{{ 1234577 * 7654337 }} {% raw %} {{ lookup('pipe', 'echo pw' ~ 'ned') }}"
HOSTILE = "\x1b]0;owned\x07\x1b[2J\u202e\x9b31m"
LOG = """[11/20 19:15:23] ppdet.engine INFO: Epoch: [0] [ 0/48] learning_rate: 0.000000 loss: 8.857114 eta: 0:01:13 batch_cost: 1.2 ips: 3.3 images/s
using %(shape)s and %(MY_TOKEN)s
Traceback (most recent call last):
  File "train.py", line 1, in main
%(padding)s%(WANDB_LOGIN)s
ValueError: login %(WANDB_LOGIN)s by %(MY_TOKEN)s with %(shape)s: %(first)s at %(override)s by %(proxy)s, %(dumped)s """
PLAY = """
- hosts: localhost
  gather_facts: false
  tasks:
    - rank_logs_info: {attempt_dir: "%(attempt)s", node: node1}
      register: collect_logs
    - attempt_monitor: {run_id: %(run)s, node: node1, base: "%(base)s"}
      register: look
    - ansible.builtin.debug: {msg: "{{ look }}"}
    - log_index: {run_dir: "%(home)s/attempt-1", results: {node1: "{{ collect_logs }}"}}
      ignore_errors: true
    - run_record: {state: ended, runs_dir: "%(runs)s", run_id: %(run)s, nodes: ["{{ collect_logs }}"]}
      register: record
    - run_metrics: {runs_dir: "%(runs)s", run_id: %(run)s, directory: "%(folder)s"}
    - run_report: {runs_dir: "%(runs)s", run: %(run)s, assets: "%(root)s/roles/report"}
      vars: {ansible_python_interpreter: "{{ ansible_playbook_python }}"}
    - ansible.builtin.set_fact: {kept: "{{ record.verdict.text }}", all_of_it: "{{ collect_logs }}"}
    - ansible.builtin.debug: {msg: "{{ kept }} and {{ record.summary }}"}
    - ansible.builtin.debug: {var: all_of_it}
    - ansible.builtin.fail: {msg: "{{ record.verdict.text }}"}
"""


def run_ansible(folder, *words):
    """Run ansible-playbook with -vvv in the project; return (exit code, raw output)."""
    environment = dict(
        os.environ, ANSIBLE_LOCAL_TEMP=os.path.join(folder, "tmp"), ANSIBLE_NOCOLOR="1", HOME=folder
    )
    environment["PATH"] = os.path.join(folder, "bin") + ":" + environment["PATH"]
    done = subprocess.run(
        [ANSIBLE, "-vvv", *words],
        cwd=str(ROOT),
        env=environment,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        timeout=120,
    )
    return done.returncode, done.stdout.decode("utf-8", "replace")


def leaks(text):
    """Return the canaries in a text, as they are and as JSON or Python would write them."""
    return [value for value in HIDDEN if value in text or value in text.replace("\\", "")]


def canary_plan():
    """Return a plan with the canaries, as the product compiles it."""
    made = compiled(count=1, devices=1, job={"overrides": {"logger.api_key": CANARIES["override"]}})
    made["env"].update(
        {key: CANARIES[key] for key in ("MY_TOKEN", "WANDB_LOGIN", "MULTI", "http_proxy")}
    )
    return dict(made, secret_env=["WANDB_LOGIN", "MULTI"])


@pytest.fixture(scope="module")
def ended(tmp_path_factory):
    """A run whose rank raised with canaries and hostile text in its message, judged and recorded:
    (exit code, output, folder).
    """
    folder = str(tmp_path_factory.mktemp("ended"))
    there, made = os.path.join(folder, "base/runs", RUN, "attempt-1"), canary_plan()
    log = LOG % dict(
        CANARIES, first=CANARIES["MULTI"].split("\n")[0], proxy="canary-proxy-5", padding="x" * 390
    )
    text = plans.canonical_bytes(made).decode("ascii")
    put(
        there,
        {
            "plan.json": text,
            "log/workerlog.0": log + JINJA + HOSTILE + "\n",
            "logs.txt": log + JINJA + HOSTILE + "\n",
        },
    )
    dump = "environ({{'CI_TOKEN': '{}'}})\n".format(CANARIES["dumped"])
    events = [
        {"event": "start", "rank": 0, "pid": 7, "time": 1.0},
        {"event": "end", "rank": 0, "pid": 7, "exit_code": 1, "time": 2.0},
    ]
    put(
        there,
        {
            "log/default.abc.log": dump,
            "ranks.jsonl": "".join(json.dumps(event) + "\n" for event in events),
        },
    )
    put(
        there,
        {
            "exit.json": json.dumps(
                {
                    "service_result": "exit-code",
                    "exit_code": "exited",
                    "exit_status": "1",
                    "stopped_by": None,
                    "time": 3.0,
                }
            )
        },
    )
    put(
        there,
        {
            "attempt.json": json.dumps(
                {
                    "run": RUN,
                    "unit": f"trainyard-{RUN}-1.service",
                    "node": "node1",
                    "started": 0.5,
                }
            )
        },
    )
    home = os.path.join(folder, "runs", RUN)
    put(home, {"plan.json": text})
    for file, name in (
        ("log/workerlog.0", "log/workerlog.0"),
        ("logs.txt", "logs.txt"),
        ("ranks.jsonl", "ranks.jsonl"),
        ("exit.json", "exit.json"),
    ):
        with open(os.path.join(there, file), encoding="utf-8") as handle:
            put(home, {"attempt-1/.incoming/node1/" + name: handle.read()})
    words = {
        "attempt": there,
        "run": RUN,
        "base": os.path.join(folder, "base"),
        "home": home,
        "runs": os.path.join(folder, "runs"),
        "folder": folder,
        "root": str(ROOT),
    }
    put(
        folder,
        {
            "play.yml": PLAY % words,
            "hosts": (
                f"localhost ansible_connection=local ansible_python_interpreter={sys.executable}\n"
            ),
        },
    )
    code, output = run_ansible(
        folder, "-i", os.path.join(folder, "hosts"), os.path.join(folder, "play.yml")
    )
    return code, output, folder


def test_nothing_secret_is_shown_of_a_run_that_failed(ended):
    code, output, _folder = ended
    assert (
        code != 0
        and "FAILED: rank 0 on node1 (local rank 0) raised ValueError: login ******** by ********"
        in " ".join(output.split())
    ), output
    assert leaks(output) == []


def test_nothing_secret_is_recorded_of_it_and_the_raw_log_stays_as_it_is(ended):
    folder = os.path.join(ended[2], "runs", RUN)
    with open(os.path.join(folder, "attempt-1/rank-000.node1.log"), encoding="utf-8") as handle:
        # The raw log stays raw.
        assert leaks(handle.read())
    for name in ("run.json", "attempt-1/ranks.json", "report.html", "metrics.prom"):
        with open(os.path.join(folder, name), encoding="utf-8") as handle:
            text = handle.read()
        # A reader of the raw log on the controller knows the environment of the plan. Only the node
        # knows its own environment.
        unknown = [CANARIES["dumped"]] if name == "report.html" else []
        assert ("ValueError" in text or name == "metrics.prom") and set(leaks(text)) <= set(
            unknown
        ), name


def test_what_others_may_read_holds_no_secret(ended):
    """The copy of the figures for the node exporter is the only file that all users may read."""
    open_to_all = [
        path for path in pathlib.Path(ended[2]).glob("*.prom") if path.stat().st_mode & 0o004
    ]
    assert open_to_all and all(
        leaks(path.read_text(encoding="utf-8")) == [] for path in open_to_all
    )


def test_what_a_terminal_obeys_does_not_reach_it(ended):
    output = ended[1]
    assert "\\x1b]0;owned" in output or "\\\\x1b]0;owned" in output
    # No control character gets through.
    assert not re.search("[\x00-\x08\x0b-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069]", output)


def test_a_template_in_a_log_is_text_all_the_way(ended):
    flat = " ".join(ended[1].split())
    assert (
        flat.count("{{ 1234577 * 7654337 }} {% raw %}") >= 4
        and "9449868410449" not in flat
        and "pwned" not in flat
    )


def test_nobody_else_reads_a_file_of_the_run(ended):
    """plan.json arrived with the mode that its writer gave it, as with fetch."""
    found = modes(os.path.join(ended[2], "runs", RUN))
    assert (
        len(found) > 5 and {name: oct(mode) for name, mode in found.items() if mode & 0o077} == {}
    )


# --- before a start


@pytest.fixture(scope="module")
def checked(tmp_path_factory):
    """The plan of a job with canaries, printed by train.yml --check -vvv: (exit code, output)."""
    folder = str(tmp_path_factory.mktemp("checked"))
    job = yaml.safe_load(JOB)
    job["env"] = {"MY_TOKEN": CANARIES["MY_TOKEN"], "SHAPE": CANARIES["shape"]}
    job["overrides"] = dict(job.get("overrides") or {}, **{"logger.api_key": CANARIES["override"]})
    put(folder, dict(COCO, **{"mine.yml": yaml.safe_dump(job)}))
    env = {key: CANARIES[key] for key in ("WANDB_LOGIN", "http_proxy")}
    # A logger of the user's own, which the code reads: else nothing reads the key.
    code = os.path.join(folder, "code")
    shutil.copytree(ROOT / "examples" / "paddledetection", code)
    put(code, {"mylogger.py": "api_key = None\n"})
    more = {
        "trainyard_env": env,
        "trainyard_secret_env": ["WANDB_LOGIN"],
        "ansible_python_interpreter": sys.executable,
    }
    inventory = site(folder, **more)
    with open(inventory, encoding="utf-8") as handle:
        put(
            folder,
            {
                "hosts.yml": (
                    handle.read()
                    .replace(
                        "environment: {",
                        "environment: {{index_url: 'http://127.0.0.1:1/{}/simple', ".format(
                            CANARIES["index"]
                        ),
                    )
                    .replace(
                        "environment:\n",
                        "environment:\n          index_url: 'http://127.0.0.1:1/{}/simple'\n".format(
                            CANARIES["index"]
                        ),
                    )
                    .replace("ansible_connection: ssh", "ansible_connection: local")
                    .replace(str(ROOT / "examples" / "paddledetection"), code)
                    .replace("198.51.100.0/24", "0.0.0.0/0")
                )
            },
        )
    words = [
        "-e",
        f"config={folder}/mine.yml",
        "-e",
        "nodes=1",
        "-e",
        "trainyard_home=.trainyard",
    ]
    return run_ansible(folder, "-i", inventory, "playbooks/train.yml", "--check", *words)


def test_the_plan_is_shown_without_secrets_however_verbose(checked):
    _code, output = checked
    assert "on every node:" in output, output[-5000:]
    for words in (
        "MY_TOKEN=********",
        "WANDB_LOGIN=********",
        "SHAPE=********",
        "http://********@proxy.example:3128",
        "logger.api_key=********",
    ):
        assert words in output, words
    assert leaks(output) == []


def test_a_token_in_the_indexs_path_is_shown_by_no_message_and_no_result(
    checked, tmp_path, monkeypatch
):
    """The task of provisioning itself runs with -vvv and an index that does not answer. The test
    also covers what the site's tasks show of it before a start.
    """
    assert CANARIES["index"] not in checked[1]
    environment = {
        "package": "paddlepaddle",
        "version": "2.6.2",
        "index_url": "http://127.0.0.1:1/{}/simple".format(CANARIES["index"]),
    }
    node = {
        "python": "3.11",
        "machine": "x86_64",
        "libc": "2.36",
        "home": "/home/t/.trainyard",
        "free_bytes": 1 << 50,
        "environments": {},
    }
    task = {
        "environment": environment, "nodes": {"node1": node}, "cache_dir": str(tmp_path / "cache"),
        "files_dir": str(tmp_path),
        "project_dir": str(tmp_path), "uv_version": "1.0",
    }  # fmt: skip
    play = [{"hosts": "localhost", "gather_facts": False, "tasks": [{"wheelhouse": task}]}]
    hosts = f"localhost ansible_connection=local ansible_python_interpreter={sys.executable}\n"
    put(str(tmp_path), {"play.yml": yaml.safe_dump(play), "hosts": hosts})
    for name, value in {
        "INDEX_URL": tmp_path.as_uri(),
        "EXTRA_INDEX_URL": "",
        "RETRIES": "1",
        "DEFAULT_TIMEOUT": "2",
    }.items():
        monkeypatch.setenv("PIP_" + name, value)
    code, output = run_ansible(
        str(tmp_path), "-i", str(tmp_path / "hosts"), str(tmp_path / "play.yml")
    )
    assert code != 0 and "cannot reach http://127.0.0.1:1" in " ".join(output.split()), output
    assert CANARIES["index"] not in output


class Guarded(http.server.SimpleHTTPRequestHandler):
    """A git repository of files that asks for a login."""

    def do_GET(self):
        if self.headers.get("Authorization") == self.server.login:
            return super().do_GET()
        self.server.refused += 1
        self.send_response(401)
        self.send_header("WWW-Authenticate", 'Basic realm="git"')
        self.send_header("Content-Length", "0")
        self.end_headers()
        return None

    def log_message(self, *words):
        pass


@pytest.fixture
def private_git(tmp_path):
    """The address of a repository with one training script, on loopback, for joe and his token."""
    work = tmp_path / "work"
    shutil.copytree(ROOT / "examples" / "paddledetection", work)
    author = ["-c", "user.name=x", "-c", "user.email=x@x.invalid"]
    for words in (
        ["init", "-q", "-b", "main"],
        ["add", "-A"],
        [*author, "commit", "-q", "-m", "x"],
    ):
        subprocess.run(["git", *words], cwd=work, check=True)
    subprocess.run(
        ["git", "clone", "-q", "--bare", str(work), str(tmp_path / "repo.git")], check=True
    )
    subprocess.run(["git", "update-server-info"], cwd=tmp_path / "repo.git", check=True)
    server = http.server.ThreadingHTTPServer(
        ("127.0.0.1", 0), functools.partial(Guarded, directory=str(tmp_path))
    )
    server.login = "Basic " + base64.b64encode(("joe:" + CANARIES["MY_TOKEN"]).encode()).decode()
    server.refused = 0
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield server
    server.shutdown()
    server.server_close()


@pytest.mark.parametrize("way", ["helper", "netrc", "askpass", "none"])
def test_a_private_git_is_read_with_the_login_of_the_controllers_account(
    private_git, tmp_path, monkeypatch, way
):
    folder, url = str(tmp_path / "home"), "http://127.0.0.1:%d" % private_git.server_port
    token, log = CANARIES["MY_TOKEN"], tmp_path / "words"
    put(folder, COCO)
    put(
        folder,
        {"bin/git": '#!/bin/sh\necho "$@" >> {}\nexec {} "$@"\n'.format(log, shutil.which("git"))},
    )
    os.chmod(os.path.join(folder, "bin/git"), 0o755)
    if way == "helper":
        put(
            folder,
            {
                ".gitconfig": "[credential]\n\thelper = store\n",
                ".git-credentials": url.replace("://", f"://joe:{token}@") + "\n",
            },
        )
    if way == "netrc":
        put(folder, {".netrc": f"machine 127.0.0.1 login joe password {token}\n"})
    if way == "askpass":
        put(
            folder,
            {
                "token": token,
                "ask": '#!/bin/sh\ncase "$1" in User*) echo joe ;; *) cat "$HOME/token" ;; esac\n',
            },
        )
        os.chmod(os.path.join(folder, "ask"), 0o700)
        monkeypatch.setenv("GIT_ASKPASS", os.path.join(folder, "ask"))
    inventory = site(folder, ansible_python_interpreter=sys.executable)
    with open(inventory, encoding="utf-8") as handle:
        hosts = yaml.safe_load(handle)
    hosts["trainers"]["vars"]["trainyard_suites"]["paddledetection"]["code"] = {
        "git": url + "/repo.git",
        "version": "main",
    }
    put(folder, {"hosts.yml": yaml.safe_dump(hosts), "mine.yml": JOB})
    _code, output = run_ansible(
        folder,
        "-i",
        inventory,
        "playbooks/train.yml",
        "--check",
        "-e",
        f"config={folder}/mine.yml",
    )
    fetched = list(pathlib.Path(folder).rglob(".git/config"))
    assert private_git.refused and bool(fetched) is (way != "none"), output
    assert way != "none" or "terminal prompts disabled" in output
    assert token not in output and token not in log.read_text()
    for path in pathlib.Path(folder).rglob("*"):
        if path.is_file() and path.name not in (".git-credentials", ".netrc", "token"):
            assert token.encode() not in path.read_bytes(), path


def test_a_node_does_not_repeat_the_plan_that_it_was_given(run_module, tmp_path, monkeypatch):
    """With -vvv Ansible's ssh prints the whole answer of a module on a node."""
    monkeypatch.setenv(
        "PATH", program(tmp_path / "bin", "systemctl", "exit 0") + ":" + os.environ["PATH"]
    )
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))
    text = plans.canonical_bytes(canary_plan()).decode("ascii")
    arguments = {
        "state": "started",
        "run_id": RUN,
        "node": "node1",
        "base": str(tmp_path),
        "plan": text,
        "plan_sha256": "0" * 64,
        "agent": "",
    }
    result = run_module(attempt, arguments, check=True)
    assert result["changed"] is True
    assert "invocation" not in result and leaks(json.dumps(result)) == []


def test_the_plan_s_lines_alone_hold_no_secret():
    """The callback masks them once more. They are in a result that other users may read."""
    made = canary_plan()
    made["env"].update(MULTI="1 2", DB_PASSWORD="3 4")  # too short to be looked for
    lines = render.summary(made, dict.fromkeys(render.PREPARATIONS, []))
    assert {
        f"  {name}=********" for name in ("WANDB_LOGIN", "MY_TOKEN", "MULTI", "DB_PASSWORD")
    } <= set(lines) and leaks("\n".join(lines)) == []


def test_a_marked_variable_that_is_refused_is_refused_without_its_value():
    problems = []
    site_fields.read_environment(
        {"WANDB_LOGIN": ["canary-marked-2"], "OTHER": ["shown"]}, problems, ["WANDB_LOGIN"]
    )
    assert leaks(" ".join(map(str, problems))) == [] and "got ['shown']" in str(problems[1])
    site_fields.read_environment(["WANDB_LOGIN=canary-marked-2"], problems, ["WANDB_LOGIN"])
    assert leaks(" ".join(map(str, problems))) == []


def test_names_are_marked_by_the_site():
    found = []
    assert (
        site_fields.read_secret_env(["B_LOGIN", "A"], found) == ["A", "B_LOGIN"]
        and site_fields.read_secret_env(None, found) == []
        and not found
    )
    for odd in ({"A": "v"}, "A", ["A-B"], [1], ["A", None]):
        assert (
            len((site_fields.read_secret_env(odd, found), found)[1])
            and found.pop().key == "trainyard_secret_env"
        )
    made = core_support.gang(count=1, devices=1)
    made["site"]["secret_env"] = ["A_LOGIN"]
    assert plans.compile_plan(**made)["secret_env"] == ["A_LOGIN"]
