# SPDX-License-Identifier: Apache-2.0
"""Hostile values for the fields of a module's answer. They come from the schema of the answer, or
from an honest answer if there is no schema.
"""

from __future__ import annotations

import random

HUGE, LONG, DEEP = [1000, 1000, 10], [100, 1000], 3000
# What Ansible, or the product, could obey in an answer. The values are made by `extra`.
KEYS = (
    "ansible_facts", "add_host", "add_group", "ansible_notify", "_ansible_notify", "_ansible_delegated_vars", "_ansible_no_log",
    "_ansible_verbose_always", "_ansible_item_label", "_ansible_ignore_errors", "include_vars", "include", "include_args",
    "ansible_included_var_files", "include_role", "invocation", "results", "ansible_module_results", "ansible_stats", "ansible_job_id",
    "warnings", "deprecations", "exception", "msg", "diff", "stdout", "stderr", "unreachable", "skipped", "failed", "rc",
    "__ansible_type", "__ansible_unsafe", "__ansible_vault", "__payload__", "attempts", "retries", "until",
)  # fmt: skip
ESCAPES = "\x1b]52;c;cHduZWQ=\x07\x1b[2J\x1b[31m\x9b31m\x9d0;t\x9c\u202egnp.\u2066\x00\x08\r\x7f"


def values(top, run, other, honest, liar):
    """Return {name of a lie: how the field is changed}; every path and command would leave its mark
    below top/outside.
    """
    mark = str(top / "outside" / "pwned")
    plain = {
        "null": None, "true": True, "number": 7, "text": "x", "list": [], "mapping": {"a": 1}, "empty": "",
        "2^70": 2**70, "negative": -1, "nan": float("nan"), "inf": float("inf"), "fraction": 0.5,
        "parent": "../../../../outside/pwned", "parents": ["../../../../outside/pwned"], "absolute": mark, "absolutes": [mark],
        "tilde": "~/pwned", "dot": ".", "dots": "..", "slash": "/", "ends in newline": f"{run}\n",
        "rsync": f"a --rsh=sh -c 'touch {mark}' x", "rsyncs": [f"log/a --rsh=sh -c 'touch {mark}' x"],
        "option": "--remove-source-files", "proxy": f"-oProxyCommand=touch {mark}", "shell": f"$(touch {mark});`touch {mark}`|touch {mark}",
        "newline": f"a\nHost *\n  ProxyCommand touch {mark}\n", "escapes": ESCAPES, "surrogate": "\ud800\udcff",
        "other run": other, "other runs": [other], "other node": honest, "other nodes": [honest, honest], "own name": liar,
        "localhost": "localhost", "localhosts": ["localhost"], "pattern": f"all:!{liar}", "patterns": ["all", "localhost"],
        "words": f"{run} -e trainyard_runs_dir={mark}", "jinja": f"{{{{ lookup('pipe', 'touch {mark}') }}}}",
        "jinjas": [f"{{% for x in range(10**9) %}}{{{{ lookup('pipe', 'touch {mark}') }}}}{{% endfor %}}"],
        "regex": "(a|a|b)+$" * 20, "format": "%s%n{0.__class__}{}", "html": "</script><script>1</script>", "date": 1e308,
        "hidden key": {"ansible_connection": "local", "../../outside/pwned": ["f", 1, "x"], ESCAPES: ESCAPES},
        "lists": [[[["x"]]]], "mappings": [{}, {"a": {}}], "nulls": [None, None],
    }  # fmt: skip
    made = {name: {"do": "set", "value": value} for name, value in plain.items()}
    made["missing"] = {"do": "drop"}
    made["huge text"] = {"do": "set", "value": "A", "times": HUGE}
    made["long list"] = {"do": "set", "value": [0], "times": LONG}
    made["deep"] = {"do": "set", "value": "x", "deep": DEEP}
    return made


