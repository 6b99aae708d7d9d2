# SPDX-License-Identifier: Apache-2.0
"""The live view where lines cannot be redrawn. Pure.

That is a pipe, CI, -v or ansible-runner. It has few lines, each true on its own.
"""

from __future__ import annotations

from typing import Any

from . import live_warnings, screen
from .model import Json, Watch
from .screen import Line

# A line for a node's new step comes no sooner than this after the node's last line.
STEP_SECONDS = 10
# A line for the whole run, where nothing else was printed for so long.
QUIET_SECONDS = 30
# A warning is repeated after so long.
AGAIN_SECONDS = 300


class Ticker:
    """The lines of a run: what is new after each answer of a node."""

    def __init__(self) -> None:
        self._begin(None)

    def _begin(self, run: tuple[str, int] | None) -> None:
        self._run = run
        # {node: (state, steps, seconds)} of its latest line
        self._node_states: dict[str, tuple[Any, Any, float]] = {}
        self._warned: dict[tuple[str, tuple[str, ...]], float] = {}  # {(kind, nodes): seconds}
        self._last, self._figures = 0.0, ""  # seconds of the latest line, the latest evaluation

    def lines(self, watch: Watch, name: str, seconds: float) -> Line:
        """Return [(text, style)] of what is new after an answer of the node `name`.

        seconds: the clock that Watch.add was given.
        """
        status = watch.status(name)
        lines: Line = [(text, None) for text in self.head(watch)]
        lines += self._node_lines(status, name, seconds)
        if status.get("found"):
            lines += self._evaluation_lines(watch)
            lines += self._warning_lines(watch, seconds)
            if not lines and seconds - self._last >= QUIET_SECONDS:
                lines.append((run_text(watch), None))
        if lines:
            self._last = seconds
        return lines

    def head(self, watch: Watch) -> list[str]:
        """Return [the line that names the run] if the run is new, else []."""
        if not watch.known() or watch.run == self._run:
            return []
        self._begin(watch.run)
        status = watch.known()[0]
        text = f"run {status['run']}, job {status['job']}, {len(status['nodes'])} nodes"
        if (status.get("attempt") or 1) > 1:
            text += f", attempt {status['attempt']}"
        return [text]

    def _node_lines(self, status: Json, name: str, seconds: float) -> Line:
        """Return a node's line if its state is new, or its step after STEP_SECONDS."""
        ranks = status.get("ranks", ())
        rank_states = tuple((rank["rank"], rank["state"]) for rank in ranks)
        state = (status.get("found"), status.get("state"), rank_states)
        steps = tuple(_step_key(rank.get("step") or {}) for rank in ranks)
        last_state, last_steps, when = self._node_states.get(name, (None, None, 0.0))
        if state == last_state and (steps == last_steps or seconds - when < STEP_SECONDS):
            return []
        self._node_states[name] = (state, steps, seconds)
        return [(screen.node_line(status), screen.style_of(status.get("state")))]

    def _evaluation_lines(self, watch: Watch) -> Line:
        """Return the evaluation if it is new."""
        figures = "  ".join(text for _importance, text, _style in screen.evaluation_words(watch))
        is_new = figures != self._figures
        self._figures = figures
        if is_new and figures:
            return [(figures, None)]
        return []

    def _warning_lines(self, watch: Watch, seconds: float) -> Line:
        """Return the warnings that are new, or are to be repeated."""
        lines: Line = []
        warnings = live_warnings.warnings(watch, seconds)
        over = live_warnings.ONCE - {warning.kind for warning in warnings}
        self._warned = {key: when for key, when in self._warned.items() if key[0] not in over}
        for kind, nodes, text in warnings:
            if kind in live_warnings.ONCE and (kind, nodes) in self._warned:
                continue
            if seconds - self._warned.get((kind, nodes), -AGAIN_SECONDS) >= AGAIN_SECONDS:
                self._warned[kind, nodes] = seconds
                lines.append(("warning: " + text, "warn"))
        return lines


def _step_key(step: Json) -> tuple[Any, ...]:
    return tuple(step.get(key) for key in ("epoch", "step", "global_step"))


def run_text(watch: Watch) -> str:
    """Return one line for the run: progress, first rank's step, slowest rank."""
    leading, fraction = watch.leading(), watch.fraction()
    words = [f"run {watch.known()[0]['run']}"]
    if fraction is not None:
        words.append(f"{int(fraction * 100)} %")
    if leading:
        status, rank = leading
        step = dict(rank["step"], eta=watch.left())
        epochs, unit = status.get("epochs"), status.get("unit_of_speed")
        words.append(screen.step_text(step, epochs, unit, status.get("first_step")))
    else:
        words.append("no step yet")
    slowest = screen.slowest_text(watch)[0]
    if slowest:
        words.append(slowest)
    return "  ".join(words)
