# SPDX-License-Identifier: Apache-2.0
"""Mutated jobs, sites and command lines: never an exception, never a hang, every refusal in
printable words; what is accepted reads the same again.

The suite runs a few hundred examples, the same ones every time. For a long run: TRAINYARD_FUZZ=5000
pytest tests/system/test_fuzz.py (examples a test, other ones every time).
"""

from __future__ import annotations

import copy
import os
import unicodedata

import pytest
import yaml
from ansible_collections.trainyard.cluster.plugins.module_utils.base import untag
from ansible_collections.trainyard.cluster.plugins.module_utils.base.sanitize import printable
from ansible_collections.trainyard.cluster.plugins.module_utils.preflight import capacity, machine
from ansible_collections.trainyard.cluster.plugins.module_utils.rehearsal import (
    outcome,
)
from ansible_collections.trainyard.cluster.plugins.plugin_utils.base import yaml_source
from ansible_collections.trainyard.cluster.plugins.plugin_utils.config import (
    duplicate_hosts,
    extra_vars,
    role_vars,
    ssh_policy,
)
from ansible_collections.trainyard.cluster.plugins.plugin_utils.config import job as jobs
from ansible_collections.trainyard.cluster.plugins.plugin_utils.config import site as sites
from core_support import ROOT, job_of
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

LONG = int(os.environ.get("TRAINYARD_FUZZ", "0"))
# A second is a hundred times what an example takes; the machine may be busy.
FUZZ = settings(
    max_examples=LONG or 150,
    derandomize=not LONG,
    deadline=10000,
    database=None,
    suppress_health_check=[
        HealthCheck.function_scoped_fixture,
        HealthCheck.too_slow,
        HealthCheck.data_too_large,
    ],
)
FILES = sorted((ROOT / "playbooks/configs").glob("*.yml")) + sorted(
    (ROOT / "molecule/shared/jobs").glob("*.yml")
)
JOBS = [path.read_bytes() for path in FILES]
SITES = [
    path.read_bytes()
    for path in sorted((ROOT / "molecule/inventory").rglob("*.yml"))
    + sorted((ROOT / "inventory/sample").rglob("*.yml"))
]
PIECES = [
    b"\x00", b"\x1b[2J", b"\xff", b"\xe2\x80\xae", b"\xed\xa0\x80", b"\xef\xbb\xbf", b"\r", b"\t",
    b"\n", b"---\n", b"...\n", b"%YAML 2.0\n", b"!!int ",
    b"!!bool ", b"!!float ", b"!!set {a}", b"!!binary x", b"!!timestamp x", b"!!omap [a]", b"&a ",
    b"*a", b"<<: ", b"? ", b"- ", b": ", b"{", b"}", b"[", b"]",
    b"[" * 2000, b"{a: " * 500, b"'", b'"', b'"\\ud800"', b'"\\U0001F600"', b"| \n", b">9\n ", b"~",
    b"null", b"0x_", b"0b", b"08", b"1_0", b"1:30", b".nan",
    b"9" * 5000, b"1e999", b"-.inf", b"{{ x }}", b"{% for %}", b"#", b"yes", b"=", b"@", b"`", b"/",
    b"~", b"$HOME", b"-o", b"--conf", b"PADDLE_X: 1",
]  # fmt: skip
TEXTS = [
    "",
    " ",
    "\x00",
    "\x1b",
    "a\nb",
    "\u202e",
    "\ud800",
    "\u2028",
    "{{ x }}",
    "/",
    "~",
    "-o",
    "--opt=1",
    "all",
    "08",
    "127.0.0.1",
    "::1",
    "x" * 300,
    "9" * 5000,
    "٣",
    "²",
]
SCALARS = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(),
    st.integers(-5, 70000),
    st.floats(),
    st.sampled_from(TEXTS),
    st.text(st.characters(), max_size=30),
)
VALUES = st.recursive(
    SCALARS,
    lambda inner: st.one_of(
        st.lists(inner, max_size=4), st.dictionaries(st.text(max_size=8), inner, max_size=4)
    ),
    max_leaves=8,
)


