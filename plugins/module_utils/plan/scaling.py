# SPDX-License-Identifier: Apache-2.0
"""What the number of nodes does to batch, learning rate and iterations: by the document's rule, and
by upstream's where it differs.

Advice is printed with the plan, each line with its source (contract ids, or a file of the suite's
repository). `scaling: apply` in the job applies the document's rule, never upstream's, and says so.
What neither of them says is called unknown, never guessed. Controller only.
"""

from __future__ import annotations

from ..suites.launchers import override_text
from ..suites.suite_table import argument, lookup, settings

TOLERANCE = 1e-9


def advise(job, suite, effective, given, nodes, devices):
    """Return the advice for one job on nodes x devices.

    job: as read_job gives it. suite: its table. effective: the config as the suite's script will
    have it, before any advice. given: the config values that the site or the job sets; what
    somebody chose is left alone. Returns {cards, base, batch, settings (a list), notes, apply,
    overrides, arguments}: the last two are what applies the document's rule; settings[i] is {name,
    now, own, document, upstream}.
    """
    document, upstream = job.get("document") or {}, job.get("upstream") or {}
    known = settings(suite, effective, job["arguments"], given)
    cards, devices_then = nodes * devices, document.get("devices")
    found = {
        "nodes": nodes,
        "devices": devices,
        "cards": cards,
        "base": devices_then,
        "batch": _batch(job, suite, known, given, document, upstream, cards),
        "epochs": known["epochs"],
        "settings": [],
        "notes": list(upstream.get("notes") or []),
        "accuracy": document.get("accuracy") if devices_then and cards > devices_then else None,
        "apply": job.get("scaling") == "apply",
        "overrides": {},
        "arguments": [],
    }
    rate = _learning_rate(job, suite, effective, known, given, found)
    found["settings"] = [rate] + (
        [_iterations(job, suite, known, given, found)] if known["iterations"] else []
    )
    for setting, value in _changes(found):
        if setting["option"]:
            found["arguments"] += [setting["option"], override_text(value)]
        else:
            found["overrides"][setting["key"]] = value
    return found


def apply(advice):
    """Return (overrides, arguments, lines) where the job says `scaling: apply`; nothing, and no
    line, where it does not.
    """
    if not advice["apply"]:
        return {}, [], []
    words = _words(advice["overrides"], advice["arguments"])
    if not words:
        why = [_left(setting) for setting in advice["settings"] if _left(setting)]
        why = "; ".join(why) or f"the document has no other value for {_sizes(advice)}"
        return {}, [], [f"scaling: apply changes nothing here: {why}"]
    text = "scaling: apply set the %s from %s to %s with %s (%s)"
    done = [
        text
        % (
            setting["name"],
            _text(setting["now"]),
            _text(value),
            _way(setting, value),
            setting["document"]["source"],
        )
        for setting, value in _changes(advice)
    ]
    return advice["overrides"], advice["arguments"], done


def lines(advice):
    """Return the advice for people, every line with its source."""
    base, batch = advice["base"], advice["batch"]
    if base is None:
        head = f"scaling: {_sizes(advice)}; the job carries no document's setting to compare with"
    elif advice["cards"] == base:
        head = "scaling: {}, as many as the document's one machine; it changes nothing".format(
            _sizes(advice)
        )
    elif advice["cards"] < base:
        head = (
            "scaling: %s; the document's smallest setting is one machine with %d, its rules say"
            " nothing of fewer"
            % (
                _sizes(advice),
                base,
            )
        )
    else:
        head = "scaling: %s; the document's one machine has %d" % (_sizes(advice), base)
    result = [head] + ["  " + text for text in _batch_lines(batch, advice)]
    for setting in advice["settings"]:
        result += ["  " + text for text in _setting_lines(setting, advice)]
    if advice["epochs"] and batch["all"] and batch["base"] and batch["all"] != batch["base"]:
        # an epoch is all images once, so the steps follow from the images a step, not from the
        # cards
        ratio, word = batch["all"] / batch["base"], "fewer"
        if ratio < 1:
            ratio, word = 1 / ratio, "more"
        text = (
            "  epochs stay %d, so the model takes %s times %s steps than on the document's one"
            " machine"
        )
        result.append(text % (advice["epochs"], f"{ratio:.4g}", word))
    if advice["accuracy"]:
        result.append(
            "  accuracy may fall by about 1 % with many cards; more warm-up or more epochs help"
            " ({})".format(advice["accuracy"])
        )
    result += [f"  upstream: {note}" for note in advice["notes"]]
    words = _words(advice["overrides"], advice["arguments"])
    if words and not advice["apply"]:
        result.append(
            f"  the document's rule as words of the command: {words}; `scaling: apply` in the job,"
            " or -e scaling=apply, adds them"
        )
    return result


