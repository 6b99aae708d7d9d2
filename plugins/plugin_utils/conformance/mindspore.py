# SPDX-License-Identifier: Apache-2.0
"""conform's checks of MindOCR's document, contract D1 to D9.

Each takes the fixtures, its line of contract.yml and the findings.
"""

from __future__ import annotations

import os
import shlex
from collections.abc import Callable, Sequence
from typing import Any, NoReturn

import yaml
from ansible_collections.trainyard.cluster.plugins.module_utils.plan import (
    ascend_addresses,
    rank_table,
)
from ansible_collections.trainyard.cluster.plugins.module_utils.suites import launcher_table

from ..inputs import sources
from ..inputs.describe import settle_options
from .findings_check import Findings
from .fixtures import (
    CARDS,
    Broken,
    CompiledJob,
    Fixtures,
    Line,
    Suite,
    job_of,
    machines_of,
    replaced,
    without,
)

ASCEND: dict[str, Any] = {"accelerator": "ascend"}


def refusal(make: Callable[[], object]) -> list[Broken]:
    """Return the product's refusal to make a plan as a list, [] for none."""
    try:
        make()
    except Broken as error:
        return [error]
    return []


def visible(line: Line, compiled_job: CompiledJob, findings: Findings) -> None:
    """Note whether every node's ranks may take the plan's devices alone.

    That counts where the launcher leaves it to a variable.
    """
    variable = line["document"]["visible"].get(compiled_job.plan["accelerator"])
    # A CPU has no devices, and the rank table names each rank's.
    if variable is None or compiled_job.plan["launcher"]["kind"] == "ranks":
        return
    for node in compiled_job.plan["nodes"]:
        got = dict(compiled_job.plan["env"], **node["env"]).get(variable)
        findings.same(
            f"{variable} of {compiled_job.plan['launcher']['name']}, {node['name']}",
            ",".join(node["devices"]),
            got,
        )


def ways(fixtures: Fixtures, line: Line, findings: Findings) -> None:
    """Check D1: each launcher starts on one and on two machines.

    It starts on the plan's devices. The rank table is refused on GPU, with the launchers that work.
    """
    name = line["document"]["job"]
    for accelerator, allowed in line["values"].items():
        for launcher in allowed:
            for count in (1, 2):
                compiled_job = fixtures.make(
                    fixtures.job(name, launcher=launcher),
                    machines_of(line, count),
                    accelerator=accelerator,
                )
                findings.same(
                    f"{launcher} on {accelerator}, {count} machines: ranks",
                    CARDS * count,
                    len(compiled_job.plan["ranks"]),
                )
                visible(line, compiled_job, findings)
    other = refusal(
        lambda: fixtures.make(
            fixtures.job(name, launcher="rank_table"), machines_of(line, 1), accelerator="gpu"
        )
    )
    findings.refused(
        "rank_table on GPU", other, "rank_table cannot start ranks on gpu", *line["values"]["gpu"]
    )
    findings.say("; ".join(f"{kind}: {', '.join(names)}" for kind, names in line["values"].items()))


def distribute(fixtures: Fixtures, line: Line, findings: Findings) -> None:
    """Check D2: the override of a config.

    A config that says False gets the override, one that says True needs none. An override that says
    False is refused.
    """
    key, job = line["values"]["key"], job_of(fixtures, line)
    suite = fixtures.suite(job["suite"])
    for config_value, overrides in ((False, {key: True}), (True, {}), (None, {key: True})):
        values = values_of_file(fixtures, suite, key, config_value)
        options = settle_options(
            dict(ASCEND, job=job, suite=suite, overrides={}, nodes=1, devices=2), values
        )
        findings.same(
            f"config says {config_value}: the override",
            overrides,
            {name: value for name, value in options["overrides"].items() if name == key},
        )
        argv = fixtures.make(job, machines_of(line, 1), says={key: config_value}, **ASCEND).plan[
            "argv"
        ]
        words = [
            yaml.safe_load(word.partition("=")[2]) for word in argv if word.startswith(key + "=")
        ]
        findings.same(
            f"config says {config_value}: in the command", list(overrides.values()), words
        )
    for setting in (False, "no", 0):
        wrong = dict(job, overrides={key: setting})
        options = settle_options(
            dict(ASCEND, job=wrong, suite=suite, overrides={}, nodes=1, devices=2),
            values_of_file(fixtures, suite, key, True),
        )
        findings.refused(f"the job says {setting!r}", options["problems"], key, "alone")
    findings.say(f"False in the config: {key}=true; False in the job: refused")


