# SPDX-License-Identifier: Apache-2.0
"""conform's checks of MindOCR's document: contract D1 to D9. Each takes the ground, its line of
contract.yml and the findings.
"""

from __future__ import annotations

import os
import shlex

import yaml

from ..inputs import sources
from ..inputs.describe import settled
from ..plan import ascend_addresses, rank_table
from ..suites import launchers
from .fixtures import (
    CARDS,
    Broken,
    job_of,
    machines_of,
    without,
)

ASCEND = {"accelerator": "ascend"}


def refusal(make):
    """Return what the product says where it refuses to make a plan, as a list."""
    try:
        make()
    except Broken as error:
        return [error]
    return []


def visible(line, made, found):
    """Note whether every node's ranks may take the plan's devices and no others, where the launcher
    leaves that to a variable.
    """
    variable = line["document"]["visible"].get(made.plan["accelerator"])
    if (
        variable is None or made.plan["launcher"]["kind"] == "ranks"
    ):  # on a CPU there are none, and the rank table names each rank's
        return
    for node in made.plan["nodes"]:
        got = dict(made.plan["env"], **node["env"]).get(variable)
        found.same(
            "{} of {}, {}".format(variable, made.plan["launcher"]["name"], node["name"]),
            ",".join(node["devices"]),
            got,
        )


def ways(ground, line, found):
    """D1: each way starts on one and on two machines, on the plan's devices; the rank table is
    refused on GPU, with the way that works.
    """
    name = line["document"]["job"]
    for accelerator, allowed in line["values"].items():
        for launcher in allowed:
            for count in (1, 2):
                made = ground.make(
                    ground.job(name, launcher=launcher),
                    machines_of(line, count),
                    accelerator=accelerator,
                )
                found.same(
                    "%s on %s, %d machines: ranks" % (launcher, accelerator, count),
                    CARDS * count,
                    len(made.plan["ranks"]),
                )
                visible(line, made, found)
    other = refusal(
        lambda: ground.make(
            ground.job(name, launcher="rank_table"), machines_of(line, 1), accelerator="gpu"
        )
    )
    found.refused(
        "rank_table on GPU", other, "rank_table cannot start ranks on gpu", *line["values"]["gpu"]
    )
    found.say(
        "; ".join("{}: {}".format(kind, ", ".join(names)) for kind, names in line["values"].items())
    )


def distribute(ground, line, found):
    """D2: a config that says False gets the override, one that says True needs none, an override
    that says False is refused.
    """
    key, job = line["values"]["key"], job_of(ground, line)
    suite = ground.suite(job["suite"])
    for said in (False, True, None):
        values = values_of_file(ground, suite, key, said)
        asked = settled(
            dict(ASCEND, job=job, suite=suite, overrides={}, nodes=1, devices=2), values
        )
        found.same(
            f"config says {said}: the override",
            {} if said else {key: True},
            {name: value for name, value in asked["overrides"].items() if name == key},
        )
        argv = ground.make(job, machines_of(line, 1), says={key: said}, **ASCEND).plan["argv"]
        words = [
            yaml.safe_load(word.partition("=")[2]) for word in argv if word.startswith(key + "=")
        ]
        found.same(f"config says {said}: in the command", [] if said else [True], words)
    for given in (False, "no", 0):
        wrong = dict(job, overrides={key: given})
        asked = settled(
            dict(ASCEND, job=wrong, suite=suite, overrides={}, nodes=1, devices=2),
            values_of_file(ground, suite, key, True),
        )
        found.refused(f"the job says {given!r}", asked["problems"], key, "alone")
    found.say("False in the config: %s=true; False in the job: refused", key)


def values_of_file(ground, suite, key, said):
    """Return a config's values as the product reads them from a file, in which key has one value
    (None: it is not there).
    """
    place, value = ground.place(), said
    for part in reversed(key.split(".")):
        value = {part: value}
    with open(os.path.join(place, "config.yaml"), "w", encoding="utf-8") as handle:
        yaml.safe_dump({} if said is None else value, handle)
    return sources.config_chain(
        place, "config.yaml", suite["config_keys"]["base"], {"config.yaml": None}
    )[1]


