# SPDX-License-Identifier: Apache-2.0
"""The effect of the number of nodes on batch, learning rate and iterations.

It follows the documentation's rule, and upstream's where that differs. Advice is printed with the
plan, each line with its source (contract ids, or a file of the suite's repository). `scaling:
apply` in the job applies the documentation's rule, never upstream's, and says so. A value that
neither of them gives is called unknown, never guessed.
"""

from __future__ import annotations

from ..suites.launcher_table import override_text
from ..suites.suite_table import lookup, option_value, settings

TOLERANCE = 1e-9


def advise(job, suite, effective, given, nodes, devices):
    """Return the advice for one job on nodes x devices.

    job: as job_config gives it. suite: its table. effective: the config as the suite's script will
    have it, before any advice. given: the config values that the site or the job sets. A value that
    a person chose is left alone. Returns {cards, base, batch, settings (a list), notes, apply,
    overrides, arguments}: the last two are what applies the documentation's rule; settings[i] is
    {name, now, own, document, upstream}.
    """
    document, upstream = job.get("document") or {}, job.get("upstream") or {}
    known = settings(suite, effective, job["arguments"], given)
    cards, base = nodes * devices, document.get("devices")
    advice = {
        "nodes": nodes,
        "devices": devices,
        "cards": cards,
        "base": base,
        "batch": _batch(job, suite, known, given, cards),
        "epochs": known["epochs"],
        "settings": [],
        "notes": list(upstream.get("notes") or []),
        "accuracy": None,
        "apply": job.get("scaling") == "apply",
        "overrides": {},
        "arguments": [],
    }
    if base and cards > base:
        advice["accuracy"] = document.get("accuracy")
    advice["settings"].append(_learning_rate(job, suite, effective, known, given, advice))
    if known["iterations"]:
        advice["settings"].append(_iterations(job, suite, known, given, advice))
    for setting, value in _changes(advice):
        if setting["option"]:
            advice["arguments"] += [setting["option"], override_text(value)]
        else:
            advice["overrides"][setting["key"]] = value
    return advice


def apply(advice):
    """Return (overrides, arguments, lines) where the job says `scaling: apply`.

    All of them are empty where it does not.
    """
    if not advice["apply"]:
        return {}, [], []
    if not _command_text(advice):
        reasons = [_reason_unchanged(setting) for setting in advice["settings"]]
        reason = "; ".join(reason for reason in reasons if reason)
        if not reason:
            reason = f"the documentation has no other value for {_sizes(advice)}"
        return {}, [], [f"scaling: apply changes nothing here: {reason}"]
    changes = [
        f"scaling: apply set the {setting['name']} from {_text(setting['now'])} to {_text(value)}"
        f" with {_option_text(setting, value)} ({setting['document']['source']})"
        for setting, value in _changes(advice)
    ]
    return advice["overrides"], advice["arguments"], changes


def lines(advice):
    """Return the advice for people, every line with its source."""
    result = [_heading(advice)]
    result += ["  " + text for text in _batch_lines(advice["batch"], advice)]
    for setting in advice["settings"]:
        result += ["  " + text for text in _setting_lines(setting, advice)]
    batch = advice["batch"]
    if advice["epochs"] and batch["all"] and batch["base"] and batch["all"] != batch["base"]:
        result.append("  " + _epochs_line(advice["epochs"], batch))
    if advice["accuracy"]:
        result.append(
            "  accuracy may fall by about 1 % with many cards; more warm-up or more epochs help"
            f" ({advice['accuracy']})"
        )
    result += [f"  upstream: {note}" for note in advice["notes"]]
    command = _command_text(advice)
    if command and not advice["apply"]:
        result.append(
            f"  the documented rule as arguments: {command}; `scaling: apply` in the job, or -e"
            " scaling=apply, adds them"
        )
    return result


def _heading(advice):
    """Return the line that compares the cards with those of the documentation."""
    base, sizes = advice["base"], _sizes(advice)
    if base is None:
        return f"scaling: {sizes}; the job has no documented setting to compare with"
    if advice["cards"] == base:
        return f"scaling: {sizes}, as on the one documented machine; nothing changes"
    if advice["cards"] < base:
        return (
            f"scaling: {sizes}; the smallest documented setting is one machine with {base}, and no"
            " rule is for fewer"
        )
    return f"scaling: {sizes}; the one documented machine has {base}"