def values_of_file(fixtures: Fixtures, suite: Suite, key: str, config_value: Any) -> dict[str, Any]:
    """Return a config's values as the product reads them from a file.

    key has one value in it (None: it is missing).
    """
    folder, config = fixtures.place(), {}
    if config_value is not None:
        config = config_value
        for part in reversed(key.split(".")):
            config = {part: config}
    with open(os.path.join(folder, "config.yaml"), "w", encoding="utf-8") as handle:
        yaml.safe_dump(config, handle)
    return sources.config_chain(
        folder, "config.yaml", suite["config_keys"]["base"], {"config.yaml": None}
    )[1]


def open_mpi(fixtures: Fixtures, line: Line, findings: Findings) -> None:
    """Check D3: the command as root, and its form for another user.

    Also the documented number of devices, and the hostfile of many machines.
    """
    job = job_of(fixtures, line)
    fixtures.commands(line, findings, job, line["commands"], user="root", **ASCEND)
    compiled_job = fixtures.make(
        job,
        machines_of(line, 1),
        devices=line["example"]["devices"],
        says=line["says"],
        user="root",
        **ASCEND,
    )
    words = without(compiled_job.plan["argv"], line["added"])
    findings.words(
        f"the documented {line['example']['devices']} devices",
        shlex.split(line["printed"]) + fixtures.appended(line, compiled_job.suite),
        words,
    )
    visible(line, compiled_job, findings)
    plain = fixtures.make(job, machines_of(line, 1), says=line["says"], **ASCEND).plan["argv"]
    findings.same(
        "--allow-run-as-root where nobody is root",
        [],
        [word for word in plain if word == "--allow-run-as-root"],
    )
    for count in (2, 4):
        compiled_job = fixtures.make(job, machines_of(line, count), says=line["says"], **ASCEND)
        visible(line, compiled_job, findings)
        many = compiled_job.plan
        hosts = [f"{machine} slots={CARDS}" for machine in machines_of(line, count)]
        findings.same(
            f"hostfile of {count} machines", hosts, many["files"].get("hostfile", "").splitlines()
        )
    more = list(dict.fromkeys(word for word in many["argv"] if word in line["added"]))
    findings.say(f"root and not root; on many machines besides: {' '.join(more) or 'nothing'}")


def table_of(fixtures: Fixtures, line: Line) -> tuple[str, str]:
    """Return (file name, text) of the rank table for the documented machine."""
    promise = fixtures.contract["promises"]["D4"]["values"]
    compiled_job = fixtures.make(
        job_of(fixtures, line), [promise["server"]], devices=promise["devices"], **ASCEND
    )
    tables = {
        name: text for name, text in compiled_job.plan["files"].items() if name.endswith(".json")
    }
    return next(iter(tables.items()), ("", ""))


def table_file(fixtures: Fixtures, line: Line, findings: Findings) -> None:
    """Check D4: the file with the name of hccl_tools.py, and devices 0 to 7."""
    promise = line["values"]
    name, text = table_of(fixtures, line)
    findings.same("the file's name", promise["file"], name)
    table = rank_table.parse(text or "{}")
    devices = [
        device["device_id"]
        for server in table.get("server_list", [])
        for device in server["device"]
    ]
    findings.same("its devices", [str(device) for device in range(promise["devices"])], devices)
    findings.same("what HCCL would refuse of it", [], rank_table.validate(table))
    findings.say(f"{name} in the plan, devices 0 to {promise['devices'] - 1}")


def table_text(fixtures: Fixtures, line: Line, findings: Findings) -> None:
    """Check D5: the file's text, line by line."""
    _name, text = table_of(fixtures, line)
    findings.places("the table", "line", line["text"].splitlines(), text.splitlines())
    findings.true("the same bytes", text == line["text"], "other line ends")
    problems = rank_table.validate(dict(rank_table.parse(line["text"]), version=1.0))
    findings.refused("a table of another schema", problems, "version")
    findings.say(f"{len(text.splitlines())} lines as documented, byte for byte")


