# SPDX-License-Identifier: Apache-2.0
"""Job files and the command line: read as data, every problem at once, with file, line and the
words that help.
"""

from __future__ import annotations

import json
import os

import pytest
from ansible_collections.trainyard.cluster.plugins.module_utils.base import value_text
from ansible_collections.trainyard.cluster.plugins.plugin_utils.config import job as jobs
from core_support import CONFIG, ROOT

CONFIGS = str(ROOT / "playbooks" / "configs")
GOOD = f"suite: paddledetection\nlauncher: fleetrun\nconfig: {CONFIG}\n"


def parse(folder, content):
    """Read a job file with this content; return (job, problems)."""
    path = os.path.join(str(folder), "mine.yml")
    with open(path, "wb") as handle:
        handle.write(content.encode("utf-8") if isinstance(content, str) else content)
    return jobs.read_job(path, "mine.yml")


def read(folder, content):
    """Read a job file with this content; return (job, problems as text)."""
    job, problems = parse(folder, content)
    return job, [str(problem) for problem in problems]


def test_every_shipped_job_is_good():
    names = jobs.shipped_jobs(CONFIGS)
    assert "ppyoloe" in names
    for name in names:
        job, problems = jobs.read_job(os.path.join(CONFIGS, name + ".yml"), name)
        assert not problems and job["name"] == name


# --- refused, each with its line and its words