def _epochs_line(epochs, batch):
    """Return the change in the number of steps.

    An epoch is all images once, so the steps follow from the images per step, not from the cards.
    """
    ratio, word = batch["all"] / batch["base"], "fewer"
    if ratio < 1:
        ratio, word = 1 / ratio, "more"
    return (
        f"epochs stay {epochs}, so the model takes {ratio:.4g} times {word} steps than on the"
        " one documented machine"
    )


# --- the settings


def _batch(job, suite, known, given, cards):
    """Return the per-card batch now and as documented, and the global batches."""
    document, upstream = job.get("document") or {}, job.get("upstream") or {}
    documented = document.get("per_card_batch") or {}
    return {
        "now": known["batch"],
        "own": _is_chosen(job, suite, "batch", suite["config_keys"].get("batch"), given),
        "all": _product(known["batch"], cards),
        "documented": documented.get("value"),
        "source": documented.get("source"),
        "base": _product(documented.get("value"), document.get("devices")),
        "upstream": upstream.get("per_card_batch"),
    }


def _product(one, other):
    """Return the product of two counts, or None where one is unknown."""
    if not one or not other:
        return None
    return one * other


def _learning_rate(job, suite, effective, known, given, advice):
    """Return the learning rate now, by the documentation (C6, A9) and by upstream."""
    rule = (job.get("document") or {}).get("learning_rate") or {}
    if rule.get("key"):
        key, option = rule["key"], None
        now = _rate(lookup(effective, key))
    else:
        key, option = suite["config_keys"].get("learning_rate"), _option(suite, "learning_rate")
        now = known["learning_rate"]
    setting = {
        "name": "learning rate",
        "key": key,
        "option": option,
        "now": now,
        "own": _is_chosen(job, suite, "learning_rate", key, given),
        "document": None,
        "upstream": None,
    }
    if not setting["own"] and now is not None:
        setting["document"] = _document_rate(job, rule, now, advice)
        setting["upstream"] = _upstream_rate(job.get("upstream") or {}, now, advice)
    return setting


def _document_rate(job, rule, now, advice):
    """Return the documentation's learning rate for this many cards, or None.

    None where it has no rule. A rate is {rule, value or None, source, why, default}.
    """
    kind = rule.get("rule", "unstated")
    if kind == "unstated" or advice["cards"] <= advice["base"]:
        return None
    rate = {
        "rule": kind,
        "value": None,
        "source": rule.get("source"),
        "why": None,
        "default": None,
    }
    if kind == "unchanged":
        rate["value"] = now
    elif kind == "linear":
        rate["value"] = _times(now, advice["cards"] / advice["base"])
    else:
        rate["why"] = _reason_elsewhere("x{}".format(_text(rule["factor"])), job, advice)
    if kind == "times" and not rate["why"]:
        rate["value"] = _times(now, rule["factor"])
        rate["default"] = _documented_default(job, rule, now, advice["batch"])
    return rate


def _documented_default(job, rule, now, batch):
    """Return {factor, accuracy, value} of the documentation's default, or None.

    Its accuracy was measured with exactly the documentation's batch and upstream's rate.
    """
    default = rule.get("default")
    if not default or not batch["now"] or batch["now"] != batch["documented"]:
        return None
    if not _same(now, (job.get("upstream") or {}).get("learning_rate")):
        return None
    return dict(default, value=_times(now, default["factor"]))


def _upstream_rate(upstream, now, advice):
    """Return upstream's learning rate for this global batch, or None.

    None where it has no rule. A rate is {rule, value or None, source, why, from}.
    """
    if upstream.get("rule") != "linear":
        return None
    cards, batch, base = upstream["cards"], upstream["per_card_batch"], upstream["learning_rate"]
    origin = f"{_text(base)} for {cards} cards x {batch}"
    rate = {
        "rule": "linear",
        "value": None,
        "source": upstream["source"],
        "why": None,
        "from": origin,
    }
    if not _same(base, now):
        rate["why"] = f"its rule starts from {origin}; this config says {_text(now)}"
    elif not advice["batch"]["now"]:
        rate["why"] = "the batch of this config is unknown"
    else:
        rate["value"] = _times(now, advice["batch"]["all"] / (cards * batch))
    return rate