# --- the settings


def _batch(job, suite, known, given, document, upstream, cards):
    """Return the per-card batch now and as documented, and the global batches."""
    said = document.get("per_card_batch") or {}
    now, then = known["batch"], document.get("devices")
    return {
        "now": now,
        "own": _chosen(job, suite, "batch", suite["config_keys"].get("batch"), given),
        "all": now * cards if now else None,
        "documented": said.get("value"),
        "source": said.get("source"),
        "base": said["value"] * then if said.get("value") and then else None,
        "upstream": upstream.get("per_card_batch"),
    }


def _learning_rate(job, suite, effective, known, given, found):
    """Return the learning rate now, by the document (C6, A9) and by upstream."""
    document = (job.get("document") or {}).get("learning_rate") or {}
    upstream = job.get("upstream") or {}
    key = document.get("key") or suite["config_keys"].get("learning_rate")
    now = _rate(lookup(effective, key)) if document.get("key") else known["learning_rate"]
    own = _chosen(job, suite, "learning_rate", key, given)
    return {
        "name": "learning rate",
        "key": key,
        "option": (
            None if document.get("key") else next(iter(_options(suite, "learning_rate")), None)
        ),
        "now": now,
        "own": own,
        "document": None if own or now is None else _document_rate(job, document, now, found),
        "upstream": None if own or now is None else _upstream_rate(upstream, now, found),
    }


def _document_rate(job, rule, now, found):
    """Return what the document says of the learning rate for this many cards: {rule, value or None,
    source, why}.
    """
    kind, source = rule.get("rule", "unstated"), rule.get("source")
    if kind == "unstated" or found["cards"] <= found["base"]:
        return None
    said = {"rule": kind, "value": None, "source": source, "why": None, "default": None}
    if kind == "unchanged":
        said["value"] = now
    elif kind == "linear":
        said["value"] = _times(now, found["cards"] / found["base"])
    else:
        said["why"] = _elsewhere("x{}".format(_text(rule["factor"])), job, found)
    if kind == "times" and not said["why"]:
        said["value"], tried, batch = (
            _times(now, rule["factor"]),
            rule.get("default"),
            found["batch"],
        )
        # its accuracy was measured with exactly the document's batch and upstream's rate
        if (
            tried
            and batch["now"]
            and batch["now"] == batch["documented"]
            and _same(now, (job.get("upstream") or {}).get("learning_rate"))
        ):
            said["default"] = dict(tried, value=_times(now, tried["factor"]))
    return said


def _upstream_rate(upstream, now, found):
    """Return what upstream says of the learning rate for this global batch: {rule, value or None,
    source, why}.
    """
    if upstream.get("rule") != "linear":
        return None
    cards, batch, rate = upstream["cards"], upstream["per_card_batch"], upstream["learning_rate"]
    said = {"rule": "linear", "value": None, "source": upstream["source"], "why": None}
    said["from"] = "%s for %d cards x %d" % (_text(rate), cards, batch)
    if not _same(rate, now):
        said["why"] = "its rule starts from {}; this config says {}".format(
            said["from"], _text(now)
        )
    elif not found["batch"]["now"]:
        said["why"] = "the batch of this config is unknown"
    else:
        said["value"] = _times(now, found["batch"]["all"] / (cards * batch))
    return said