@pytest.mark.parametrize("content, place, words", [
    ("", "mine.yml:", "is empty"),
    ("# only a comment\n", "mine.yml:", "is empty"),
    (b"\xff\xfe\x00", "mine.yml:", "is not UTF-8 text (byte 0)"),
    ("a" * (1 << 20) + "b", "mine.yml:", "is larger than 262144 bytes"),
    ("suite: [\n", "mine.yml:2:", "is not YAML"),
    ("suite: paddledetection\n\tlauncher: x\n", "mine.yml:2:", "(column 1)"),
    ("a: b: c\n", "mine.yml:1:", "is not YAML: mapping values are not allowed here (column 5)"),
    ("suite: \"a\x07\"\n", "mine.yml:", "is not YAML"),
    ("- suite\n", "mine.yml:1:", "must be a mapping of keys, got a list"),
    ("just words\n", "mine.yml:1:", "must be a mapping of keys, got a str"),
    (GOOD + "---\n" + GOOD, "mine.yml:", "holds 2 documents; a job is one"),
    (GOOD + "nodes: 1\nsuite: paddleseg\n", "mine.yml:5 suite:", "the key stands twice (first in line 1)"),
    (GOOD + "env:\n  A: 1\n  B: 2\n  A: 3\n", "mine.yml:7 env.A:", "the key stands twice (first in line 5)"),
    (GOOD + "env: &e {A: 1}\noverrides: *e\n", "mine.yml:5:", "aliases are not allowed"),
    ("a: &a [x, x]\nb: &b [*a, *a]\nc: &c [*b, *b]\nd: [*c, *c]\n", "mine.yml:2:", "aliases are not allowed"),
    ("base: &b {a: 1}\nenv: {<<: *b}\n", "mine.yml:2:", "aliases are not allowed"),
    (GOOD + "env: {<<: {A: 1}}\n", "mine.yml:4 env:", "a key must be a plain word"),
    (GOOD + "description: !!python/object/apply:os.system [id]\n", "mine.yml:4 description:", "the tag tag:yaml.org,2002:python/object"),
    (GOOD + "description: !vault abc\n", "mine.yml:4 description:", "a job is plain data; got the tag !vault"),
    (GOOD + "description: 2026-11-20\n", "mine.yml:4 description:", "got the tag tag:yaml.org,2002:timestamp"),
    (GOOD + "env: {? [a, b] : 1}\n", "mine.yml:4 env:", "a key must be a plain word"),
    (GOOD + "env: {1: a}\n", "mine.yml:4 env:", "a key must be a plain word"),
    (GOOD + "no: a\n", "mine.yml:4:", "a key must be a plain word"),
    (GOOD + "node: 2\n", "mine.yml:4 node:", "unknown key; allowed: arguments, checkpoint_every, config"),
    (GOOD + "node: 2\n", "mine.yml:4 node:", "did you mean 'nodes'?"),
    ("launcher: paddle\nconfig: a.yml\n", "mine.yml:1:", "the key 'suite' is missing"),
    (GOOD.replace("paddledetection", "paddledetektion"), "mine.yml:1 suite:", "did you mean 'paddledetection'?"),
    (GOOD.replace("fleetrun", "flettrun"), "mine.yml:2 launcher:", "fleetrun, mpirun, msrun, paddle, rank_table; did you mean 'fleetrun'?"),
    (GOOD.replace(CONFIG, "../../etc/passwd.yml"), "mine.yml:3 config:", "inside the code tree"),
    (GOOD.replace(CONFIG, "/etc/x.yml"), "mine.yml:3 config:", "inside the code tree"),
    (GOOD.replace(CONFIG, "-o.yml"), "mine.yml:3 config:", "inside the code tree"),
    (GOOD.replace(CONFIG, "a/../../b.yml"), "mine.yml:3 config:", "inside the code tree"),
    (GOOD.replace(CONFIG, "configs/x.txt"), "mine.yml:3 config:", "inside the code tree"),
    (GOOD.replace(CONFIG, "'a.yml\n\n  x.yml'"), "mine.yml:3 config:", "inside the code tree"),
    (GOOD.replace(CONFIG, "[a.yml]"), "mine.yml:3 config:", "must be the path of the suite's config file"),
    (GOOD + "arguments: --eval\n", "mine.yml:4 arguments:", "must be a list of words"),
    (GOOD + "arguments: [--eval, no]\n", "mine.yml:4 arguments.1:", "must be one word of the command line, without control"),
    (GOOD + 'arguments: ["a\\nb"]\n', "mine.yml:4 arguments.0:", "without control characters"),
    (GOOD + 'arguments: ["a\\u202Eb"]\n', "mine.yml:4 arguments.0:", "without control characters"),
    (GOOD + 'arguments: ["a\\u2066b"]\n', "mine.yml:4 arguments.0:", "without control characters"),
    (GOOD + "overrides: {a: {b: 1}}\n", "mine.yml:4 overrides.a:", "must be a plain value"),
    (GOOD + "overrides: {a b: 1}\n", "mine.yml:4 overrides:", "must be a config key such as epoch"),
    (GOOD + "env: {A-B: 1}\n", "mine.yml:4 env:", "must be the name of an environment variable; got 'A-B'"),
    (GOOD + "env: {A: [1]}\n", "mine.yml:4 env.A:", "must be text or a number"),
    (GOOD + "env: {A: true}\n", "mine.yml:4 env.A:", "must be text or a number"),
    (GOOD + "nodes: 0\n", "mine.yml:4 nodes:", "must be 'all', a whole number from 1 up, or a list of the site's trainers without repetition; got 0"),
    (GOOD + "nodes: -2\n", "mine.yml:4 nodes:", "must be 'all', a whole number from 1 up"),
    (GOOD + "nodes: [node1, node1]\n", "mine.yml:4 nodes:", "without repetition"),
    (GOOD + "nodes: []\n", "mine.yml:4 nodes:", "a list of the site's trainers"),
    (GOOD + "nodes: [1]\n", "mine.yml:4 nodes:", "a list of the site's trainers"),
    (GOOD + "min_nodes: 0\n", "mine.yml:4 min_nodes:", "must be a whole number from 1 up; got 0"),
    (GOOD + "min_nodes: all\n", "mine.yml:4 min_nodes:", "must be a whole number from 1 up; got 'all'"),
    (GOOD + "min_nodes: 1.5\n", "mine.yml:4 min_nodes:", "must be a whole number from 1 up; got 1.5"),
    (GOOD + "nodes: no\n", "mine.yml:4 nodes:", "must be 'all', a whole number from 1 up, or a list of the site's trainers without repetition; got False"),
    (GOOD + "nodes: yes\n", "mine.yml:4 nodes:", "must be 'all', a whole number from 1 up, or a list of the site's trainers without repetition; got True"),
    (GOOD + "nodes: 2.0\n", "mine.yml:4 nodes:", "must be 'all', a whole number from 1 up, or a list of the site's trainers without repetition; got 2.0"),
    (GOOD + "nodes: 08\n", "mine.yml:4 nodes:", "must be 'all', a whole number from 1 up, or a list of the site's trainers without repetition; got '08'"),
    (GOOD + "nodes: 010\n", "mine.yml:4 nodes:", "010 is read as 8; write plain digits, or quote it"),
    (GOOD + "start_port: 5:00\n", "mine.yml:4 start_port:", "5:00 is read as 300; write plain digits, or quote it"),
    (GOOD + "start_port: 0x4268\n", "mine.yml:4 start_port:", "0x4268 is read as 17000"),
    (GOOD + "start_port: 17_000\n", "mine.yml:4 start_port:", "17_000 is read as 17000"),
    (GOOD + "arguments: [-o, epoch=1]\n", "mine.yml:4 arguments:", "'-o' is set by the plan; write config values under 'overrides'"),
    (GOOD + "arguments: [--config=x.yml]\n", "mine.yml:4 arguments:", "is set by the plan"),
    (GOOD + 'overrides: {a: "x\\0y"}\n', "mine.yml:4 overrides.a:", "holds U+0000"),
    (GOOD + "env: {ASCEND_RT_VISIBLE_DEVICES: '0'}\n", "mine.yml:4 env.ASCEND_RT_VISIBLE_DEVICES:", "is reserved"),
    (GOOD + "published: [{data: x}]\n", "mine.yml:4 published.0:", "the key 'machines' is missing"),
    (GOOD + "nodes: many\n", "mine.yml:4 nodes:", "must be 'all', a whole number"),
    (GOOD + "devices: 0\n", "mine.yml:4 devices:", "must be 'all', a whole number from 1 up"),
    (GOOD + "devices: [0, 0]\n", "mine.yml:4 devices:", "without repetition"),
    (GOOD + "devices: []\n", "mine.yml:4 devices:", "a list of device ids"),
    (GOOD + "devices: [-1]\n", "mine.yml:4 devices:", "a list of device ids"),
    (GOOD + "start_port: 80\n", "mine.yml:4 start_port:", "must be a port from 1024 to 65535; got 80"),
    (GOOD + "start_port: 65536\n", "mine.yml:4 start_port:", "must be a port from 1024 to 65535"),
    (GOOD + "start_port: '17000'\n", "mine.yml:4 start_port:", "must be a port from 1024 to 65535; got '17000' (str)"),
    (GOOD + "start_port: 17000.0\n", "mine.yml:4 start_port:", "must be a port from 1024 to 65535"),
    (GOOD + "published: [a]\n", "mine.yml:4 published.0:", "must be object"),
    (GOOD + "source: C1\n", "mine.yml:4 source:", "must be a list of contract ids"),
])  # fmt: skip
def test_refused_with_place_and_words(tmp_path, content, place, words):
    job, problems = read(tmp_path, content)
    assert job is None and any(
        problem.startswith(place) and words in problem for problem in problems
    ), problems