def table_rules(fixtures: Fixtures, line: Line, findings: Findings) -> None:
    """Check D6: permitted ranges, sources of addresses, merged servers."""
    values, taken = line["values"], []
    for first in range(CARDS):
        for last in range(first, CARDS):
            ids = [str(device) for device in range(first, last + 1)]
            inside = any(
                low <= first and last <= high and (high - low < CARDS - 1 or len(ids) == CARDS)
                for low, high in values["groups"]
            )
            is_valid = inside and len(ids) in values["counts"]
            findings.same(f"devices {first} to {last}", is_valid, bool(compiled(ids)))
            if is_valid:
                taken.append(ids)
    findings.same("devices 1, 0", False, bool(compiled(["1", "0"])))
    sources_of_addresses(fixtures, findings)
    compiled_job = fixtures.make(job_of(fixtures, line), machines_of(line, 4), **ASCEND)
    name, text = next(iter(compiled_job.plan["files"].items()))
    table = rank_table.parse(text)
    findings.same(
        "servers in the list's order",
        machines_of(line, 4),
        [server["server_id"] for server in table["server_list"]],
    )
    ranks = [device["rank_id"] for server in table["server_list"] for device in server["device"]]
    findings.same("ranks through all servers", [str(rank) for rank in range(4 * CARDS)], ranks)
    findings.say(
        f"{len(taken)} of 36 ranges taken; hccn_tool before hccn.conf; 4 servers in {name}"
    )


def compiled(ids: Sequence[str]) -> dict[str, Any] | None:
    """Return the table of one server with some devices, None for a refusal."""
    node = {
        "name": "n",
        "server_id": "192.0.2.1",
        "devices": ids,
        "device_ips": {device: f"192.168.1.1{device}" for device in ids},
    }
    try:
        return rank_table.compile_table([node])
    except rank_table.RankTableError:
        return None


def sources_of_addresses(fixtures: Fixtures, findings: Findings) -> None:
    """Check the sources of the devices' addresses.

    The tool is called for each device. Without it the file is read. Without both nothing is made
    up.
    """
    calls, folder = [], fixtures.place()

    def tool(argv: Sequence[str]) -> tuple[int, str, str]:
        calls.append(
            [word for word in argv if word not in ("timeout", str(ascend_addresses.LIMIT_S))]
        )
        return 0, f"ipaddr:192.168.100.1{argv[-3]}\nnetmask:255.255.255.0\n", ""

    def no_tool(argv: Sequence[str]) -> NoReturn:
        raise OSError("no such program")

    conf, none = os.path.join(folder, "hccn.conf"), os.path.join(folder, "none")
    with open(conf, "w", encoding="utf-8") as handle:
        handle.write(
            "".join(f"address_{device}=192.168.101.1{device}\n" for device in range(CARDS))
        )
    for source, run, file, network in (("hccn_tool", tool, none, 100), (conf, no_tool, conf, 101)):
        read = ascend_addresses.read_devices(run, file)
        expected = [f"192.168.{network}.1{device}" for device in range(CARDS)]
        findings.same(
            f"addresses from {os.path.basename(source)}",
            (source, expected),
            (read["source"], [device["device_ip"] for device in read["devices"]]),
        )
    findings.same(
        "how the tool is asked",
        [["hccn_tool", "-i", str(device), "-ip", "-g"] for device in range(CARDS)],
        calls,
    )
    try:
        problems = [str(ascend_addresses.read_devices(no_tool, none))]
    except ascend_addresses.AscendError as error:
        problems = error.problems
    findings.refused("neither tool nor file", problems, "no device has an address")


