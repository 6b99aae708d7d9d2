# SPDX-License-Identifier: Apache-2.0
"""A run's supervisor on a node, as the controller's modules see it: installed, asked, removed.

Functions take `run_command`, a callable like AnsibleModule.run_command.
"""

from __future__ import annotations

import json
import os
import time

from ..base.files import read_mapping, replace_file, write_json
from . import attempt_dir, ownership, supervisor_unit
from . import supervisor_order as orders

# Seconds that a majority may take to have a stop.
FINAL_SECONDS = 12.0


def install(run_command, home, base, given, archives):
    """Give a node its order and start its supervisor. Raises AttemptError where it does not start.

    given: run, site, node, nodes, spares, voters, first, mesh, start, max_restarts, point, notify,
    plans (see planned_attempts.py), and the text job. archives: {file name: bytes}.
    """
    place = orders.place_of(os.path.join(base, "runs", given["run"]), given["node"])
    earlier = read(home, base, given["run"], given["node"])
    if earlier and earlier["open"]:
        # It stays for a while after the run's end, and would write what is forgotten here.
        supervisor_unit.remove(run_command, home, earlier["unit"], given["node"])
    _forget_earlier(place)
    texts = {
        orders.PLANS: json.dumps(given["plans"]),
        orders.JOB: given["job"],
    }
    os.makedirs(place, mode=0o700, exist_ok=True)
    for name, content in {**texts, **archives}.items():
        replace_file(os.path.join(place, name), content)
    order = orders.Order(
        version=orders.VERSION,
        run=given["run"],
        site=given["site"],
        node=given["node"],
        base=base,
        home=home,
        nodes=given["nodes"],
        spares=given["spares"],
        voters=given["voters"],
        first=given["first"],
        mesh=given["mesh"],
        max_restarts=given["max_restarts"],
        point=given["point"] or None,
        start=given["start"],
        boot=ownership.boot_mark(),
        until=time.clock_gettime(time.CLOCK_BOOTTIME) + orders.GRANTED_SECONDS,
        notify=given["notify"],
    )
    write_json(os.path.join(place, orders.NAME), order._asdict())
    unit = attempt_dir.unit_name(order.run, order.first)
    problem = supervisor_unit.install(run_command, home, place, unit, order.node)
    if problem:
        raise attempt_dir.AttemptError("attempt.supervisor_not_started", problem)


def begin(run_command, home, base, given, archives):
    """Install a run's supervisor. Where it does not start, stop the attempt and raise AttemptError.

    given, archives: as `install` takes them.
    """
    try:
        install(run_command, home, base, given, archives)
    except attempt_dir.AttemptError:
        unit = attempt_dir.unit_name(given["run"], given["first"])
        place = attempt_dir.attempt_dir(base, given["run"], given["first"])
        attempt_dir.stop(run_command, place, unit, "peer", "a supervisor that did not start")
        raise


def check_start(home, base, params):
    """Raise AttemptError where the run's nodes begin its attempts themselves.

    params: run_id, node and start (the token) of a controller's start.
    """
    found = read(home, base, params["run_id"], params["node"])
    is_open = found and found["open"] and found["status"].get("is_open") is not False
    if is_open and found["start"] != params["start"]:
        raise attempt_dir.AttemptError(
            "attempt.supervised",
            f"the nodes of {params['run_id']} begin its attempts themselves: follow it, or stop it"
            f" first: ansible-playbook playbooks/stop.yml -e run={params['run_id']}",
        )


def _forget_earlier(place):
    """Remove the state of a supervisor that an earlier start of this run had here.

    The votes go last. Without them the rest would look as if they had been lost.
    """
    for name in (orders.STATUS, orders.LEASE, orders.WISH, orders.REPLICATOR, orders.STATE):
        path = os.path.join(place, name)
        if os.path.exists(path):
            os.unlink(path)


def read(home, base, run, node):
    """Return {open, status, start} of a run's supervisor on this node, None without one.

    open: whether it is installed, so that the run's nodes begin its attempts.
    """
    place = orders.place_of(os.path.join(base, "runs", run), node)
    order = read_mapping(os.path.join(place, orders.NAME))
    if not isinstance(order.get("first"), int):
        return None
    unit = attempt_dir.unit_name(run, order["first"])
    return {
        "open": supervisor_unit.is_installed(home, unit, node),
        "status": read_mapping(os.path.join(place, orders.STATUS)),
        "start": order.get("start"),
        "unit": unit,
        "place": place,
    }


def describe(home, base, run, node):
    """Return {is_open, teams}, None where a controller restarts the run.

    is_open: whether this node still does. teams: [{attempt, nodes}], the nodes in rank order.
    """
    found = read(home, base, run, node)
    if not found:
        return None
    teams = found["status"].get("teams")
    if not isinstance(teams, dict):  # the training could have written it
        teams = {}
    return {
        "is_open": found["open"] and found["status"].get("is_open") is not False,
        "teams": [
            {"attempt": int(number), "nodes": nodes}
            for number, nodes in teams.items()
            if number.isdigit() and isinstance(nodes, list)
        ],
    }


def ask_to_stop(home, base, run, node, by):
    """Ask a run's supervisor for the stop of the run, and return whether there is one to ask.

    From now on this node begins no attempt of it, whatever its peers have agreed on.
    """
    found = read(home, base, run, node)
    if not found or not found["open"]:
        return False
    wish = {"stop": True, "by": by, "time": time.time()}
    write_json(os.path.join(found["place"], orders.WISH), wish)
    return True


def await_final(home, base, run, node, seconds=FINAL_SECONDS):
    """Return whether a majority of the run's nodes has its stop, within some seconds."""
    until = time.monotonic() + seconds
    while True:
        found = read(home, base, run, node)
        if not found or found["status"].get("is_open") is False:
            return True
        if time.monotonic() >= until:
            return False
        time.sleep(0.3)


def leave(run_command, home, base, run, node, lost):
    """Remove this node's supervisor where the lost nodes can decide nothing without it.

    Return whether that is so: at most half of the voters are lost, and every other node leaves,
    too. A lost node that still trains ends when its lease does. lost: names of nodes.
    """
    found = read(home, base, run, node)
    if not found:
        return False
    voters = read_mapping(os.path.join(found["place"], orders.NAME)).get("voters") or []
    gone = [voter for voter in voters if voter in lost]
    if not gone or 2 * len(gone) > len(voters):
        return False
    supervisor_unit.remove(run_command, home, found["unit"], node)
    return True


def remove(run_command, home, base, run, node, start):
    """Remove the supervisor that a start of this token has installed here."""
    found = read(home, base, run, node)
    if found and found["open"] and found["start"] == start:
        supervisor_unit.remove(run_command, home, found["unit"], node)