@pytest.mark.parametrize(
    "name",
    [
        "PYTHONPATH",
        "PYTHONUSERBASE",
        "PYTHONBREAKPOINT",
        "PYTHONINSPECT",
        "LD_LIBRARY_PATH",
        "LD_BIND_NOW",
        "BASH_ENV",
        "ENV",
        "SHELLOPTS",
        "BASH_FUNC_a",
        "PS4",
        "GIT_SSH_COMMAND",
        "SSH_AUTH_SOCK",
        "SSH_ASKPASS",
        "PERL5LIB",
        "NODE_OPTIONS",
        "GLIBC_TUNABLES",
        "GCONV_PATH",
        "OPENSSL_CONF",
        "SSL_CERT_FILE",
        "REQUESTS_CA_BUNDLE",
        "XDG_RUNTIME_DIR",
        "DBUS_SESSION_BUS_ADDRESS",
        "PIP_INDEX_URL",
        "CLASSPATH",
    ],
)
def test_a_job_does_not_choose_what_every_process_loads(tmp_path, name):
    (problem,) = read(tmp_path, GOOD + f"env:\n  GOOD: 1\n  {name}: 1\n")[1]
    assert problem.startswith(f"mine.yml:6 env.{name}: is not for a ")
    old = dict(read(tmp_path, GOOD)[0], env={name: "1"})
    assert jobs.read_recorded_job(old, "x")[0]["env"] == {
        name: "1"
    }  # a run that began with it goes on


