# SPDX-License-Identifier: Apache-2.0
"""Interfaces and RDMA devices that site or job force upon the ranks, held against what the nodes
have. Pure.

NCCL's manual (Environment Variables): NCCL_SOCKET_IFNAME and NCCL_IB_HCA are lists with commas,
matched by their beginning; `=` in front asks for whole names, `^` for all others, `^=` for both.
gloo takes one whole name. NCCL_IB_HCA may end in `:port`.
"""

from __future__ import annotations

import ipaddress

from ..base.findings import finding

NAMES = ("GLOO_SOCKET_IFNAME", "NCCL_SOCKET_IFNAME")
CHECK = "interface"


def chosen(text, names, exact=False):
    """Return those of the names that the variable's text means; exact: names are whole, and there
    are no signs (gloo).
    """
    others = text.startswith("^") and not exact
    text = text[1:] if others else text
    if text.startswith("=") and not exact:
        text, exact = text[1:], True
    words = [word.strip() for word in text.split(",") if word.strip()]
    meant = [
        name
        for name in names
        if any(name == word if exact else name.startswith(word) for word in words)
    ]
    return [name for name in names if name not in meant] if others else meant


def forced(made, facts):
    """Return findings about GLOO_SOCKET_IFNAME and NCCL_SOCKET_IFNAME where the plan has them from
    the site or the job.
    """
    found = []
    for name in NAMES if len(made["nodes"]) > 1 else ():
        if name not in made["env"]:
            continue
        text, elsewhere = made["env"][name], {}
        for node in made["nodes"]:
            own = {}
            for entry in facts[node["name"]]["addresses"]:
                own.setdefault(entry["interface"], []).append(entry["address"])
            meant = chosen(text, list(own), exact=name.startswith("GLOO"))
            if not meant:
                has = ", ".join(
                    "{} ({})".format(interface, ", ".join(addresses))
                    for interface, addresses in own.items()
                )
                words = f"{name}={text} names no interface with an IPv4 address here; it has {has}"
                found.append(finding(CHECK, words, _remedy(name, node), node["name"]))
            elif node["interface"] not in meant:
                elsewhere[node["name"]] = [
                    address for interface in meant for address in own[interface]
                ]
        found += _elsewhere(made, name, text, elsewhere)
    return found


def _elsewhere(made, name, text, elsewhere):
    """Judge nodes where the forced interface is not the fabric's: a second network is used and not
    proven, and a local one leads nowhere.
    """
    found = []
    seen = [address for addresses in elsewhere.values() for address in addresses]
    for node in made["nodes"]:
        mine = elsewhere.get(node["name"])
        if not mine:
            continue
        local = [
            address
            for address in mine
            if ipaddress.ip_address(address).is_loopback or seen.count(address) > 1
        ]
        words = "{}={} leads to {}, and the plan's address is {} on {}".format(
            name,
            text,
            ", ".join(mine),
            node["address"],
            node["interface"],
        )
        if local == mine:
            found.append(
                finding(
                    CHECK, words + "; no other node reaches that", _remedy(name, node), node["name"]
                )
            )
        else:
            words += ": this check does not try the way that the data will take"
            found.append(
                finding(
                    CHECK,
                    words,
                    f"set trainyard_address to that interface's network, and take {name} away",
                    node["name"],
                    "warn",
                )
            )
    return found


def _remedy(name, node):
    return (
        "take {} out of trainyard_env and the job's env: the plan sets it itself ({} here), or set"
        " trainyard_address".format(
            name,
            node["interface"],
        )
    )


def adapters(made, hcas):
    """Return findings about NCCL_IB_HCA; hcas: {node name: rows of netunit.hcas}."""
    text = made["env"].get("NCCL_IB_HCA")
    if not text or made["env"].get("NCCL_IB_DISABLE") == "1":
        return []
    found = []
    for name, rows in hcas.items():
        if rows is None:
            continue
        words = ",".join(word.split(":")[0] for word in text.split(","))
        meant = chosen(words, [row["name"] for row in rows])
        up = [row for row in rows if row["name"] in meant and "ACTIVE" in row["state"]]
        has = (
            ", ".join("{}:{} {}".format(row["name"], row["port"], row["state"]) for row in rows)
            or "none"
        )
        remedy = "see `ibstat`; correct NCCL_IB_HCA, or set NCCL_IB_DISABLE=1 to go without RDMA"
        if not meant:
            found.append(
                finding(
                    CHECK,
                    f"NCCL_IB_HCA={text} names no RDMA device here; it has {has}",
                    remedy,
                    name,
                )
            )
        elif not up:
            found.append(
                finding(CHECK, f"NCCL_IB_HCA={text}: no port of it is active: {has}", remedy, name)
            )
    return found
