# SPDX-License-Identifier: Apache-2.0
"""Plans of the attempts that a run's nodes begin themselves, as its controller compiled them.

There are plans for each team: the nodes that may train an attempt together. Without spares the
nodes of the first attempt are the only team.
"""

from __future__ import annotations

import json
import os
import typing

from ..attempts import supervisor_order as orders
from ..plan import next_plan, plan_bytes
from .run_state import RunState

Team = typing.Tuple[str, ...]


class Plans(typing.NamedTuple):
    """The plans of one team, as text."""

    nodes: Team  # in rank order
    fresh: str  # from the beginning
    template: str  # from a checkpoint that a node puts in. '' where the suite cannot resume


def read(place: str) -> list[Plans]:
    """Return the plans of a supervisor's directory. The first attempt's team comes first.

    Raises OSError and ValueError.
    """
    with open(os.path.join(place, orders.PLANS), encoding="ascii") as handle:
        rows = json.load(handle)
    return [Plans(tuple(row["nodes"]), row["fresh"], row["template"]) for row in rows]


def of_team(place: str, members: typing.Iterable[str]) -> Plans:
    """Return the plans of a team. Raises ValueError for nodes that are no team."""
    wanted = set(members)
    for plans in read(place):
        if set(plans.nodes) == wanted:
            return plans
    names = ", ".join(sorted(wanted))
    raise ValueError(f"the controller has compiled no plan for the nodes {names}")


def fresh_plan(place: str, members: typing.Iterable[str]) -> dict[str, typing.Any]:
    """Return a team's plan from the beginning. Raises OSError and ValueError."""
    return json.loads(of_team(place, members).fresh)


def plan_text(place: str, members: typing.Iterable[str], point: dict | None) -> str:
    """Return the bytes of the next attempt's plan as text. point: None to begin anew."""
    plans = of_team(place, members)
    if point is None:
        return plans.fresh
    template = json.loads(plans.template)
    return plan_bytes.canonical_bytes(next_plan.fill(template, point)).decode("ascii")


def choose(
    teams: typing.Sequence[Team],
    run: RunState,
    ready: typing.Collection[str],
    may_be_fewer: bool,
) -> Team:
    """Return the team of the next attempt, () where none is ready.

    The first of these rules that tells two teams apart counts:

    1. A node that the newest verdict says is broken is left out.
    2. As many nodes as possible train.
    3. Nodes that failed by a fault of their own are left out, those that failed last before others.
    4. As many nodes as possible stay.
    5. The controller's order.

    teams: the first attempt's first. may_be_fewer: whether nobody waits any longer for nodes that
    are away. Where all nodes are ready, nobody does.
    """
    able = [team for team in teams if set(team) <= set(ready)]
    if not able:
        return ()

    def cost(team: Team) -> tuple[bool, int, int, int]:
        places = [run.failed.index(node) + 1 for node in team if node in run.failed]
        stay = set(team) & set(run.members)
        return bool(set(team) & set(run.broken)), -len(team), max(places, default=0), -len(stay)

    best = min(able, key=cost)
    are_all_ready = {node for team in teams for node in team} <= set(ready)
    if len(best) < len(teams[0]) and not (may_be_fewer or are_all_ready):
        return ()
    return best