@pytest.mark.parametrize(
    "name",
    [
        "OMP_NUM_THREADS",
        "NCCL_DEBUG",
        "PYTHONUNBUFFERED",
        "PYTHONHASHSEED",
        "WANDB_MODE",
        "http_proxy",
        "TMPDIR",
        "XDG_CACHE_HOME",
        "GLOG_v",
        "FLAGS_x",
        "LDAP",
        "ENVIRONMENT",
    ],
)
def test_what_a_training_reads_stays_the_jobs(tmp_path, name):
    assert read(tmp_path, GOOD + f"env:\n  {name}: 1\n")[1] == []


@pytest.mark.parametrize(
    "name",
    [
        "PADDLE_NNODES",
        "PADDLE_TRAINER_ID",
        "FLAGS_START_PORT",
        "FLAGS_selected_gpus",
        "POD_IP",
        "CUDA_VISIBLE_DEVICES",
        "GLOO_SOCKET_IFNAME",
        "NCCL_SOCKET_IFNAME",
        "PATH",
        "HOME",
        "USER",
        "PYTHONHOME",
        "PYTHONSTARTUP",
        "RANK_TABLE_FILE",
        "WORLD_SIZE",
        "MS_ROLE",
        "TRAINYARD_ATTEMPT",
        "TRAINING_ROLE",
    ],
)
def test_the_plans_own_environment_is_reserved(tmp_path, name):
    job, (problem,) = parse(tmp_path, GOOD + f"env:\n  GOOD: 1\n  {name}: 1\n")
    assert job is None and problem.code == "job.reserved_variable"
    assert str(problem).startswith(f"mine.yml:6 env.{name}: ")


@pytest.mark.parametrize("name", ["LD_PRELOAD", "LD_AUDIT", "BASH_ENV", "GIT_SSH_COMMAND"])
def test_what_loads_or_runs_other_code_is_forbidden(tmp_path, name):
    job, (problem,) = parse(tmp_path, GOOD + f"env:\n  GOOD: 1\n  {name}: 1\n")
    assert job is None and problem.code == "job.forbidden_variable"
    assert str(problem).startswith(f"mine.yml:6 env.{name}: ")


@pytest.mark.parametrize(
    "name",
    ["NCCL_DEBUG", "http_proxy", "OMP_NUM_THREADS", "FLAGS_call_stack_level", "HOMEBREW", "PATHS"],
)
def test_other_names_are_the_jobs_own(tmp_path, name):
    assert read(tmp_path, GOOD + f"env: {{{name}: 1}}\n")[0]["env"] == {name: 1}


def test_every_problem_at_once(tmp_path):
    job, problems = read(tmp_path, "suite: x\nlauncher: y\nnodes: 0\nenv: {PATH: /x}\nextra: 1\n")
    assert job is None and sorted(problem.split(":")[1].split(" ")[0] for problem in problems) == [
        "1",
        "1",
        "2",
        "3",
        "4",
        "5",
    ]


def test_a_directory_and_an_unreadable_file(tmp_path):
    (tmp_path / "mine.yml").mkdir()
    (problem,) = jobs.read_job(str(tmp_path / "mine.yml"), "mine.yml")[1]
    assert (problem.code, problem.file) == ("file.not_a_file", "mine.yml")
    (problem,) = jobs.read_job(str(tmp_path / "none.yml"), "none.yml")[1]
    assert (problem.code, problem.file) == ("file.unreadable", "none.yml")
    assert "No such file" in problem.text


