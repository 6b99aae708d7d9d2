# SPDX-License-Identifier: Apache-2.0
"""Notifications as the services take them. Pure.

The words of an event may be a node's or a training's. No service may take them for its markup.

- Slack: api.slack.com/messaging/webhooks, and "Escaping text" of its formatting page.
- Feishu: open.feishu.cn, "Custom bot usage guide", signature verification.
- DingTalk: open.dingtalk.com, "Custom robot security settings".
- WeCom: developer.work.weixin.qq.com, "Group robot configuration".
"""

from __future__ import annotations

import base64
import hashlib
import hmac
import json
import urllib.parse
from typing import Any, Callable, NamedTuple, TypedDict

# WeCom refuses a text beyond 2048 bytes. The other services take more.
WECOM_BYTES = 2048
TRY_SECONDS = 5


class Channel(TypedDict):
    """One receiver. url or command is empty."""

    index: int  # in trainyard_notify
    url: str
    command: list[str]
    on: list[str]
    template: str
    secret: str
    from_nodes: bool  # whether the nodes of a detached run tell it


class Event(TypedDict):
    """What a receiver is told. Texts are safe to show."""

    event: str  # one of notify_fields.EVENTS, or 'test'
    run: str
    attempt: int
    job: str
    site: str
    nodes: list[str]
    code: str  # of the verdict, '' without one
    text: str
    time: float  # unix seconds


class Request(NamedTuple):
    """One POST."""

    url: str
    headers: dict[str, str]
    body: bytes


def event_text(event: Event) -> str:
    """Return an event as a few lines of plain text."""
    title = f"[{event['site']}] {event['event']}: {event['job']}"
    details = ""
    if event["attempt"]:
        details = f"run {event['run']}, attempt {event['attempt']}, on {', '.join(event['nodes'])}"
    lines = [title, event["text"], details]
    return "\n".join(line for line in lines if line)


def compose(channel: Channel, event: Event, now: float) -> dict[str, Any]:
    """Return what sender.py takes to tell a receiver about an event. now: unix seconds."""
    if channel["command"]:
        return {"command": channel["command"], "body": json.dumps(event), "seconds": TRY_SECONDS}
    request = build_request(channel, event, now)
    return {
        "url": request.url,
        "headers": request.headers,
        "body": request.body.decode(),
        "seconds": TRY_SECONDS,
    }


def build_request(channel: Channel, event: Event, now: float) -> Request:
    """Return the request that tells a receiver with a URL about an event. now: unix seconds."""
    return _BUILDERS[channel["template"]](channel, event, now)


def _request(url: str, content: Any, **headers: str) -> Request:
    body = json.dumps(content, ensure_ascii=True).encode("ascii")
    return Request(url, {"Content-Type": "application/json; charset=utf-8", **headers}, body)


def _generic(channel: Channel, event: Event, _now: float) -> Request:
    request = _request(channel["url"], event)
    if channel["secret"]:
        digest = hmac.new(channel["secret"].encode(), request.body, hashlib.sha256).hexdigest()
        request.headers["X-Trainyard-Signature"] = f"sha256={digest}"
    return request


def _slack(channel: Channel, event: Event, _now: float) -> Request:
    text = event_text(event)
    for char, escaped in (("&", "&amp;"), ("<", "&lt;"), (">", "&gt;")):
        text = text.replace(char, escaped)
    content = {"text": text, "mrkdwn": False, "unfurl_links": False, "unfurl_media": False}
    return _request(channel["url"], content)


def _without_tags(text: str) -> str:
    """Return text without the characters of `<at user_id="all">` and `<@all>`.

    Feishu and WeCom know no escape for them. The fullwidth forms look alike.
    """
    return text.replace("<", "\uff1c").replace(">", "\uff1e")


def _feishu(channel: Channel, event: Event, now: float) -> Request:
    content: dict[str, Any] = {
        "msg_type": "text",
        "content": {"text": _without_tags(event_text(event))},
    }
    if channel["secret"]:
        stamp = str(int(now))
        # The text to sign is the key, and what is signed is empty.
        key = f"{stamp}\n{channel['secret']}".encode()
        sign = base64.b64encode(hmac.new(key, b"", hashlib.sha256).digest()).decode()
        content.update(timestamp=stamp, sign=sign)
    return _request(channel["url"], content)


def _dingtalk(channel: Channel, event: Event, now: float) -> Request:
    url = channel["url"]
    if channel["secret"]:
        stamp = str(int(now * 1000))
        text = f"{stamp}\n{channel['secret']}".encode()
        digest = hmac.new(channel["secret"].encode(), text, hashlib.sha256).digest()
        query = urllib.parse.urlencode(
            {"timestamp": stamp, "sign": base64.b64encode(digest).decode()}
        )
        mark = "?"
        if "?" in url:
            mark = "&"
        url = f"{url}{mark}{query}"
    content = {
        "msgtype": "text",
        "text": {"content": event_text(event)},
        "at": {"isAtAll": False},
    }
    return _request(url, content)


def _wecom(channel: Channel, event: Event, _now: float) -> Request:
    data = _without_tags(event_text(event)).encode()
    text = data[:WECOM_BYTES].decode("utf-8", "ignore")
    return _request(channel["url"], {"msgtype": "text", "text": {"content": text}})


_BUILDERS: dict[str, Callable[[Channel, Event, float], Request]] = {
    "generic": _generic,
    "slack": _slack,
    "feishu": _feishu,
    "dingtalk": _dingtalk,
    "wecom": _wecom,
}