def _iterations(job, suite, known, given, found):
    """Return the iterations now and by the document (B6); suites that count epochs have none."""
    rule = (job.get("document") or {}).get("iterations") or {}
    now, key = known["iterations"], suite["config_keys"].get("iterations")
    own = _chosen(job, suite, "iterations", key, given)
    setting = {
        "name": "iterations",
        "key": key,
        "option": next(iter(_options(suite, "iterations")), None),
        "now": now,
        "own": own,
    }
    setting.update({"document": None, "upstream": None, "one_machine": None})
    kind, base = rule.get("rule", "unstated"), found["base"]
    if own or kind == "unstated" or not base or found["cards"] < base:
        return setting
    divided = _divided(rule, now, found["batch"]) if kind == "divide" else None
    if found["cards"] == base:
        setting["one_machine"] = divided and {"value": divided, "source": rule["source"]}
        return setting
    setting["document"] = said = {
        "rule": kind,
        "value": divided,
        "source": rule["source"],
        "why": None,
    }
    if kind == "divide" and divided is None:
        said["why"] = "the batch of this config is unknown"
    elif kind == "set":
        said["why"] = _elsewhere(_text(rule["value"]), job, found)
        said["value"] = None if said["why"] else rule["value"]
    return setting


def _divided(rule, now, batch):
    """Return the iterations that show the model as many images as the config's do on the cards that
    they are meant for; None where unknown.
    """
    if not batch["all"] or not batch["documented"]:
        return None
    return int(round(now * rule["cards"] * batch["documented"] / float(batch["all"])))


def _elsewhere(what, job, found):
    """Return why the document does not say this of these machines and this batch, or None where it
    does.
    """
    document, batch = job["document"], found["batch"]
    if (found["nodes"], found["devices"]) != (document["machines"], document["devices"]):
        return "%s is said of %d machines x %d only" % (
            what,
            document["machines"],
            document["devices"],
        )
    if batch["documented"] and not batch["now"]:
        return "%s is said of %d a card, and the batch of this config is unknown" % (
            what,
            batch["documented"],
        )
    if batch["documented"] and batch["now"] != batch["documented"]:
        return "%s is said of %d a card only" % (what, batch["documented"])
    return None


def _options(suite, name):
    """Return the script's options that beat the config for a setting."""
    return [option for option, meant in sorted(suite["argument_keys"].items()) if meant == name]


def _chosen(job, suite, name, key, given):
    """Whether the site or the job sets this value itself: by an override of its key or of one above
    it, or by an option of the script.
    """
    parts = key.split(".") if key else []
    overridden = any(".".join(parts[:length]) in given for length in range(1, len(parts) + 1))
    return overridden or any(
        argument(job["arguments"], option) is not None for option in _options(suite, name)
    )


def _changes(advice):
    """Return [(setting, value)]: what the document's rule changes."""
    ruled = [
        (setting, setting["document"]["value"])
        for setting in advice["settings"]
        if setting["document"]
    ]
    return [
        (setting, value)
        for setting, value in ruled
        if value is not None and not _same(value, setting["now"])
    ]


def _left(setting):
    """Return why the document's rule changes nothing in this setting, where that is not the
    document's own word; None elsewhere.
    """
    if setting["own"]:
        return "the site or the job sets the {} itself".format(setting["name"])
    return setting["document"] and setting["document"]["why"]


# --- numbers


def _rate(value):
    """Return a learning rate, or a list of them (a piecewise one), as numbers; None for anything
    else.
    """
    if isinstance(value, list):
        rates = [_rate(item) for item in value]
        return None if None in rates or not rates else rates
    if isinstance(value, str):
        try:
            return float(value)  # YAML 1.1 reads 1e-3 as a text
        except ValueError:
            return None
    return value if isinstance(value, (int, float)) and not isinstance(value, bool) else None


def _times(value, factor):
    if isinstance(value, list):
        return [_times(item, factor) for item in value]
    return float("%.12g" % (value * factor))


def _same(one, other):
    if isinstance(one, list) or isinstance(other, list):
        return (
            isinstance(one, list)
            and isinstance(other, list)
            and len(one) == len(other)
            and all(map(_same, one, other))
        )
    return (
        one is not None
        and other is not None
        and abs(one - other) <= TOLERANCE * max(abs(one), abs(other))
    )


# --- words


