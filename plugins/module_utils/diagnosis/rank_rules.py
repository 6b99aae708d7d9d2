# SPDX-License-Identifier: Apache-2.0
"""The rules that weigh the end of one rank, apart from the others.

The first rule that applies decides. candidates.py compares the ranks then.
"""

from __future__ import annotations

import typing

from .clocks import BEFORE
from .weights import (
    DOUBTFUL,
    KILLED,
    LATE,
    OOM,
    PRIMARY,
    SECONDARY,
    SHARED,
    SILENT,
    STOPPED,
)

FATAL = frozenset(
    ("SIGKILL", "SIGSEGV", "SIGBUS", "SIGILL", "SIGFPE", "SIGSYS", "SIGXCPU", "SIGXFSZ")
)


# Exit codes of a handler of SIGTERM, and of a shell whose child SIGTERM or SIGKILL ended. Its
# launcher may have sent it, as soon as another rank had ended.
_TOLD_TO_END = (143, 137)


class RankEvidence:
    """The evidence about one rank that ended badly, as the rules ask for it."""

    def __init__(self, weighing, rank, error):
        self.weighing = weighing
        self.rank = rank
        self.error = error
        self.code = rank.get("exit_code")
        self.signal = rank.get("signal")
        ended = rank.get("ended")
        margin = BEFORE
        if self.code in _TOLD_TO_END:
            margin = 0.0
        self.is_first = ended is None or ended - weighing.firsts[rank["node"]] <= margin
        is_primary = bool(error) and error["grade"] == "primary"
        # Paddle's handler and faulthandler print a signal, which is no mistake in the code or the
        # data.
        self.is_crash = is_primary and (
            error["kind"] in ("FatalError", "Killed") or error["cause"] == "segfault"
        )
        is_mistake = is_primary and not self.is_crash
        self.is_passing = is_mistake and (error.get("handled") or error.get("survived"))
        # Last words without an event of their own weigh no more than an end without words.
        self.is_closing = is_mistake and bool(error.get("closing"))
        self.is_own_error = is_mistake and not self.is_passing and not self.is_closing

    def is_error_of_stop(self):
        """Return whether the log holds an error that stopping the attempt may have made."""
        stopped_at = self.weighing.stopped.get(self.rank["node"], {}).get("stopped_at")
        return (
            self.is_own_error
            and stopped_at is not None
            and all(
                self.rank.get(key) is None or self.rank[key] >= stopped_at
                for key in ("ended", "mtime")
                if key == "ended" or self.code is not None or self.signal
            )
        )

    def is_later_worker_death(self):
        """Return whether loader workers died after another rank of the node."""
        return self.is_own_error and self.error["cause"] == "worker_died" and not self.is_first

    def has_own_error(self):
        """Return whether the log holds an error of the rank itself that ended it."""
        return self.is_own_error

    def is_stopped_by_product(self):
        """Return whether the rank was stopped with the attempt.

        An error in a thread that did not end its process counts all the same.
        """
        return self.weighing.is_stop_of_attempt(self.rank) and not (
            self.is_passing and self.error.get("thread")
        )

    def is_out_of_memory(self):
        """Return whether the kernel killed the rank because memory ran out."""
        return self.weighing.is_killed_for_memory(self.rank)

    def is_killed(self):
        """Return whether a signal ended the rank and no other error explains it."""
        return self.is_crash or (self.signal in FATAL and (self.is_passing or not self.error))

    def has_passing_error(self):
        """Return whether the log holds an error that was handled or that steps followed."""
        return self.is_passing

    def has_shared_error(self):
        """Return whether the log holds a condition that all ranks share."""
        return self.error and self.error["grade"] == "shared"

    def is_failed_by_itself(self):
        """Return whether the rank ended with an exit code or aborted."""
        return self.code or self.signal == "SIGABRT"

    def has_closing_words(self):
        """Return whether only the last lines of the log say why the rank ended."""
        return self.is_closing

    def is_without_log(self):
        """Return whether the rank failed without a cause outside and has no log."""
        return not self.error and self.rank.get("bytes") is None and self.is_failed_by_itself()

    def is_secondary(self):
        """Return whether the rank only reacted to its peers or to a stop."""
        return self.error or not self.is_failed_by_itself()

    def is_silent(self):
        """Return True: a rank to which no other rule applies ended without a message."""
        return True


class _Rule(typing.NamedTuple):
    """One kind of end, with its weight and words.

    The first end on a node may weigh another than a later one.
    """

    applies: typing.Callable
    weight: int
    why: str
    later_weight: int
    later_why: str


def _rule(applies, weight, why):
    """Return a rule that is the same for the first end on a node and for later ones."""
    return _Rule(applies, weight, why, weight, why)


_PASSING = "its log holds an error, but one that was handled or that steps followed"
# The first rule that applies to a rank's end decides its weight.
RANK_RULES = (
    _rule(
        RankEvidence.is_error_of_stop,
        DOUBTFUL,
        "its log holds an error, but one that stopping it may have made",
    ),
    _rule(
        RankEvidence.is_later_worker_death,
        LATE,
        "its loader workers died, after another rank of its node",
    ),
    _rule(RankEvidence.has_own_error, PRIMARY, "its log holds an error of its own"),
    _rule(RankEvidence.is_stopped_by_product, STOPPED, "was stopped with the attempt"),
    _rule(RankEvidence.is_out_of_memory, OOM, "the kernel killed it because memory was short"),
    _Rule(
        RankEvidence.is_killed,
        KILLED,
        "died of a signal, first on its node",
        LATE,
        "died of a signal, not first on its node",
    ),
    _Rule(RankEvidence.has_passing_error, DOUBTFUL, _PASSING, LATE, _PASSING),
    _rule(RankEvidence.has_shared_error, SHARED, "met a condition that all ranks share"),
    _Rule(
        RankEvidence.has_closing_words,
        SILENT,
        "ended, and the last lines of its log say why, first on its node",
        LATE,
        "ended, and the last lines of its log say why",
    ),
    _rule(RankEvidence.is_without_log, LATE, "ended, and its log is not there to say why"),
    _rule(RankEvidence.is_secondary, SECONDARY, "lost its peers or was told to stop"),
    _Rule(
        RankEvidence.is_silent,
        SILENT,
        "ended without a message, first on its node",
        LATE,
        "ended without a message",
    ),
)