def test_a_launcher_that_the_suite_cannot_take(tmp_path, monkeypatch):
    table = dict(jobs.load_suite("paddledetection"), launchers=["paddle"])
    monkeypatch.setattr(jobs, "load_suite", lambda name: table)
    (problem,) = parse(tmp_path, GOOD)[1]
    assert problem.code == "job.launcher_not_in_suite"
    assert str(problem).startswith("mine.yml:2 launcher: ")
    assert "PaddleDetection" in problem.text and "fleetrun" in problem.text
    assert problem.text.endswith(": paddle")


# --- accepted


@pytest.mark.parametrize(
    "content",
    [
        GOOD,
        "\ufeff" + GOOD,
        GOOD.replace("\n", "\r\n"),
        "---\n# 飞桨 – ein Kommentar ünïcode\n" + GOOD,
        GOOD + "...\n",
        f"{{suite: paddledetection, launcher: fleetrun, config: {CONFIG}}}",
        GOOD.replace("fleetrun", '"fleetrun"'),
        GOOD.replace("fleetrun", "&anchor fleetrun"),
        GOOD.replace("fleetrun", "!!str fleetrun"),
    ],
)
def test_all_these_say_the_same(tmp_path, content):
    job, problems = read(tmp_path, content)
    assert not problems and set(job.pop("lines")) == {"suite", "launcher", "config"}
    assert job == {
        "suite": "paddledetection",
        "launcher": "fleetrun",
        "config": CONFIG,
        "arguments": [],
        "overrides": {},
        "nodes": "all",
        "devices": "all",
        "env": {},
        "published": [],
        "scaling": "advise",
        "max_restarts": 0,
        "name": "mine",
        "file": "mine.yml",
    }


def test_a_job_that_was_recorded_is_read_again(tmp_path):
    job, _problems = read(tmp_path, GOOD + "max_restarts: 2\nenv: {A: '1'}\n")
    given = jobs.apply_command_line(job, {"nodes": "1", "max_restarts": "0"}, [])
    again, problems = jobs.read_recorded_job(json.loads(json.dumps(given)), "runs/x/job.json")
    assert not problems and again == {
        key: value for key, value in given.items() if key != "from_command_line"
    }
    assert (again["nodes"], again["max_restarts"], again["name"], again["file"]) == (
        1,
        0,
        "mine",
        "mine.yml",
    )
    # of an older Trainyard, whose jobs had fewer keys
    assert (
        jobs.read_recorded_job(
            {key: again[key] for key in ("suite", "launcher", "config", "name")}, "x"
        )[0]["max_restarts"]
        == 0
    )


@pytest.mark.parametrize(
    "changes, words",
    [
        ({"config": "../../etc/x.yml"}, "x config: must be the path of the suite's config file"),
        ({"env": {"LD_PRELOAD": "/tmp/x.so"}}, "x env.LD_PRELOAD: is not for a training"),
        ({"arguments": ["-o"]}, "x arguments: '-o' is set by the plan"),
        ({"shell": "rm"}, "x shell: unknown key"),
        ({"name": None}, "is no job that was read for a run"),
    ],
)
def test_a_recorded_job_is_held_against_the_schema_again(tmp_path, changes, words):
    """It may have come from a node."""
    job, problems = jobs.read_recorded_job(dict(read(tmp_path, GOOD)[0], **changes), "x")
    assert job is None and any(words in str(problem) for problem in problems), [
        str(problem) for problem in problems
    ]


@pytest.mark.parametrize(
    "text, extra, expected",
    [
        ("", {}, 0),
        ("detach: true\n", {}, 3),
        ("detach: true\nmax_restarts: 0\n", {}, 0),
        ("detach: true\n", {"detach": "false"}, 0),
        ("", {"detach": "true"}, 3),
        ("", {"detach": "true", "max_restarts": "1"}, 1),
        ("max_restarts: 5\n", {"detach": "true"}, 5),
        ("max_restarts: 0\n", {"detach": "true"}, 0),
    ],
)
def test_a_run_that_its_nodes_restart_is_restarted_three_times(tmp_path, text, extra, expected):
    job, _problems = read(tmp_path, GOOD + text)
    assert jobs.apply_command_line(job, extra, [])["max_restarts"] == expected