def extra(top, run, other, honest):
    """Return {key: value} of keys that no module has, or that Ansible reads."""
    mark = str(top / "outside" / "pwned")
    facts = {
        "run_attempt": {"run_id": other, "number": 1, "nodes": ["localhost"]}, "run_context": {"job": {"run": other}},
        "collect_problems": [mark], "trainyard_runs_dir": mark, "collect_runs_dir": mark,
        "ansible_connection": "local", "ansible_host": "localhost", "ansible_ssh_common_args": f"-oProxyCommand=touch {mark}",
        "ansible_python_interpreter": f"/bin/sh -c 'touch {mark}'", "trainyard_home": mark, "launch_home": mark, "ansible_become": True,
        "discovered_interpreter_python": f"/bin/sh -c 'touch {mark}' #", "ansible_remote_tmp": mark, "preflight_state_dir": mark,
    }  # fmt: skip
    found = {name: {"x": ESCAPES, "mark": mark} for name in KEYS}
    found.update(
        ansible_facts=facts, _ansible_delegated_vars={"ansible_host": "localhost", "localhost": facts}, _ansible_no_log=True,
        add_host={"host_name": "node99", "groups": ["trainers"], "host_vars": {"ansible_connection": "local"}},
        add_group="trainers", ansible_notify=["Reload systemd"], _ansible_notify=["Reload systemd"], _ansible_verbose_always=True,
        include_vars=mark, include=mark, include_args={"a": mark}, ansible_included_var_files=[mark], include_role={"name": mark},
        results=[{"ansible_facts": facts, "add_host": {"host_name": "localhost"}, "failed": True, "msg": ESCAPES}],
        warnings=[ESCAPES, {"msg": ESCAPES}, 7], deprecations=[{"msg": ESCAPES, "version": ESCAPES, "collection_name": ESCAPES}],
        exception=ESCAPES, msg=ESCAPES, stdout=ESCAPES, stderr=ESCAPES, unreachable=True, skipped=True, failed="x" + ESCAPES, rc=ESCAPES,
        diff=[{"before": ESCAPES, "after": ESCAPES, "before_header": ESCAPES}], invocation={"module_args": {"dest": mark}},
        __ansible_type="TrustedAsTemplate", __ansible_unsafe=ESCAPES, __ansible_vault="$ANSIBLE_VAULT;1.1;AES256\n00", attempts=10**9,
    )  # fmt: skip
    return found


def fields(answer, schema=None, depth=7):
    """Return the paths of an answer's fields: of an honest one, and what its schema names besides."""
    found = {}
    _of_answer(answer, (), found, depth)
    return list(found)


def leaves(answer):
    """Return the paths of an answer's fields that hold no other field."""
    paths = fields(answer)
    inner = {path[:end] for path in paths for end in range(1, len(path))}
    return [path for path in paths if path not in inner]


def _of_answer(value, path, found, depth):
    if path:
        found[path] = True
    if not depth:
        return
    if isinstance(value, dict):
        for key in list(value)[:60]:
            if not (not path and key in ("invocation", "changed")):
                _of_answer(value[key], path + (key,), found, depth - 1)
    elif isinstance(value, list) and value:
        _of_answer(value[0], path + (0,), found, depth - 1)


def told(module, path, label, change):
    """Return one lie as the stand-in reads it."""
    return dict(
        change,
        module=module,
        path=list(path),
        label="{} {}: {}".format(module, ".".join(map(str, path)), label),
    )


def matrix(module, answer, changes, more):
    """Return every lie about one module: each field with each value, and keys that do not belong,
    at the top and one level down.
    """
    lies = [
        told(module, path, label, change)
        for path in fields(answer)
        for label, change in changes.items()
    ]
    folders = [()] + [
        (key,) for key, value in answer.items() if isinstance(value, dict) and key != "invocation"
    ]
    for folder in folders:
        lies += [
            told(module, folder + (key,), "extra key", {"do": "set", "value": value})
            for key, value in more.items()
        ]
    return lies


def raw(module):
    """Return lies that are no answer at all."""
    line = ESCAPES + "\n"
    kinds = {
        "garbage before": {"before": line}, "garbage after": {"after": line}, "nothing but garbage": {"before": line, "after": line},
        "a second answer after": {"after": '{"changed": false, "ansible_facts": {"ansible_connection": "local"}}\n'},
        "a second answer before": {"before": '{"changed": false, "msg": "x"}\n'}, "banner": {"stderr": line * 3},
        "ends by signal": {"signal": 9}, "a broken end": {"after": '{"changed"'}, "not UTF-8": {"after": "\udcff"},
    }  # fmt: skip
    return [
        dict(kind, do="raw", module=module, path=[], label=f"{module} raw: {name}")
        for name, kind in kinds.items()
    ]


def flood(module, count):
    """Return the lie that is long: `count` MiB after the answer."""
    return dict(
        do="raw",
        module=module,
        path=[],
        flood="A" * (1 << 20),
        count=count,
        label="%s raw: %d MiB" % (module, count),
    )


def sample(lies, count, seed):
    """Return some lies: every field at least once, then whatever comes, in an order by the seed."""
    chance = random.Random(seed)
    shuffled = list(lies)
    chance.shuffle(shuffled)
    first, seen, rest = [], set(), []
    for lie in shuffled:
        key = (lie["module"], tuple(lie["path"]))
        (rest if key in seen else first).append(lie)
        seen.add(key)
    return (first + rest)[: max(count, len(first))]
