# SPDX-License-Identifier: Apache-2.0
"""display: a secret of the plan is found in every form in which it is printed, whole or cut. Shapes
and escapes are in test_logs.py.
"""

from __future__ import annotations

import json
import shlex
import time
import urllib.parse

import pytest
from ansible_collections.trainyard.cluster.plugins.module_utils.base import sanitize
from ansible_collections.trainyard.cluster.plugins.module_utils.base.sanitize import (
    MASK,
    Secrets,
    host_of,
    mask,
    printable,
    secrets_of,
)

VALUE = 'corr"ct horse\\b4ttery/stap+le'
PLAN = {
    "secret_env": ["MY_LOGIN", "ABSENT"],
    "env": {
        "MY_LOGIN": VALUE,
        "WANDB_API_KEY": "wandb-value-1",
        "NAME": "public-name",
        "http_proxy": "http://joe:pr0xy-word@proxy:3128",
    },
    "nodes": [
        {
            "env": {"DB_PASSWORD": "node-value-2"},
            "container": {"env": {"S3_SECRET": "container-value-3"}},
        },
        {"env": None},
    ],
    "ranks": [{"env": {"RANK_TOKEN": "rank-value-4"}}],
    "scheduler": {"env": {"SCHED_TOKEN": "sched-value-5"}},
    "job": {
        "overrides": {"logger.api_key": "override-value-6", "max_token_len": 100000},
        "arguments": ["--hub-token", "argument-value-7", "-o", "x.password=argument-value-8"],
    },
}


def test_everything_that_a_plan_calls_secret():
    found = secrets_of(PLAN)
    assert found.names == ("MY_LOGIN", "ABSENT")
    for value in ("wandb-value-1", "node-value-2", "container-value-3", "rank-value-4",
        "sched-value-5", "override-value-6",
                  "argument-value-7", "argument-value-8", "pr0xy-word", VALUE):  # fmt: skip
        assert value in found.values, value
    # A number of tokens is not a token.
    assert not {"public-name", "100000"} & set(found.values)
    assert list(found.values) == sorted(found.values, key=len, reverse=True)


@pytest.mark.parametrize(
    "plan",
    [None, [], {}, {"env": [], "nodes": {}, "ranks": [1], "job": "x", "secret_env": [1, "A"]}],
)
def test_a_damaged_plan_has_fewer(plan):
    assert secrets_of(plan).values == ()


def test_the_environment_that_a_launcher_wrote_down_counts():
    assert (
        "from-the-login-shell"
        in secrets_of({}, more=[{"GITLAB_TOKEN": "from-the-login-shell"}]).values
    )


@pytest.mark.parametrize(
    "written", [str, repr, json.dumps, shlex.quote, urllib.parse.quote, urllib.parse.quote_plus]
)
def test_a_value_in_every_form(written):
    shown = printable(f"ValueError: login failed for {written(VALUE)} at once", *secrets_of(PLAN))
    assert MASK in shown and "horse" not in shown and shown.endswith("at once")


@pytest.mark.parametrize(
    "text, shown",
    [
        (
            "clone https://joe:p@ss-w0rd@git.example/x.git",
            "clone https://********@git.example/x.git",
        ),
        ("password := hunter2-long", "password := ********"),
        ("DB_PWD=hunter2-long next", "DB_PWD=******** next"),
        (
            "curl -u joe:hunter2-long https://example.org",
            "curl -u joe:******** https://example.org",
        ),
        ("curl --user=joe:hunter2-long x", "curl --user=joe:******** x"),
        # what only looks like one of these
        ("PWD=/home/trainer OLDPWD=/tmp", "PWD=/home/trainer OLDPWD=/tmp"),
        ("https://git.example/a mail me@example.org", "https://git.example/a mail me@example.org"),
        ("docker run -u 1000 image:tag", "docker run -u 1000 image:tag"),
    ],
)
def test_logins_as_people_write_them(text, shown):
    assert mask(text) == shown


def test_a_value_of_several_lines_line_by_line():
    key = "-----BEGIN KEY-----\nMIIEpAIBAAKCAQEA7w\nsecondlineofit99\n-----END KEY-----"
    secrets = secrets_of({"secret_env": ["DEPLOY"], "env": {"DEPLOY": key}})
    for line in key.splitlines():
        assert mask(f"read: {line}", *secrets) == f"read: {MASK}"


@pytest.mark.parametrize("length", [6, 10, 28])
@pytest.mark.parametrize("closing", ["", "...", "'", '")'])
def test_a_cut_at_either_edge_shows_nothing(length, closing):
    """errors.py cuts a line of context at 400 characters before it is masked. Other programs cut
    lines, too.
    """
    secrets, rest = Secrets((), (VALUE,)), "a line of which a part was cut away"
    assert mask(rest + VALUE[:length] + closing, *secrets) == rest + MASK + closing
    assert mask(VALUE[-length:] + rest, *secrets) == MASK + rest