def _text(value):
    """Return a number as people write it: 0.00005, 26,667, [0.002, 0.0002]."""
    if isinstance(value, list):
        return "[{}]".format(", ".join(_text(item) for item in value))
    if isinstance(value, int):
        return f"{value:,}"
    return (f"{value:.12f}").rstrip("0").rstrip(".") if abs(value) >= 1e-9 else f"{value:g}"


def _sizes(advice):
    nodes, devices = advice["nodes"], advice["devices"]
    return "%d node%s x %d device%s = %d card%s" % (
        nodes, "" if nodes == 1 else "s", devices, "" if devices == 1 else "s", advice["cards"], "" if advice["cards"] == 1 else "s",
    )  # fmt: skip


def _way(setting, value):
    """Return the words that give the suite's script a value."""
    return (
        "{} {}".format(setting["option"], override_text(value))
        if setting["option"]
        else "{}={}".format(setting["key"], override_text(value))
    )


def _words(overrides, arguments):
    return " ".join(
        arguments + [f"{key}={override_text(value)}" for key, value in overrides.items()]
    )


def _batch_lines(batch, advice):
    if not batch["now"]:
        return ["batch: unknown, this config does not say it where the suite's table looks"]
    text = "batch: {} a card, {} in all".format(_text(batch["now"]), _text(batch["all"]))
    if batch["base"]:
        text += "; the document's one machine: {} x {} = {}".format(
            _text(batch["documented"]),
            _text(advice["base"]),
            _text(batch["base"]),
        )
        text += " ({})".format(batch["source"])
    if batch["documented"] and batch["now"] != batch["documented"]:
        who = "the site or the job sets" if batch["own"] else "this config has"
        return [
            text,
            "batch: {} {} a card, so the document's rules are said of another batch".format(
                who, _text(batch["now"])
            ),
        ]
    return [text]


def _setting_lines(setting, advice):
    name, now, said, upstream = (
        setting["name"],
        setting["now"],
        setting["document"],
        setting["upstream"],
    )
    if setting["own"]:
        return [
            "{}: {}, as the site or the job sets it; left alone".format(
                name, "unknown" if now is None else _text(now)
            )
        ]
    if now is None:
        return [f"{name}: unknown, this config does not say it where the suite's table looks"]
    result = []
    if said and said["value"] is not None:
        change = "unchanged" if _same(said["value"], now) else f"from {_text(now)}"
        result.append(
            "{}: {}, {}, by the document ({})".format(
                name, _text(said["value"]), change, said["source"]
            )
        )
        if said.get("default"):
            tried = said["default"]
            text = "%s: the default x%s, %s, gave %s (%s)"
            result.append(
                text
                % (
                    name,
                    _text(tried["factor"]),
                    _text(tried["value"]),
                    tried["accuracy"],
                    said["source"],
                )
            )
    else:
        text = f"{name}: {_text(now)}, as the config says"
        if said:
            text += "; the document's rule for %d cards is unknown: %s (%s)" % (
                advice["cards"],
                said["why"],
                said["source"],
            )
        elif advice["base"] and advice["cards"] > advice["base"]:
            text += "; the document has no rule for more cards"
        result.append(text)
    alone = setting.get("one_machine")
    if alone and alone["value"] != now:
        text = (
            "%s: the document does not say how many its one machine ran; its division for more"
            " machines (%s) would give %s"
        )
        result.append(text % (name, alone["source"], _text(alone["value"])))
    if upstream:
        result += _upstream_lines(setting, upstream)
    return result


def _upstream_lines(setting, upstream):
    name, said = setting["name"], setting["document"]
    if upstream["value"] is None:
        return [
            "{}: upstream gives no number here: {} ({})".format(
                name, upstream["why"], upstream["source"]
            )
        ]
    if _same(
        upstream["value"], said["value"] if said and said["value"] is not None else setting["now"]
    ):
        return []
    text = "%s: %s by upstream's rule, linear in the global batch from %s (%s): %s"
    return [
        text
        % (
            name,
            _text(upstream["value"]),
            upstream["from"],
            upstream["source"],
            _way(setting, upstream["value"]),
        )
    ]
