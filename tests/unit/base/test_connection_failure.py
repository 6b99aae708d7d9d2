# SPDX-License-Identifier: Apache-2.0
"""What a node's silence is called, by SSH's and Python's own words."""

from __future__ import annotations

import pytest
from ansible_collections.trainyard.cluster.plugins.plugin_utils.base import connection_failure
from ansible_collections.trainyard.cluster.plugins.plugin_utils.preflight import checks

HOST = "Failed to connect to the host via ssh: "
NO_JSON = "Module result deserialization failed: No start of json char found"
SILENT = {
    "ssh: Could not resolve hostname gpu-01: Name or service not known": "name_unresolved",
    "ssh: Could not resolve hostname jump: Name or service not known\n"
    "Connection closed by UNKNOWN port 65535": "jump_host_failed",
    "channel 0: open failed: connect failed: Connection refused\n"
    "stdio forwarding failed": "jump_host_failed",
    "ssh: connect to host 192.0.2.1 port 22: Connection refused": "refused",
    "ssh: connect to host 192.0.2.1 port 22: Connection timed out": "timed_out",
    "ssh: connect to host 192.0.2.1 port 22: No route to host": "no_route",
    "a@192.0.2.1: Permission denied (publickey).": "login_refused",
    "@    WARNING: REMOTE HOST IDENTIFICATION HAS CHANGED!     @\n"
    "Host key verification failed.": "host_key_changed",
    "No ED25519 host key is known for x and you have requested strict checking.\n"
    "Host key verification failed.": "host_key_unknown",
    "kex_exchange_identification: Connection closed by remote host": "closed",
    "something else": "no_answer",
}
CRASHES = {
    "pyenv: python3.13: command not found\n\nThe `python3.13' command exists in": "python_missing",
    "/bin/sh: 1: /usr/bin/python3: not found\n": "python_missing",
    'File "x.py"\nSyntaxError: future feature annotations is not defined': "python_too_old",
    "ansible-core requires a minimum of Python version 3.8": "python_too_old",
    "Segmentation fault: Connection refused": "module_failed",
}


@pytest.mark.parametrize(("words", "reason"), SILENT.items(), ids=SILENT.values())
def test_a_node_that_ssh_does_not_reach(words, reason):
    result = {"unreachable": True, "msg": HOST + words}
    assert connection_failure.words_of(result) == HOST + words
    assert connection_failure.classify(HOST + words).code == f"reach.{reason}"


@pytest.mark.parametrize("key", ["module_stderr", "module_stdout"])
@pytest.mark.parametrize(("printed", "reason"), CRASHES.items(), ids=CRASHES.values())
def test_a_module_that_prints_no_result_is_told_by_its_own_words(key, printed, reason):
    result = {"failed": True, "msg": NO_JSON, key: printed + "\nShared connection to x closed.\r\n"}
    words = connection_failure.words_of(result)
    assert printed.splitlines()[-1].strip() in words and "Shared" not in words
    cause = connection_failure.classify(words)
    assert cause.code == f"reach.{reason}" and "ansible_python_interpreter" in cause.remedy


def test_an_interpreter_that_is_not_there_is_named():
    result = {"failed": True, "msg": "The module interpreter '/x/python3' was not found."}
    assert connection_failure.is_of_python(result)
    cause = connection_failure.classify(connection_failure.words_of(result))
    assert cause.code == "reach.python_missing"


def test_words_without_an_address_are_equal_on_all_nodes():
    words = [f"{HOST}ssh: connect to host 192.0.2.{n} port 22: Connection refused" for n in (1, 2)]
    assert len(set(map(connection_failure.without_address, words))) == 1


def test_the_line_that_tells_the_cause_is_kept_before_the_advice():
    printed = (
        "pyenv: python3.13: command not found\n\n"
        "The 'python3.13' command exists in these Python versions:\n  3.12.7\n\n"
        "Note: See 'pyenv help global' for tips on allowing both\n"
        "      python2 and python3 to be found.\n"
    )
    words = connection_failure.words_of({"msg": NO_JSON, "module_stderr": printed})
    assert "pyenv: python3.13: command not found" in words
    assert connection_failure.classify(words).code == "reach.python_missing"


def test_a_modules_own_refusal_is_its_message():
    result = {"failed": True, "msg": "no room", "module_stderr": "pyenv: x: command not found"}
    assert connection_failure.words_of(result) == "no room"


# Of Ansible's own module, and of one of the product that fails (module_utils/agent/node_module.py).
ANSWERS = (
    '{"changed": false, "facts": {}, "invocation": {}}',
    '{"changed": false, "msg": "no facts", "failed": true}',
)


@pytest.mark.parametrize("answer", ANSWERS)
@pytest.mark.parametrize("noise", ["Welcome to gpu-01", '{"welcome": "gpu-01"}', "{ 7 jobs\nhello"])
def test_a_login_that_prints_before_an_answer_is_no_silence(noise, answer):
    result = {"failed": True, "msg": NO_JSON, "module_stdout": f"{noise}\n{answer}\n"}
    words = connection_failure.words_of(result)
    assert noise.splitlines()[0] in words and "facts" not in words
    cause = connection_failure.classify(words)
    assert cause.code == "reach.login_prints" and "ssh NODE true" in cause.remedy
    found = checks.judge_silent_nodes({"node1": words})
    assert found[0]["code"] == "reach.login_prints" and "did not answer" not in found[0]["text"]


def test_an_answer_alone_is_no_noise():
    result = {"failed": True, "msg": NO_JSON, "module_stdout": '{"changed": false}\n'}
    assert "login" not in connection_failure.words_of(result)


def test_a_login_that_prints_is_found_where_ansible_passes_over_it():
    found = checks.judge_logins(
        {"node1": {"login": ""}, "node2": {"login": "hello\nworld"}, "x": {}}
    )
    assert [(item["code"], item["level"], item["nodes"]) for item in found] == [
        ("reach.login_prints", "stop", ["node2"])
    ]
    assert "hello; world" in found[0]["text"]