def open_mpi(ground, line, found):
    """D3: the command as root, its form for another user, the document's own number and its
    devices; the hostfile of many machines.
    """
    job = job_of(ground, line)
    ground.commands(line, found, job, line["commands"], user="root", **ASCEND)
    made = ground.make(
        job,
        machines_of(line, 1),
        devices=line["example"]["devices"],
        says=line["says"],
        user="root",
        **ASCEND,
    )
    words = without(made.plan["argv"], line["added"])
    found.words(
        "the document's own %d devices" % line["example"]["devices"],
        shlex.split(line["printed"]) + ground.appended(line, made.suite),
        words,
    )
    visible(line, made, found)
    plain = ground.make(job, machines_of(line, 1), says=line["says"], **ASCEND).plan["argv"]
    found.same(
        "--allow-run-as-root where nobody is root",
        [],
        [word for word in plain if word == "--allow-run-as-root"],
    )
    for count in (2, 4):
        made = ground.make(job, machines_of(line, count), says=line["says"], **ASCEND)
        visible(line, made, found)
        many = made.plan
        hosts = ["%s slots=%d" % (machine, CARDS) for machine in machines_of(line, count)]
        found.same(
            "hostfile of %d machines" % count, hosts, many["files"].get("hostfile", "").splitlines()
        )
    more = list(dict.fromkeys(word for word in many["argv"] if word in line["added"]))
    found.say("root and not root; on many machines besides: %s", " ".join(more) or "nothing")


def table_of(ground, line):
    """Return (file name, text) of the rank table in the plan of the document's machine."""
    wanted = ground.contract["promises"]["D4"]["values"]
    made = ground.make(
        job_of(ground, line), [wanted["server"]], devices=wanted["devices"], **ASCEND
    )
    found = {name: text for name, text in made.plan["files"].items() if name.endswith(".json")}
    return next(iter(found.items()), ("", ""))


def table_file(ground, line, found):
    """D4: the file that hccl_tools.py names so, with devices 0 to 7."""
    wanted = line["values"]
    name, text = table_of(ground, line)
    found.same("the file's name", wanted["file"], name)
    table = rank_table.parse(text or "{}")
    devices = [
        device["device_id"]
        for server in table.get("server_list", [])
        for device in server["device"]
    ]
    found.same("its devices", [str(device) for device in range(wanted["devices"])], devices)
    found.same("what HCCL would refuse of it", [], rank_table.validate(table))
    found.say("%s in the plan, devices 0 to %d", name, wanted["devices"] - 1)


def table_text(ground, line, found):
    """D5: the file's text, line by line."""
    _name, text = table_of(ground, line)
    found.places("the table", "line", line["text"].splitlines(), text.splitlines())
    found.true("the same bytes", text == line["text"], "other line ends")
    problems = rank_table.validate(dict(rank_table.parse(line["text"]), version=1.0))
    found.refused("a table of another schema", problems, "version")
    found.say("%d lines as in the document, byte for byte", len(text.splitlines()))


def table_rules(ground, line, found):
    """D6: which ranges are taken, where the addresses come from, and how servers are merged."""
    values, taken = line["values"], []
    for first in range(CARDS):
        for last in range(first, CARDS):
            ids = [str(device) for device in range(first, last + 1)]
            inside = any(
                low <= first and last <= high and (high - low < CARDS - 1 or len(ids) == CARDS)
                for low, high in values["groups"]
            )
            wanted = inside and len(ids) in values["counts"]
            found.same("devices %d to %d" % (first, last), wanted, bool(compiled(ids)))
            taken += [ids] if wanted else []
    found.same("devices 1, 0", False, bool(compiled(["1", "0"])))
    sources_of_addresses(ground, found)
    made = ground.make(job_of(ground, line), machines_of(line, 4), **ASCEND)
    name, text = next(iter(made.plan["files"].items()))
    table = rank_table.parse(text)
    found.same(
        "servers in the list's order",
        machines_of(line, 4),
        [server["server_id"] for server in table["server_list"]],
    )
    ranks = [device["rank_id"] for server in table["server_list"] for device in server["device"]]
    found.same("ranks through all servers", [str(rank) for rank in range(4 * CARDS)], ranks)
    found.say(
        "%d of 36 ranges taken; hccn_tool before hccn.conf; 4 servers in %s", len(taken), name
    )


def compiled(ids):
    """Return the table of one server with some devices, None where it is refused."""
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