def script_of_ranks(fixtures: Fixtures, line: Line, findings: Findings) -> None:
    """Check D7: each rank's command and environment are those of the loop.

    Each has a log of its own.
    """
    job, values = job_of(fixtures, line), line["values"]
    fixtures.commands(line, findings, job, line["commands"], **ASCEND)
    for count in line["commands"]:
        compiled_job = fixtures.make(job, machines_of(line, count), says=line["says"], **ASCEND)
        ranks = compiled_job.plan["ranks"]
        for number, rank in enumerate(ranks):
            counts = {"device": str(number % CARDS), "rank": str(number)}
            expected = dict(
                values["same"],
                **{name: counts[quantity] for name, quantity in values["counted"].items()},
            )
            expected.update({name: str(CARDS * count) for name in values["all"]})
            expected[values["file"]] = "./" + next(iter(compiled_job.plan["files"]), "no file")
            # Many servers have a number besides.
            got = {
                name: text for name, text in rank["env"].items() if count == 1 or name in expected
            }
            findings.same(f"rank {number} of {len(ranks)}", expected, got)
        findings.same(
            f"logs of {len(ranks)} ranks", len(ranks), len({rank["log"] for rank in ranks})
        )
        findings.same("rank 0's log", values["log"], os.path.basename(ranks[0]["log"]))
        findings.same("who starts the ranks", "ranks", compiled_job.plan["launcher"]["kind"])
    findings.say(f"environment of {len(ranks)} ranks as the loop sets it, {len(ranks)} logs")


def another_model(fixtures: Fixtures, line: Line, findings: Findings) -> None:
    """Check D8: one word of the command changes."""
    name, config = line["document"]["job"], line["values"]["config"]
    one, other = (
        fixtures.make(
            fixtures.job(name, **changes),
            machines_of(line, 1),
            says={"system.distribute": True},
            **ASCEND,
        )
        for changes in ({}, {"config": config})
    )
    findings.words(
        f"with {config}",
        replaced(one.plan["argv"], one.job["config"], config),
        other.plan["argv"],
    )
    findings.true("the models differ", one.job["config"] != config)
    findings.same(
        "ranks",
        [rank["env"] for rank in one.plan["ranks"]],
        [rank["env"] for rank in other.plan["ranks"]],
    )
    findings.say(f"one word differs: {config}")


def numbers(fixtures: Fixtures, line: Line, findings: Findings) -> None:
    """Check D9: the numbers of devices that work, by each launcher.

    They are checked on one and on many machines, with msrun's commands.
    """
    suite = fixtures.suite(line["document"]["suite"])
    findings.true(
        "msrun is one of its launchers", "msrun" in suite["launchers"], suite["launchers"]
    )
    job = job_of(fixtures, line, launcher=line["other_launcher"])
    fixtures.commands(line, findings, job, line["commands"], **ASCEND)
    name = line["document"]["job"]
    for launcher in suite["launchers"]:
        one = fixtures.job(name, launcher=launcher)
        kind = "cpu"
        if "ascend" in launcher_table.LAUNCHERS[launcher]["devices"]:
            kind = "ascend"
        for devices in line["values"]["alone"]:
            compiled_job = fixtures.make(
                one, machines_of(line, 1), devices=devices, accelerator=kind
            )
            findings.same(
                f"{launcher}: {devices} devices", devices, len(compiled_job.plan["ranks"])
            )
            visible(line, compiled_job, findings)
        for count in (2, 4):
            compiled_job = fixtures.make(
                one, machines_of(line, count), devices=line["values"]["many"], accelerator=kind
            )
            findings.same(
                f"{launcher}: {count} x {line['values']['many']}",
                count * line["values"]["many"],
                len(compiled_job.plan["ranks"]),
            )
            visible(line, compiled_job, findings)
    odd = refusal(
        lambda: fixtures.make(
            fixtures.job(name, launcher="rank_table"), machines_of(line, 1), devices=3, **ASCEND
        )
    )
    findings.refused("3 devices", odd, "1, 2, 4 or 8 devices")
    findings.say(
        f"{', '.join(suite['launchers'])}: {', '.join(map(str, line['values']['alone']))} devices"
        f" alone, {line['values']['many']} x N"
    )


CHECKS = {
    "D1": ways,
    "D2": distribute,
    "D3": open_mpi,
    "D4": table_file,
    "D5": table_text,
    "D6": table_rules,
    "D7": script_of_ranks,
    "D8": another_model,
    "D9": numbers,
}
