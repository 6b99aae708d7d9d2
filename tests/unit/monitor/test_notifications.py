# SPDX-License-Identifier: Apache-2.0
"""Notifications: what a real HTTP server gets, and what becomes of one that does not take them."""

from __future__ import annotations

import base64
import hashlib
import hmac
import json
import sys
import time
import urllib.parse

import notify_support
import pytest
from ansible_collections.trainyard.cluster.plugins.module_utils.notify import message
from ansible_collections.trainyard.cluster.plugins.plugin_utils.config import notify_fields
from ansible_collections.trainyard.cluster.plugins.plugin_utils.live import model
from ansible_collections.trainyard.cluster.plugins.plugin_utils.monitor import notifier
from ansible_collections.trainyard.cluster.plugins.plugin_utils.monitor.follower import Follower

RUN = "20261120-190935-raise-1b3e"
EVENT = {
    "event": "failed",
    "run": RUN,
    "attempt": 1,
    "job": "raise",
    "site": "lab",
    "nodes": ["node1", "node2"],
    "code": "oom",
    "text": 'rank 1: <at user_id="all">x</at> <!channel> *bold* & more',
    "time": 1.5,
}


@pytest.fixture
def server():
    with notify_support.receive() as httpd:
        yield httpd


@pytest.fixture(autouse=True)
def no_proxy(monkeypatch):
    for name in ("http_proxy", "HTTP_PROXY", "all_proxy", "ALL_PROXY"):
        monkeypatch.delenv(name, raising=False)


def channels(*entries):
    problems = []
    found = notify_fields.read_channels(list(entries), problems)
    assert problems == []
    return found


def tell(tmp_path, *entries, event=EVENT):
    teller = notifier.Notifier(channels(*entries), str(tmp_path))
    count = teller.tell(event)
    return count, teller.problems(wait=True)


@pytest.mark.parametrize(
    "template, text_of",
    [
        ("slack", lambda body: body["text"]),
        ("feishu", lambda body: body["content"]["text"]),
        ("dingtalk", lambda body: body["text"]["content"]),
        ("wecom", lambda body: body["text"]["content"]),
    ],
)
def test_each_service_gets_text_without_its_markup(server, tmp_path, template, text_of):
    assert tell(tmp_path, {"url": server.url, "template": template}) == (1, [])
    [(_path, headers, body)] = server.requests
    assert headers["Content-Type"].startswith("application/json")
    text = text_of(json.loads(body))
    assert RUN in text and "node2" in text and "failed" in text
    if template != "dingtalk":  # its texts have no markup
        assert "<" not in text
    assert "<!channel>" not in text or template == "dingtalk"


def test_wecom_gets_no_more_than_it_takes(server, tmp_path):
    long = dict(EVENT, text="长" * 1000)
    tell(tmp_path, {"url": server.url, "template": "wecom"}, event=long)
    text = json.loads(server.requests[0][2])["text"]["content"]
    assert 2000 < len(text.encode()) <= 2048


def test_the_signatures(server, tmp_path):
    secret = "SEC-abc"
    entries = [
        {"url": server.url, "template": name, "secret": secret} for name in notify_fields.SIGNED
    ]
    assert tell(tmp_path, *entries) == (3, [])
    for path, headers, body in server.requests:
        content = json.loads(body)
        if "msg_type" in content:
            key = f"{content['timestamp']}\n{secret}".encode()
            expected = base64.b64encode(hmac.new(key, digestmod=hashlib.sha256).digest())
            assert content["sign"] == expected.decode()
            assert abs(int(content["timestamp"]) - time.time()) < 60
        elif "msgtype" in content:
            query = urllib.parse.parse_qs(urllib.parse.urlsplit(path).query)
            [stamp], [sign] = query["timestamp"], query["sign"]
            text = f"{stamp}\n{secret}".encode()
            digest = hmac.new(secret.encode(), text, hashlib.sha256).digest()
            assert sign == base64.b64encode(digest).decode() and query["x"] == ["1"]
            assert abs(int(stamp) / 1000 - time.time()) < 60
        else:
            assert content == EVENT
            digest = hmac.new(secret.encode(), body, hashlib.sha256).hexdigest()
            assert headers["X-Trainyard-Signature"] == f"sha256={digest}"
    assert len(server.requests) == 3


@pytest.mark.parametrize(
    "answers, requests, words",
    [
        ([(500, b"")], 2, None),
        ([(500, b""), (503, b"")], 2, "503"),
        ([(404, b"")], 1, "404"),
        ([(302, b"")], 1, "redirects"),
        ([(200, b'{"errcode": 310000, "errmsg": "sign not match TOKEN123"}')], 1, "310000"),
        ([(200, b'{"code": 19021, "msg": "sign match fail"}')], 1, "19021"),
        ([(200, b'{"code": 0}')], 1, None),
    ],
)
def test_answers_of_a_receiver(server, tmp_path, answers, requests, words):
    server.answers += answers
    count, problems = tell(tmp_path, {"url": server.url})
    assert count == 1 and len(server.requests) == requests
    if words is None:
        assert problems == []
    else:
        assert len(problems) == 1 and words in problems[0] and "trainyard_notify[0]" in problems[0]
        assert "/hook/" not in problems[0]