@st.composite
def mutated_bytes(draw, samples):
    """A sample with some bytes cut out, doubled, replaced or put in."""
    data = bytearray(draw(st.sampled_from(samples)))
    for _ in range(draw(st.integers(1, 4))):
        start = draw(st.integers(0, max(len(data) - 1, 0)))
        end = min(len(data), start + draw(st.integers(0, 40)))
        piece = draw(
            st.one_of(
                st.sampled_from(PIECES), st.binary(max_size=8), st.just(bytes(data[start:end]) * 2)
            )
        )
        data[start : draw(st.sampled_from([start, end]))] = piece
    return bytes(data)


@st.composite
def mutated(draw, sample, keys=()):
    """Plain data with some values replaced, keys renamed, added or taken away, at any depth."""
    root = [copy.deepcopy(sample)]
    for _ in range(draw(st.integers(1, 4))):
        holder, index = root, 0
        while isinstance(holder[index], (dict, list)) and holder[index] and draw(st.integers(0, 3)):
            holder = holder[index]
            index = (
                draw(st.sampled_from(sorted(holder, key=str)))
                if isinstance(holder, dict)
                else draw(st.integers(0, len(holder) - 1))
            )
        do = draw(st.sampled_from(["replace", "remove", "rename", "add"]))
        if holder is root or do == "replace":
            if holder is not root:
                holder[index] = draw(VALUES)
        elif isinstance(holder, list):
            holder.append(draw(VALUES))
        elif do == "remove":
            del holder[index]
        elif do == "rename":
            holder[draw(st.one_of(st.text(max_size=10), st.sampled_from(keys or ["x"])))] = (
                holder.pop(index)
            )
        else:
            holder[
                draw(
                    st.one_of(
                        st.sampled_from(keys or ["x"]),
                        st.text(max_size=10),
                        st.integers(),
                        st.none(),
                    )
                )
            ] = draw(VALUES)
    return root[0]


def judged(problems):
    """Hold a list of problems against what a refusal must be."""
    assert isinstance(problems, list)
    for problem in problems:
        said = printable(str(problem))
        assert all(char.isprintable() or unicodedata.category(char) == "Zs" for char in said)
        assert problem.file and problem.text
    return problems


def written(folder, data):
    """Write data to a file and return its path."""
    path = os.path.join(str(folder), "fuzzed.yml")
    with open(path, "wb") as handle:
        handle.write(data)
    return path


def dumped(value):
    """Return data as YAML that PyYAML itself wrote; what it cannot write is no job."""
    return yaml.safe_dump(value, allow_unicode=True).encode("utf-8", "surrogatepass")


def read_and_reread(folder, data):
    """Read a job file; where it is accepted, its content written anew reads the same. Return the
    job or None.
    """
    job, problems = jobs.read_job(written(folder, data), "fuzzed.yml")
    judged(problems)
    assert (job is None) == bool(problems)
    half, again = jobs.read_partial_job(written(folder, data), "fuzzed.yml")
    assert [str(p) for p in again] == [str(p) for p in problems]
    if job is None:
        return half
    said = {key: value for key, value in job.items() if key not in ("name", "file", "lines")}
    second, problems = jobs.read_job(written(folder, dumped(said)), "fuzzed.yml")
    assert not problems and {key: second[key] for key in said} == said
    return job


def on_a_site(job, extra):
    """Take a job through what comes next: the command line, and the choice of nodes."""
    site, problems = sites.read_site(
        {"trainers": ["node1", "node2"]},
        {"node1": dict(GOOD, ansible_host="192.0.2.1"), "node2": GOOD},
    )
    assert not problems
    job = jobs.apply_command_line(job, extra, problems)
    judged(problems)
    judged(sites.select_nodes(job, site)[1])
    judged(jobs.port_warnings(job, site))


