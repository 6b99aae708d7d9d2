# SPDX-License-Identifier: Apache-2.0
"""Words for candidates, their ends and their errors, as the verdict and its evidence have them."""

from __future__ import annotations

import re
import signal

from ..base import folding
from ..logs.closing_lines import is_calm, is_of_a_peer
from ..logs.error_patterns import unquote
from ..logs.failure_catalogue import classify
from ..logs.last_words import FIRST_OF_SIGNALS
from .candidates import signature
from .handled_errors import NAMES_A_THING, ends_log
from .weights import OOM

_SIGNAL_CAUSES = {
    "SIGSEGV": "segfault",
    "SIGILL": "segfault",
    "SIGFPE": "segfault",
    "SIGBUS": "bus_error",
    "SIGABRT": "aborted",
    "SIGTERM": "sigterm",
    "SIGXCPU": "resource_limit",
    "SIGXFSZ": "resource_limit",
}


def stop_line(name, unit):
    """Return the line of evidence about a unit that was stopped."""
    stopper = unit["stopped_by"]
    if stopper == "guard":
        stopper = f"its guard: {unit.get('stop_reason')},"
    return f"{name} was stopped by {stopper} {unit.get('stopped_from') or ''}".rstrip()


def name_of(rank):
    """Return the words for a rank, launcher, scheduler or agent and its node."""
    if rank["rank"] is None:
        return f"the {rank.get('who', 'launcher')} on {rank['node']}"
    return f"rank {rank['rank']} on {rank['node']} (local rank {rank['local_rank']})"


def is_killed_agent(candidate):
    """Return whether something killed the agent, whose launcher and ranks ran on."""
    return candidate.get("who") == "agent" and candidate["signal"] == "SIGKILL"


def _is_unobserved(candidate):
    """Return whether nothing saw a candidate's exit code or signal."""
    return candidate["exit_code"] is None and candidate["signal"] is None


def silent_cause(candidate):
    """Return the cause of a candidate's end where its log does not show it."""
    if candidate["weight"] == OOM:
        return "out_of_memory"
    if candidate["rank"] is None:
        if is_killed_agent(candidate):
            return "killed"
        return "launcher_failed"
    if _is_unobserved(candidate):
        return "silent_end"
    if candidate["exit_code"] == 0:
        return "ended_early"
    if candidate["signal"]:
        return _SIGNAL_CAUSES.get(candidate["signal"], "killed")
    if candidate["exit_code"] == FIRST_OF_SIGNALS + signal.SIGTERM:
        return "sigterm"  # what a handler of SIGTERM ends with
    return _classify_last_line(candidate)


def describe_exit(candidate):
    """Return the words for a candidate's exit code or signal."""
    text = f"exit code {candidate['exit_code']}"
    if candidate["signal"]:
        text = f"signal {candidate['signal']}"
    elif _is_unobserved(candidate):
        text = "exit code not observed"
    if candidate.get("observed") == "launcher":
        text += " as the launcher says"
    return text


def is_blamed(candidate):
    """Return whether the error in its log is what ended a rank.

    SIGKILL leaves none, so what stands there came before. What was handled, or outlived by steps,
    counts only as the last thing in the log.
    """
    error = candidate["error"]
    if not error:
        return False
    passing = error.get("handled") or error.get("survived")
    if candidate["signal"] == "SIGKILL":
        return not passing
    return not (passing and not ends_log(candidate, error)) or bool(error.get("thread"))


def describe_end(candidate):
    """Return the words for a candidate's end, as the predicate of a sentence."""
    if is_blamed(candidate):
        return _quote_error(candidate["error"])
    if candidate["weight"] == OOM and candidate["signal"] == "SIGKILL":
        # a launcher's weight may stand for a child of it
        return "was killed by the kernel because memory was short"
    if is_killed_agent(candidate):
        return "was killed by SIGKILL while the training went on; systemd ended the training then"
    if candidate["rank"] is None:
        if candidate.get("started"):
            return "ended after its ranks had started"
        return "ended before any rank started"
    if candidate["signal"]:
        return f"was killed by {candidate['signal']} without a message"
    if candidate["exit_code"] is None:
        return candidate["why"]
    if candidate["exit_code"] == 0:
        return "ended before the training was complete"
    if _classify_last_line(candidate) != "silent_exit":
        return f"exited; the last line of its log: {candidate['last_line'][:300]}"
    return "exited without a message"


def _quote_error(error):
    """Return the words for a rank that printed an error."""
    quote = error["kind"]
    if error["text"]:
        quote = f"{error['kind']}: {error['text']}"
    if error.get("closing") and error.get("origin") == "line":
        quote = error["text"]
    verb = {"python": "raised ", "cpp": "stopped with "}.get(error.get("origin"), "said ")
    return verb + quote.split("\n")[0][:300]


def _classify_last_line(candidate):
    """Return the cause that the last line of a log names.

    It counts for a rank that ended with 1. sys.exit("...") prints its text and nothing else.
    """
    line = candidate.get("last_line") or ""
    cause = classify("", unquote(line))["cause"]
    is_own = not (is_calm(line) or is_of_a_peer(line))
    if candidate["exit_code"] == 1 and cause in NAMES_A_THING and is_own:
        return cause
    return "silent_exit"


def end_key(candidate):
    """Return what makes the ends of ranks equal, None for a launcher or scheduler."""
    if candidate["rank"] is None:
        return None
    keys = ("exit_code", "signal", "why")
    return (*(candidate[key] for key in keys), bool(candidate["error"]), signature(candidate))


def _describe_times(candidates, begin):
    """Return the words for when candidates ended, after the first end at `begin`."""
    times = sorted({f"+{c['when'] - begin:.1f}" for c in candidates if c["when"] is not None})
    if len(times) > 1:
        times = sorted(times, key=float)
        return f" at {times[0]} s to {times[-1]} s"
    return "".join(f" at {when} s" for when in times)


def group_line(candidates, begin=None):
    """Return one line about candidates with the same end. The first one is quoted.

    begin: the time of the first end, in unix seconds.
    """
    candidate = candidates[0]
    end = candidate["signal"]
    if not end:
        end = "end not observed"
        if candidate["exit_code"] is not None:
            end = f"exit code {candidate['exit_code']}"
    if begin is not None:
        end += _describe_times(candidates, begin)
    error = candidate["error"]
    quote = ""
    if error:
        quote = f"; {error['kind']}: {error['text'][:120]}"
    elif candidate.get("handled"):
        quote = "; before that it handled {kind}: {text:.120}".format_map(candidate["handled"])
    elif candidate.get("last_line"):
        quote = f"; the last line of its log: {candidate['last_line'][:160]}"
    location = candidate["home"]
    if error and error["line"]:
        location = f"{candidate['home']}:{error['line']}"
    who, why = name_of(candidate), candidate["why"]
    if len(candidates) > 1:
        who, why = folding.name_ranks(candidates), re.sub("^was ", "were ", why)
    return f"{who}, {end}: {why}{quote} ({location})"


def list_names(names):
    """Return names as "a", "a and b" or "a, b and c"."""
    names = list(names)
    if len(names) == 1:
        return names[0]
    return ", ".join(names[:-1]) + " and " + names[-1]


def count_of(items, word):
    """Return "1 word" or "2 words"."""
    if len(items) == 1:
        return f"1 {word}"
    return f"{len(items)} {word}s"
