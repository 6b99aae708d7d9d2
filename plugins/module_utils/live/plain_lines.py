# SPDX-License-Identifier: Apache-2.0
"""The live view where lines cannot be drawn over: a pipe, CI, -v, ansible-runner. Few lines, each
true on its own. Pure, controller only.
"""

from __future__ import annotations

from . import live_warnings, screen

# A line for a node's new step comes no sooner than this after the node's last line.
STEP_SECONDS = 10
# A sign of life of the run, where nothing else was said for so long.
QUIET_SECONDS = 30
# The same warning again.
AGAIN_SECONDS = 300


class Ticker:
    """Says what is new after each look at a node."""

    def __init__(self):
        self._begin(None)

    def _begin(self, run):
        self._run, self._said, self._warned, self._last, self._figures = run, {}, {}, 0.0, ""

    def lines(self, watch, name, seconds):
        """Return [(text, style)] that are worth printing after the node `name` was looked at.
        seconds: the clock that Watch.add was given.
        """
        status = watch.status(name)
        found = [(text, None) for text in self.head(watch)]
        found += self._node(status, name, seconds)
        if status.get("found"):
            figures = "  ".join(
                text for _importance, text, _style in screen.evaluation_words(watch)
            )
            if figures != self._figures:
                self._figures = figures
                found += [(figures, None)] if figures else []
            for kind, nodes, text in live_warnings.warnings(watch, seconds):
                if seconds - self._warned.get((kind, nodes), -AGAIN_SECONDS) >= AGAIN_SECONDS:
                    self._warned[kind, nodes] = seconds
                    found.append(("warning: " + text, "warn"))
            if not found and seconds - self._last >= QUIET_SECONDS:
                found.append((run_text(watch), None))
        if found:
            self._last = seconds
        return found

    def head(self, watch):
        """Return the line that names the run, the first time that a node knows it; else nothing."""
        if not watch.known() or watch.run == self._run:
            return []
        self._begin(watch.run)
        status = watch.known()[0]
        again = ", attempt %d" % status["attempt"] if (status.get("attempt") or 1) > 1 else ""
        return [
            "run %s, job %s, %d nodes%s"
            % (status["run"], status["job"], len(status["nodes"]), again)
        ]

    def _node(self, status, name, seconds):
        ranks = status.get("ranks", ())
        state = (
            status.get("found"),
            status.get("state"),
            tuple((rank["rank"], rank["state"]) for rank in ranks),
        )
        steps = tuple(
            tuple((rank.get("step") or {}).get(key) for key in ("epoch", "step", "global_step"))
            for rank in ranks
        )
        before, shown, when = self._said.get(name, (None, None, 0.0))
        if state == before and (steps == shown or seconds - when < STEP_SECONDS):
            return []
        self._said[name] = (state, steps, seconds)
        return [(screen.node_line(status), screen.style_of(status.get("state")))]


def run_text(watch):
    """Return one line for the whole run: how far it is, its first rank's step, the slowest rank."""
    found, fraction = watch.leading(), watch.fraction()
    words = ["run {}".format(watch.known()[0]["run"])]
    words += ["%d %%" % int(fraction * 100)] if fraction is not None else []
    if found:
        status, rank = found
        words.append(
            screen.step_text(
                dict(rank["step"], eta=watch.left()),
                status.get("epochs"),
                status.get("unit_of_speed"),
                status.get("first_step"),
            )
        )
    else:
        words.append("no step yet")
    slowest = screen.slowest_text(watch)[0]
    return "  ".join([*words, slowest] if slowest else words)