GOOD = {
    "trainyard_accelerator": "cpu",
    "trainyard_devices": 2,
    "trainyard_env": {"OMP_NUM_THREADS": "1"},
    "trainyard_site": "lab",
    "trainyard_start_port": 17000,
    "trainyard_home": ".trainyard",
    "trainyard_address": "10.0.0.0/24",
    "trainyard_suites": {
        "paddledetection": {
            "code": {"path": "/src"},
            "data": {"coco": {"path": "/data"}},
            "environment": {
                "package": "paddlepaddle",
                "version": "2.6.2",
                "requirements": ["a.txt"],
            },
            "overrides": {"save_dir": "output/x"},
        }
    },
    "ansible_ssh_common_args": "-o StrictHostKeyChecking=yes",
    "ansible_port": 22,
}
KEYS = sorted(jobs.load_schema("job")["properties"])
SITE_KEYS = sorted(GOOD) + list(jobs.SITE_VARIABLES)


@FUZZ
@given(mutated_bytes(JOBS))
def test_bytes_of_a_job(tmp_path_factory, data):
    job = read_and_reread(tmp_path_factory.getbasetemp(), data)
    if job:
        on_a_site(job, {})


@FUZZ
@given(
    st.sampled_from(JOBS).map(yaml.safe_load).flatmap(lambda job: mutated(job, KEYS)),
    st.sampled_from(["nodes", "devices", "start_port"]),
    VALUES,
)
def test_values_of_a_job(tmp_path_factory, value, name, given_value):
    try:
        data = dumped(value)
    except yaml.YAMLError:
        return
    job = read_and_reread(tmp_path_factory.getbasetemp(), data)
    if job:
        on_a_site(job, {name: given_value})


@FUZZ
@given(mutated(GOOD, SITE_KEYS), mutated(GOOD, SITE_KEYS), st.sampled_from(["all", 1, 2]))
def test_a_site(one, two, nodes):
    one, two = [dict({str(key): item for key, item in host.items()}) for host in (one, two)]
    site, problems = sites.read_site(
        {"all": ["a", "b"], "trainers": ["a", "b"]}, {"a": one, "b": two}
    )
    judged(problems)
    judged(sites.select_nodes(job_of(nodes=nodes), site)[1])
    if not problems:
        assert site["start_port"] and all(
            node["devices"] and node["accelerator"] and node["port"] for node in site["nodes"]
        )
    ways = {
        name: {
            key: {"value": value, "raw": str(value), "hidden": False}
            for key, value in host.items()
            if ssh_policy.is_login_variable(key)
        }
        for name, host in (("a", one), ("b", two))
    }
    judged(ssh_policy.problems(ways, [("x", "ssh_args", one.get("trainyard_env"))]))


@FUZZ
@given(st.dictionaries(st.one_of(st.sampled_from(["nodes", "devices", "start_port", "rendezvous",
"scaling", "rehearse", "verify", "matrix", "site", "config",
       "preflight_rehearse", "preflight_rehearsal_hours", "a_count", "_raw_params"]),
       st.text(max_size=12)), VALUES, max_size=6))  # fmt: skip
def test_a_command_line(tmp_path_factory, extra):
    roles = {
        "preflight_rehearse": {"type": "bool"},
        "preflight_rehearsal_hours": {"type": "float"},
        "a_count": {"type": "int", "choices": [1]},
    }
    judged(jobs.unknown_variables(extra, ["nodes", "config"], roles))
    judged(extra_vars.validate(extra, ["rehearse", "verify", "matrix", "site"], roles))
    for verb in ("train", "check", "sync"):
        judged(extra_vars.conflicts(extra, verb, True))
    path, _shown, problems = jobs.find_job(
        extra.get("config"), str(ROOT / "playbooks/configs"), str(tmp_path_factory.getbasetemp())
    )
    assert (path is None) == bool(judged(problems))
    on_a_site(job_of(), extra)