@pytest.mark.parametrize("value", ["-1", "1.5", "x", "", True, "08"])
def test_restarts_are_counted_in_whole_numbers(value):
    problems = []
    jobs.apply_command_line({}, {"max_restarts": value}, problems)
    assert [problem.key for problem in problems] == ["max_restarts"] and "from 0 up" in str(
        problems[0]
    )


def test_jinja_stays_text(tmp_path):
    text = f"{{{{ lookup('pipe', 'touch {tmp_path}/ran') }}}}"
    job, problems = read(tmp_path, GOOD + f'description: "{text}"\narguments: ["{text}"]\n')
    assert (
        not problems
        and job["description"] == text
        and job["arguments"] == [text]
        and not (tmp_path / "ran").exists()
    )


def test_numbers_that_are_plain(tmp_path):
    job, problems = read(
        tmp_path,
        GOOD + "nodes: 10\ndevices: [0, 7]\nstart_port: 17000\noverrides: {a: 0, b: -3, c: 0.5, d:"
        " 1.0e-5, e: '010', f: 3.14}\n",
    )
    assert not problems and job["overrides"] == {
        "a": 0,
        "b": -3,
        "c": 0.5,
        "d": 1e-05,
        "e": "010",
        "f": 3.14,
    }


# --- which job


@pytest.mark.parametrize("config", ["ppyoloe", "ppyoloe.yml"])
def test_a_shipped_job_by_name(config, tmp_path):
    path, shown, problems = jobs.find_job(config, CONFIGS, str(tmp_path))
    assert (path, shown, problems) == (
        os.path.join(CONFIGS, "ppyoloe.yml"),
        "playbooks/configs/ppyoloe.yml",
        [],
    )


def test_a_shipped_job_is_not_hidden_by_a_file_in_the_current_directory(tmp_path):
    (tmp_path / "ppyoloe.yml").write_text("x", encoding="ascii")
    assert jobs.find_job("ppyoloe.yml", CONFIGS, str(tmp_path))[0] == os.path.join(
        CONFIGS, "ppyoloe.yml"
    )


def test_a_job_file_of_the_users_own(tmp_path, monkeypatch):
    (tmp_path / "own.yml").write_text(GOOD, encoding="ascii")
    monkeypatch.setenv("HOME", str(tmp_path))
    for config in (
        "own.yml",
        "./own.yml",
        "~/own.yml",
        str(tmp_path / "own.yml"),
        f"../{tmp_path.name}/own.yml",
    ):
        path, shown, problems = jobs.find_job(config, CONFIGS, str(tmp_path))
        assert not problems and shown == config and os.path.samefile(path, tmp_path / "own.yml")


@pytest.mark.parametrize(
    "config, words",
    [
        ("", "say which job: -e config=NAME, one of "),
        ("  ", "say which job"),
        (None, "say which job"),
        (["ppyoloe"], "say which job"),
        ("ppyole", "did you mean 'ppyoloe'?"),
        ("x; rm -rf /", "'x; rm -rf /' is neither the name of a job"),
        ("x; rm -rf", "no job 'x; rm -rf'; allowed: "),
        ("../../etc/passwd", "nor a path that ends in .yml"),
        ("/etc/passwd", "nor a path that ends in .yml"),
        ("-x.yml", "'-x.yml' is neither the name"),
        ("-x/y.yml", "neither the name"),
        ("a/\u202elmy.yml", "neither the name"),
        ("a/\x1b[31m.yml", "'a/\\x1b[31m.yml' is neither the name"),
        ("a/b\n.yml", "neither the name"),
        ("./ppyole.yml", "no such file"),
        ("./ppyole.yml", "did you mean 'ppyoloe'?"),
        ("$(id).yml", "no job '$(id).yml'"),
        ("..", "no job '..'"),
    ],
)
def test_a_job_that_there_is_not(tmp_path, config, words):
    (tmp_path / "$(id).yml").write_text("x", encoding="ascii")
    (tmp_path / "-x.yml").write_text("x", encoding="ascii")
    path, _shown, problems = jobs.find_job(config, CONFIGS, str(tmp_path))
    assert path is None and len(problems) == 1
    assert str(problems[0]).startswith("command line config: ") and words in str(problems[0])


# --- the command line