def test_a_slow_receiver_delays_nothing_and_is_given_up(server, tmp_path, monkeypatch):
    monkeypatch.setattr(message, "TRY_SECONDS", 0.5)
    server.answers += [("slow", b""), ("slow", b"")]
    teller = notifier.Notifier(channels({"url": server.url}), str(tmp_path))
    begin = time.monotonic()
    teller.tell(EVENT)
    assert teller.problems() == [] and time.monotonic() - begin < 1
    [problem] = teller.problems(wait=True)
    assert "no answer within" in problem and time.monotonic() - begin < 8


def test_a_proxy_is_used(server, tmp_path, monkeypatch):
    monkeypatch.setenv("http_proxy", f"http://127.0.0.1:{server.server_port}")
    monkeypatch.delenv("no_proxy", raising=False)
    monkeypatch.delenv("NO_PROXY", raising=False)
    assert tell(tmp_path, {"url": "http://hooks.invalid/x"}) == (1, [])
    assert server.requests[0][0] == "http://hooks.invalid/x"


def test_a_command_gets_the_event_without_a_shell(tmp_path):
    program = "import sys; open(sys.argv[1], 'w').write(sys.stdin.read() + sys.argv[2])"
    target = tmp_path / "told"
    command = [sys.executable, "-c", program, str(target), "$(id)"]
    assert tell(tmp_path, {"command": command}) == (1, [])
    text = target.read_text()
    assert text.endswith("$(id)") and json.loads(text[: -len("$(id)")]) == EVENT
    broken = {"command": [str(tmp_path / "missing")]}
    assert "missing" in tell(tmp_path, broken, event=dict(EVENT, attempt=2))[1][0]


def test_an_event_is_told_once_per_attempt_and_only_to_those_who_want_it(server, tmp_path):
    entry = {"url": server.url, "on": ["failed", "hung"]}
    assert tell(tmp_path, entry)[0] == 1
    assert tell(tmp_path, entry)[0] == 0, "another command that follows the run"
    assert tell(tmp_path, entry, event=dict(EVENT, attempt=2))[0] == 1
    assert tell(tmp_path, entry, event=dict(EVENT, event="completed"))[0] == 0
    assert len(server.requests) == 2


@pytest.mark.parametrize(
    "value, key",
    [
        ({"url": "https://x.example/SECRETPATH"}, "trainyard_notify"),
        ([{"url": "ftp://x.example/SECRETPATH"}], "trainyard_notify.0"),
        ([{"url": "https://x.example/SECRETPATH", "command": ["SECRETPATH"]}], "trainyard_notify"),
        ([{"url": "https://x.example/SECRETPATH", "on": ["crashed"]}], "trainyard_notify.0.on"),
        ([{"url": "https://x.example/SECRETPATH", "tempalte": "slack"}], "trainyard_notify.0"),
        ([{"command": "notify-send SECRETPATH"}], "trainyard_notify.0.command"),
        (
            [{"url": "https://x.example/y", "template": "slack", "secret": "SECRETPATH"}],
            "trainyard_notify.0.secret",
        ),
    ],
)
def test_a_wrong_setting_is_named_without_its_value(value, key):
    problems = []
    notify_fields.read_channels(value, problems)
    assert problems and all(problem.code == "site.bad_notify" for problem in problems)
    assert any(problem.key.startswith(key) for problem in problems), problems
    assert "SECRETPATH" not in " ".join(map(str, problems))


def test_what_the_nodes_tell_no_follower_tells(tmp_path):
    both = channels({"command": ["true"]}, {"command": ["true"], "from_nodes": True})
    teller = notifier.Notifier(both, str(tmp_path))
    assert teller.tell(EVENT, from_nodes=True) == 1
    assert teller.tell(dict(EVENT, attempt=9)) == 2
    assert teller.problems(wait=True) == []


@pytest.mark.parametrize(
    "supervised, event, told",
    [
        ([{"is_open": True}] * 2, "failed", 0),
        ([{"is_open": False}] * 2, "hung", 0),
        ([{"is_open": True}] * 2, "started", 0),
        # they may be too few to decide that
        ([{"is_open": True}] * 2, "lost", 1),
        # one node that lies keeps no message back
        ([{"is_open": True}, None], "failed", 1),
        ([None, None], "failed", 1),
        ([], "failed", 1),
    ],
)
def test_the_nodes_of_a_detached_run_tell_its_events(tmp_path, supervised, event, told):
    given = channels({"command": ["true"], "from_nodes": True})
    follower = Follower("lab", str(tmp_path), "", given)
    statuses = [model.reduce_status({"supervised": value}) for value in supervised]
    follower.watch.known = lambda: statuses
    counts, tell_one = [], follower.notifier.tell
    follower.notifier.tell = lambda *a, **k: counts.append(tell_one(*a, **k))
    follower._tell(event, EVENT["run"], 1)
    assert counts == [told]
    follower.notifier.problems(wait=True)