SPECS = {
    name: spec
    for path in sorted((ROOT / "roles").glob("*/meta/argument_specs.yml"))
    for entry in yaml.safe_load(path.read_text(encoding="utf-8"))["argument_specs"].values()
    for name, spec in (entry.get("options") or {}).items()
}
DEFAULTS = yaml.safe_load((ROOT / "roles/preflight/defaults/main.yml").read_text(encoding="utf-8"))
LIMITS = [name for name in DEFAULTS if not name.endswith(("_home", "_dir"))]
NODE = {"name": "a", "accelerator": "gpu", "devices": ["0", "1"], "host": "h"}
ROOM = {
    "path": "/x",
    "free": 1 << 20,
    "size": 1 << 30,
    "inodes_free": 9,
    "inodes": 99,
    "read_only": False,
    "writable": True,
}
UNIT = {"memlock": [65536, 65536], "nofile": [9, 9], "tasks": 9, "memory": 1 << 20, "cores": 1}
OWN = {
    "places": [ROOM, dict(ROOM, path="/tmp")],
    "shm": ROOM,
    "memory": 1 << 20,
    "unit": UNIT,
    "rdma": ["mlx5_0"],
    "selinux": False,
}


def judges(name, value):
    """Let whatever judges by a limit do so, with a node that has little of everything."""
    allowed = {name.replace("preflight_", ""): value}
    fact = {
        "user": "u",
        "cores": 1,
        "machines": OWN,
        "sent": 100.0,
        "time": 160.0,
        "ended": 161.0,
        "received": 107.0,
    }
    capacity.space("a", OWN, allowed)
    capacity.unit(NODE, fact, allowed)
    machine.clocks({"a": fact}, allowed)
    outcome.judge({"nodes": [NODE], "ranks": []}, {}, allowed)
    assert (
        name not in ("preflight_bandwidth", "preflight_network_hours", "preflight_rehearsal_hours")
        or float(value) >= 0
    )


@FUZZ
@given(
    st.sampled_from(LIMITS).flatmap(
        lambda name: st.tuples(
            st.just(name),
            st.one_of(VALUES, mutated({"x": DEFAULTS[name]}).map(lambda d: d.get("x"))),
        )
    )
)
def test_a_limit_that_is_accepted_can_be_judged_by(pair):
    name, value = pair
    if "{{" in str(value):
        return
    found = role_vars.value_problems(name, value, SPECS[name])
    judged([yaml_source.Problem("site.yml", None, key, text, "x.y") for key, text in found])
    if not found:
        judges(name, value)


@FUZZ
@given(st.sampled_from(sorted(SPECS)), VALUES, st.text(max_size=12))
def test_any_variable_of_a_role(name, value, more):
    judged(
        [
            yaml_source.Problem("site.yml", None, key, text, "x.y")
            for key, text in role_vars.value_problems(name, value, SPECS[name])
        ]
    )
    said = role_vars.unknown_problem(
        name[: len(more)] + more, SPECS, ["preflight", "runtime", "ssh_trust"]
    )
    assert said is None or said
    assert role_vars.unknown_problem(name, SPECS, ["preflight", "runtime", "ssh_trust"]) is None


@FUZZ
@given(mutated_bytes(SITES), st.sampled_from([".yml", ".ini"]))
def test_bytes_of_an_inventory(tmp_path_factory, data, ending):
    path = written(tmp_path_factory.getbasetemp(), data)
    os.replace(path, path + ending)
    judged(duplicate_hosts.find_duplicates([path + ending]))
    if ending == ".yml":
        value, lines, problems = yaml_source.read(path + ending, "site.yml")
        judged(problems)
        variables = value if isinstance(value, dict) else {}
        judged(sites.read_site({"trainers": ["a"]}, {"a": untag.plain(variables)})[1])


@pytest.mark.parametrize(
    "text",
    [
        "[" * 200000,
        "- " * 100000,
        "a: " * 80000,
        "{a: " * 60000,
        "a: [" + "x, " * 60000 + "x]",
        "'" * 200000,
    ],
)
def test_no_text_takes_long(tmp_path, text):
    """Measured on an idle core: below 4 s each; without the limits the first one takes more than
    ten minutes.
    """
    job, problems = jobs.read_job(written(tmp_path, text.encode()), "fuzzed.yml")
    assert job is None and judged(problems)