def test_a_misspelt_variable_is_named_with_the_near_one():
    allowed = {"config", "nodes", "devices", "start_port"}
    assert not jobs.unknown_variables(
        {"config": "x", "nodes": "2", "trainyard_runs_dir": "/x", "ansible_user": "me"}, allowed
    )
    problems = jobs.unknown_variables({"confg": "x", "node": 2}, allowed)
    assert [(problem.code, problem.key) for problem in problems] == [
        ("cli.unknown_option", "confg"),
        ("cli.unknown_option", "node"),
    ]
    for problem, near in zip(problems, ("config", "nodes")):
        assert f"allowed: {', '.join(sorted(allowed))}, " in problem.text
        assert "trainyard_*" in problem.text and problem.text.endswith(f"'{near}'?")


@pytest.mark.parametrize(
    "extra, changed",
    [
        ({}, {}),
        ({"nodes": "2"}, {"nodes": 2}),
        ({"nodes": 2}, {"nodes": 2}),
        ({"min_nodes": "1"}, {"min_nodes": 1}),
        ({"nodes": "all"}, {"nodes": "all"}),
        ({"devices": "8"}, {"devices": 8}),
        ({"start_port": "18000"}, {"start_port": 18000}),
    ],
)
def test_the_command_line_beats_the_job(extra, changed):
    job, problems = {"nodes": 4, "devices": "all"}, []
    found = jobs.apply_command_line(job, extra, problems)
    given = found.pop("from_command_line", [])
    assert found == dict(job, **changed) and given == list(extra) and not problems
    assert job == {"nodes": 4, "devices": "all"}


@pytest.mark.parametrize(
    "extra, words",
    [
        ({"nodes": "0"}, "command line nodes: must be a whole number from 1 up or 'all'; got '0'"),
        ({"nodes": "-1"}, "got '-1'"),
        ({"nodes": "2.5"}, "got '2.5'"),
        ({"nodes": True}, "got True"),
        ({"nodes": "08"}, "got '08'"),
        ({"nodes": "2.0"}, "got '2.0'"),
        ({"nodes": ""}, "got ''"),
        ({"nodes": 2.0}, "got 2.0"),
        ({"nodes": "9999999"}, "got '9999999'"),
        ({"devices": "[0, 1]"}, "command line devices: must be a whole number from 1 up or 'all'"),
        (
            {"min_nodes": "all"},
            "command line min_nodes: must be a whole number from 1 up; got 'all'",
        ),
        (
            {"start_port": "all"},
            "command line start_port: must be a whole number from 1 up; got 'all'",
        ),
        (
            {"start_port": "80"},
            "command line start_port: must be a port from 1024 to 65535; got 80",
        ),
        ({"start_port": "70000"}, "must be a port from 1024 to 65535; got 70000"),
    ],
)
def test_counts_on_the_command_line(extra, words):
    problems = []
    jobs.apply_command_line({"nodes": "all", "devices": "all"}, extra, problems)
    assert len(problems) == 1 and words in str(problems[0])


# --- the files the core itself reads


def test_suites_and_schemas_stand_together():
    schema = jobs.load_schema("job")
    for suite in schema["properties"]["suite"]["enum"]:
        table = jobs.load_suite(suite)
        assert table["name"] == suite and set(table["launchers"]) <= set(
            schema["properties"]["launcher"]["enum"]
        )
        assert table["data"]["place"].split("/")[0] not in {
            path.split("/")[0] for path in table["redirects"]
        }
    launchers = set(schema["properties"]["launcher"]["enum"])
    from ansible_collections.trainyard.cluster.plugins.module_utils.suites.launcher_table import (
        LAUNCHERS,
    )

    assert launchers == set(LAUNCHERS)


def test_near_is_silent_where_nothing_is_near():
    assert (
        value_text.suggest("zzz", ["nodes"]) == ""
        and value_text.suggest("nods", ["nodes"]) == "; did you mean 'nodes'?"
    )


def test_a_missing_key_is_said_once(tmp_path):
    _job, problems = read(tmp_path, GOOD + "published: [{data: x}]\n")
    assert len(problems) == len(set(problems)) == 4, problems