def test_what_only_resembles_the_edge_of_a_value_stays():
    secrets, rest = (
        Secrets((), ("training-secret-value",)),
        "a line that nobody has cut, and of which all is shown",
    )
    for text in (rest + " train", "value " + rest, "training " + rest, rest + " secret-value."):
        assert mask(text, *secrets) == text
    # a state or a name is no text that was cut
    assert mask("training", *secrets) == "training"


@pytest.mark.parametrize(
    "token",
    [
        "gh" + "p_" + "A1" * 18,
        "hf" + "_" + "Zz9" * 11,
        "AKI" + "A" + "B2" * 8,
        "s" + "k-" + "proj1" * 6,
    ],
)
def test_a_token_that_was_cut(token):
    assert mask("context: " + token[:15]) == "context: " + MASK
    assert mask(f"context: {token[:15]}...") == f"context: {MASK}..."


def test_words_that_begin_like_a_token_stay():
    for text in (
        "cannot import name hf_hub_download",
        "a task in disk-images-2024-01-01",
        "npm_config_registry",
        "weights of asia",
    ):
        assert mask(text) == text


def test_a_short_value_is_hidden_by_its_name_alone():
    secrets = secrets_of({"secret_env": ["PIN"], "env": {"PIN": "123"}})
    assert secrets.values == () and mask("PIN=123 and 123", *secrets) == f"PIN={MASK} and 123"


def test_an_ordinary_line_costs_little():
    line = (
        "[11/20 19:15:23] ppdet.engine INFO: Epoch: [0] [ 0/48] learning_rate: 0.000000 loss:"
        " 8.857114 eta: 0:01:13 ips: 3.3 images/s"
    )
    secrets, began = secrets_of(PLAN), time.monotonic()
    for _each in range(2000):
        printable(line, *secrets)
    assert time.monotonic() - began < 2  # about 0.03 s where nothing else runs


def test_hostile_lines_cost_little_with_values_too():
    began = time.monotonic()
    for text in (
        VALUE[:5] * 2000,
        VALUE[-5:] * 2000,
        VALUE[:-1] * 500,
        "gh" + "p_" * 4000,
        "hf_1" * 3000,
    ):
        mask(text, *secrets_of(PLAN))
    assert time.monotonic() - began < 2


@pytest.mark.parametrize(
    "text",
    [
        r'"{\"password\": \"hunter2xyz\"}"',
        "{'password': b'hunter2xyz'}",
        r'password="a\"hunter2xyz"',
        "\x1b[32mhf_" + "hunter2xyz" * 4,
        "\x1b[1mghp_" + "hunter2xyz" * 4,
    ],
)
def test_quotes_within_quotes_and_colours_before_a_token(text):
    assert "hunter2xyz" not in printable(text) and MASK in printable(text)


def test_no_more_of_a_text_is_searched_than_what_is_shown_needs(monkeypatch):
    sizes, plain = [], sanitize.mask
    monkeypatch.setattr(
        sanitize, "mask", lambda text, *more: sizes.append(len(text)) or plain(text, *more)
    )
    token = "sk-" + "a1" * 200
    shown = sanitize.printable("x" * 990 + " " + token + "y" * (1 << 22), limit=1000)
    assert len(shown) <= 1000 and "sk-" not in shown and sizes[0] < 10_000
    # Masked, so much of it is short that the place of the cut is shown.
    key = "-----BEGIN PRIVATE KEY-----" + "k" * 5000 + "-----END PRIVATE KEY----- "
    shown = sanitize.printable(key + "to https://joe:" + "p" * 5000 + "@host", limit=1000)
    assert "joe" not in shown and shown.endswith("to...")


@pytest.mark.parametrize(
    "text",
    [
        '"index_url": "https://index.invalid/T0pSecret/simple/", "version": "2.6.2"',
        "{'index_url': 'https://index.invalid/T0pSecret/simple', 'python': None}",
        'text \\"index_url\\": \\"https://index.invalid:8443/T0pSecret/simple\\" more',
        "pip --index-url https://index.invalid/T0pSecret/simple x==1",
        "PIP_INDEX_URL=http://index.invalid/T0pSecret",
        "runtime_environment.index_url: https://index.invalid/T0pSecret/",
    ],
)
def test_the_path_of_an_index_may_hold_a_token(text):
    said = printable(text)
    assert "T0pSecret" not in said and "index.invalid" in said and MASK in said
    assert (
        printable("see https://host.invalid/docs/index_url.html")
        == "see https://host.invalid/docs/index_url.html"
    )


@pytest.mark.parametrize(
    "url, host",
    [
        ("https://me:T0p@host.invalid:8443/T0pSecret/simple?x=1", "https://host.invalid:8443"),
        ("https://me:T0/p@host.invalid/", "https:" + MASK),
        ("https://[host", MASK),
        ("file:///T0p/index", "file:" + MASK),
        (None, ""),
    ],
)
def test_an_address_is_shown_by_its_host(url, host):
    assert host_of(url) == host