def _iterations(job, suite, known, given, advice):
    """Return the iterations now and by the documentation (B6)."""
    rule = (job.get("document") or {}).get("iterations") or {}
    key, base, kind = suite["config_keys"].get("iterations"), advice["base"], rule.get("rule")
    setting = {
        "name": "iterations",
        "key": key,
        "option": _option(suite, "iterations"),
        "now": known["iterations"],
        "own": _is_chosen(job, suite, "iterations", key, given),
        "document": None,
        "upstream": None,
        "one_machine": None,
    }
    if setting["own"] or kind not in ("divide", "set") or not base or advice["cards"] < base:
        return setting
    value, reason = _document_iterations(job, rule, known["iterations"], advice)
    if advice["cards"] > base:
        setting["document"] = {
            "rule": kind,
            "value": value,
            "source": rule["source"],
            "why": reason,
        }
    elif kind == "divide" and value:
        setting["one_machine"] = {"value": value, "source": rule["source"]}
    return setting


def _document_iterations(job, rule, now, advice):
    """Return (iterations, None) by the documentation's rule, or (None, reason)."""
    if rule["rule"] == "divide":
        value = _divided(rule, now, advice["batch"])
        if value is None:
            return None, "the batch of this config is unknown"
        return value, None
    reason = _reason_elsewhere(_text(rule["value"]), job, advice)
    if reason:
        return None, reason
    return rule["value"], None


def _divided(rule, now, batch):
    """Return the iterations that show the model as many images as the config's do.

    The config's are meant for rule["cards"] cards. None where a batch is unknown.
    """
    if not batch["all"] or not batch["documented"]:
        return None
    return int(round(now * rule["cards"] * batch["documented"] / float(batch["all"])))


def _reason_elsewhere(value, job, advice):
    """Return why the documentation does not give this value, or None where it does.

    It gives values for certain machines and batches. value: as text.
    """
    document, batch = job["document"], advice["batch"]
    if (advice["nodes"], advice["devices"]) != (document["machines"], document["devices"]):
        machines, devices = document["machines"], document["devices"]
        return f"{value} is documented for {machines} machines x {devices} only"
    if not batch["documented"]:
        return None
    if not batch["now"]:
        return (
            f"{value} is documented for {batch['documented']} per card, and the batch of this"
            " config is unknown"
        )
    if batch["now"] != batch["documented"]:
        return f"{value} is documented for {batch['documented']} per card only"
    return None


def _options(suite, name):
    """Return the script's options that beat the config for a setting."""
    return [option for option, meant in sorted(suite["argument_keys"].items()) if meant == name]


def _option(suite, name):
    """Return the first of the script's options for a setting, or None."""
    return next(iter(_options(suite, name)), None)


def _is_chosen(job, suite, name, key, given):
    """Return whether the site or the job sets this value itself.

    It does so by an override of its key or of one above it, or by an option of the script.
    """
    parts = []
    if key:
        parts = key.split(".")
    if any(".".join(parts[:length]) in given for length in range(1, len(parts) + 1)):
        return True
    options = _options(suite, name)
    return any(option_value(job["arguments"], option) is not None for option in options)


def _changes(advice):
    """Return [(setting, value)] of the settings that the documentation's rule changes."""
    changes = []
    for setting in advice["settings"]:
        if setting["document"]:
            value = setting["document"]["value"]
            if value is not None and not _same(value, setting["now"]):
                changes.append((setting, value))
    return changes


def _reason_unchanged(setting):
    """Return why the documentation's rule leaves a setting as it is.

    None where the rule itself says so.
    """
    if setting["own"]:
        return f"the site or the job sets the {setting['name']} itself"
    return setting["document"] and setting["document"]["why"]


# --- numbers


def _rate(value):
    """Return a learning rate, or a list of them (a piecewise one), as numbers.

    None for any other value.
    """
    if isinstance(value, list):
        rates = [_rate(item) for item in value]
        if not rates or None in rates:
            return None
        return rates
    if isinstance(value, str):
        try:
            return float(value)  # YAML 1.1 reads 1e-3 as a text
        except ValueError:
            return None
    if isinstance(value, (int, float)) and not isinstance(value, bool):
        return value
    return None


def _times(value, factor):
    if isinstance(value, list):
        return [_times(item, factor) for item in value]
    return float(f"{value * factor:.12g}")