def sources_of_addresses(ground, found):
    """The tool is asked for each device; without it the file is read; without both nothing is made
    up.
    """
    asked, place = [], ground.place()

    def tool(argv):
        asked.append(
            [word for word in argv if word not in ("timeout", str(ascend_addresses.LIMIT_S))]
        )
        return 0, f"ipaddr:192.168.100.1{argv[-3]}\nnetmask:255.255.255.0\n", ""

    def no_tool(argv):
        raise OSError("no such program")

    conf, none = os.path.join(place, "hccn.conf"), os.path.join(place, "none")
    with open(conf, "w", encoding="utf-8") as handle:
        handle.write(
            "".join("address_%d=192.168.101.1%d\n" % (device, device) for device in range(CARDS))
        )
    for what, run, file, network in (("hccn_tool", tool, none, 100), (conf, no_tool, conf, 101)):
        read = ascend_addresses.read_devices(run, file)
        wanted = ["192.168.%d.1%d" % (network, device) for device in range(CARDS)]
        found.same(
            f"addresses from {os.path.basename(what)}",
            (what, wanted),
            (read["source"], [device["device_ip"] for device in read["devices"]]),
        )
    found.same(
        "how the tool is asked",
        [["hccn_tool", "-i", str(device), "-ip", "-g"] for device in range(CARDS)],
        asked,
    )
    try:
        said = [str(ascend_addresses.read_devices(no_tool, none))]
    except ascend_addresses.AscendError as error:
        said = error.problems
    found.refused("neither tool nor file", said, "no device has an address")


def script_of_ranks(ground, line, found):
    """D7: each rank's command and environment are those of the loop; each has a log of its own."""
    job, values = job_of(ground, line), line["values"]
    ground.commands(line, found, job, line["commands"], **ASCEND)
    for count in line["commands"]:
        made = ground.make(job, machines_of(line, count), says=line["says"], **ASCEND)
        ranks = made.plan["ranks"]
        for number, rank in enumerate(ranks):
            counts = {"device": str(number % CARDS), "rank": str(number)}
            wanted = dict(
                values["same"], **{name: counts[what] for name, what in values["counted"].items()}
            )
            wanted.update({name: str(CARDS * count) for name in values["all"]})
            wanted[values["file"]] = "./" + next(iter(made.plan["files"]), "no file")
            got = {
                name: text for name, text in rank["env"].items() if count == 1 or name in wanted
            }  # many servers have a number besides
            found.same("rank %d of %d" % (number, len(ranks)), wanted, got)
        found.same(
            "logs of %d ranks" % len(ranks), len(ranks), len({rank["log"] for rank in ranks})
        )
        found.same("rank 0's log", values["log"], os.path.basename(ranks[0]["log"]))
        found.same("who starts the ranks", "ranks", made.plan["launcher"]["kind"])
    found.say("environment of %d ranks as the loop sets it, %d logs", len(ranks), len(ranks))


def another_model(ground, line, found):
    """D8: one word of the command changes."""
    name, config = line["document"]["job"], line["values"]["config"]
    one, other = (
        ground.make(
            ground.job(name, **changes),
            machines_of(line, 1),
            says={"system.distribute": True},
            **ASCEND,
        )
        for changes in ({}, {"config": config})
    )
    found.words(
        f"with {config}",
        [config if word == one.job["config"] else word for word in one.plan["argv"]],
        other.plan["argv"],
    )
    found.true("the models differ", one.job["config"] != config)
    found.same(
        "ranks",
        [rank["env"] for rank in one.plan["ranks"]],
        [rank["env"] for rank in other.plan["ranks"]],
    )
    found.say("one word differs: %s", config)


def numbers(ground, line, found):
    """D9: the numbers of devices that work, on one and on many machines, by each launcher; msrun's
    commands.
    """
    suite = ground.suite(line["document"]["suite"])
    found.true("msrun is one of its launchers", "msrun" in suite["launchers"], suite["launchers"])
    job = job_of(ground, line, launcher=line["other_launcher"])
    ground.commands(line, found, job, line["commands"], **ASCEND)
    name = line["document"]["job"]
    for launcher in suite["launchers"]:
        one = ground.job(name, launcher=launcher)
        kind = "ascend" if "ascend" in launchers.LAUNCHERS[launcher]["devices"] else "cpu"
        for devices in line["values"]["alone"]:
            made = ground.make(one, machines_of(line, 1), devices=devices, accelerator=kind)
            found.same("%s: %d devices" % (launcher, devices), devices, len(made.plan["ranks"]))
            visible(line, made, found)
        for count in (2, 4):
            made = ground.make(
                one, machines_of(line, count), devices=line["values"]["many"], accelerator=kind
            )
            found.same(
                "%s: %d x %d" % (launcher, count, line["values"]["many"]),
                count * line["values"]["many"],
                len(made.plan["ranks"]),
            )
            visible(line, made, found)
    odd = refusal(
        lambda: ground.make(
            ground.job(name, launcher="rank_table"), machines_of(line, 1), devices=3, **ASCEND
        )
    )
    found.refused("3 devices", odd, "1, 2, 4 or 8 devices")
    found.say(
        "%s: %s devices alone, %d x N",
        ", ".join(suite["launchers"]),
        ", ".join(map(str, line["values"]["alone"])),
        line["values"]["many"],
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
