"""How was the time of a simulated job spent?"""

from __future__ import annotations

import enum

from supervisor.programs.simulation.scenario import Life, Scenario

SPANS_MAX = 20_000  # kept for a picture


class Spent(enum.StrEnum):
    TRAINING = "training"
    REDONE = "redone"
    UNNOTICED = "unnoticed"
    STARTING = "starting"
    WAITING = "waiting"
    REQUEUED = "requeued"


class TimeAccounting:
    def __init__(self, scenario: Scenario) -> None:
        self._scenario = scenario
        self._since_s = 0.0
        self._now: Spent | None = None
        self._sums: dict[Spent, float] = dict.fromkeys(Spent, 0.0)
        self._checkpoint_s = 0.0
        self._spans: list[tuple[float, float, str]] = []
        self._away_max = 0
        self._units = 0
        self._units_before = 0  # of jobs that have ended
        self._last_end = ""
        self.faults = 0
        self.restarts = 0
        self.jobs = 1
        self.spares_used = 0

    def spend(self, at_s: float, on: Spent) -> None:
        """Notes what time is spent on from now on."""
        if on is not self._now:
            self._note(at_s, is_end=False)
            self._now, self._since_s = on, at_s

    def units_used(self, units: int) -> None:
        """Notes the units used of the running job's budget."""
        self._units = max(self._units, units)

    def ended(self, reason: str) -> None:
        self._last_end = reason
        self._units_before += self._units
        self._units = 0

    def away(self, nodes: int) -> None:
        self._away_max = max(self._away_max, nodes)

    def close(self, at_s: float) -> Life:
        self._note(at_s, is_end=True)
        return Life(
            useful_s=self._sums[Spent.TRAINING],
            redone_s=self._sums[Spent.REDONE],
            checkpoint_s=self._checkpoint_s,
            unnoticed_s=self._sums[Spent.UNNOTICED],
            starting_s=self._sums[Spent.STARTING],
            waiting_s=self._sums[Spent.WAITING],
            requeued_s=self._sums[Spent.REQUEUED],
            faults=self.faults,
            restarts=self.restarts,
            jobs=self.jobs,
            away_max=self._away_max,
            spares_used=self.spares_used,
            units=self._units_before + self._units,
            last_end=self._last_end,
            spans=tuple(self._spans),
        )

    def _note(self, at_s: float, *, is_end: bool) -> None:
        if self._now is None or at_s <= self._since_s:
            return
        if self._now is Spent.TRAINING:
            self._note_training(at_s, is_end=is_end)
            return
        self._sums[self._now] += at_s - self._since_s
        self._span(self._since_s, at_s, self._now)

    def _note_training(self, at_s: float, *, is_end: bool) -> None:
        """Notes training time. Steps since the last complete checkpoint are lost, except at the simulation's end."""
        interval_s, pause_s = self._scenario.checkpoint_interval_s, self._scenario.checkpoint_pause_s
        whole, rest_s = divmod(at_s - self._since_s, interval_s + pause_s)
        kept_s = whole * interval_s
        last_s = min(rest_s, interval_s)
        self._checkpoint_s += whole * pause_s + (rest_s - last_s)
        kept_until_s = at_s if is_end else at_s - rest_s
        self._sums[Spent.TRAINING] += kept_s + (last_s if is_end else 0.0)
        self._sums[Spent.REDONE] += 0.0 if is_end else last_s
        self._span(self._since_s, kept_until_s, Spent.TRAINING)
        self._span(kept_until_s, at_s, Spent.REDONE)

    def _span(self, from_s: float, to_s: float, what: Spent) -> None:
        if to_s > from_s and len(self._spans) < SPANS_MAX:
            self._spans.append((from_s, to_s, str(what)))