def _same(one, other):
    """Return whether two numbers, or lists of them, are equal but for rounding."""
    if isinstance(one, list) and isinstance(other, list):
        return len(one) == len(other) and all(map(_same, one, other))
    if isinstance(one, list) or isinstance(other, list) or one is None or other is None:
        return False
    return abs(one - other) <= TOLERANCE * max(abs(one), abs(other))


# --- texts


def _text(value):
    """Return a number as people write it: 0.00005, 26,667, [0.002, 0.0002]."""
    if isinstance(value, list):
        return "[{}]".format(", ".join(_text(item) for item in value))
    if isinstance(value, int):
        return f"{value:,}"
    if abs(value) < 1e-9:
        return f"{value:g}"
    return f"{value:.12f}".rstrip("0").rstrip(".")


def _sizes(advice):
    parts = [
        _counted(advice[key], noun)
        for key, noun in (("nodes", "node"), ("devices", "device"), ("cards", "card"))
    ]
    return "{} x {} = {}".format(*parts)


def _counted(count, noun):
    if count == 1:
        return f"1 {noun}"
    return f"{count} {noun}s"


def _option_text(setting, value):
    """Return the words of the command that give the suite's script a value."""
    if setting["option"]:
        return "{} {}".format(setting["option"], override_text(value))
    return "{}={}".format(setting["key"], override_text(value))


def _command_text(advice):
    """Return the words of the command that apply the documentation's rule."""
    overrides = [f"{key}={override_text(value)}" for key, value in advice["overrides"].items()]
    return " ".join(advice["arguments"] + overrides)


def _batch_lines(batch, advice):
    if not batch["now"]:
        return ["batch: unknown, this config does not say it where the suite's table looks"]
    now, documented = _text(batch["now"]), batch["documented"]
    text = f"batch: {now} per card, {_text(batch['all'])} in total"
    if batch["base"]:
        text += (
            f"; documented for one machine: {_text(documented)} x {_text(advice['base'])} ="
            f" {_text(batch['base'])} ({batch['source']})"
        )
    if not documented or batch["now"] == documented:
        return [text]
    origin = "this config has"
    if batch["own"]:
        origin = "the site or the job sets"
    return [
        text,
        f"batch: {origin} {now} per card, but the documented rules are for another batch",
    ]


def _setting_lines(setting, advice):
    name, now = setting["name"], setting["now"]
    if setting["own"]:
        value = "unknown"
        if now is not None:
            value = _text(now)
        return [f"{name}: {value}, as the site or the job sets it; left alone"]
    if now is None:
        return [f"{name}: unknown, this config does not say it where the suite's table looks"]
    result = _document_lines(setting, advice)
    alone = setting.get("one_machine")
    if alone and alone["value"] != now:
        result.append(
            f"{name}: the documentation gives no number for one machine; its division for more"
            f" machines ({alone['source']}) would give {_text(alone['value'])}"
        )
    if setting["upstream"]:
        result += _upstream_lines(setting, setting["upstream"])
    return result


def _document_lines(setting, advice):
    """Return a setting's value by the documentation, else by the config."""
    name, now, rule = setting["name"], setting["now"], setting["document"]
    if rule is None or rule["value"] is None:
        text = f"{name}: {_text(now)}, as the config says"
        if rule:
            text += (
                f"; the documented rule for {advice['cards']} cards is unknown: {rule['why']}"
                f" ({rule['source']})"
            )
        elif advice["base"] and advice["cards"] > advice["base"]:
            text += "; the documentation has no rule for more cards"
        return [text]
    change = f"from {_text(now)}"
    if _same(rule["value"], now):
        change = "unchanged"
    result = [f"{name}: {_text(rule['value'])}, {change}, as documented ({rule['source']})"]
    default = rule.get("default")
    if default:
        result.append(
            f"{name}: the default x{_text(default['factor'])}, {_text(default['value'])}, gave"
            f" {default['accuracy']} ({rule['source']})"
        )
    return result


def _upstream_lines(setting, upstream):
    name, rule, value = setting["name"], setting["document"], upstream["value"]
    if value is None:
        return [f"{name}: upstream gives no number here: {upstream['why']} ({upstream['source']})"]
    current = setting["now"]
    if rule and rule["value"] is not None:
        current = rule["value"]
    if _same(value, current):
        return []
    return [
        f"{name}: {_text(value)} by upstream's rule, linear in the global batch from"
        f" {upstream['from']} ({upstream['source']}): {_option_text(setting, value)}"
    ]
