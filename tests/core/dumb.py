"""How would slow, obvious code decide what the machines decide? Tests compare the two."""

from __future__ import annotations

from dataclasses import dataclass, field

from supervisor.core.facts import HangLimits, Progress


@dataclass
class Script:
    """The full behaviour of a rank; the machine sees only what it reads."""

    initialised_at_s: float = 0.0
    heartbeats: list[float] = field(default_factory=list[float])
    sections: list[tuple[str, float, float]] = field(default_factory=list[tuple[str, float, float]])  # (name, from, to)
    warm_up_steps: int = 0

    def progress(self, at_s: float) -> Progress:
        """Returns the page as read at `at_s`."""
        beats = [beat for beat in self.heartbeats if beat <= at_s]
        started = sorted(opened for name, opened, _ in self.sections if name == "step" and opened <= at_s)
        return Progress(
            initialised_at_s=self.initialised_at_s,
            out_of_section_since_s=self._out_of_section_since_s(at_s),
            heartbeat_at_s=beats[-1] if beats else None,
            heartbeats=len(beats),
            open_sections=tuple((name, opened) for name, opened, closed in self.sections if opened <= at_s < closed),
            first_step_seen=bool(started),
            steps_since_first=max(0, len(started) - 1),
            read_at_s=at_s,
        )

    def _out_of_section_since_s(self, at_s: float) -> float:
        """Returns the last moment when the last open section closed, or init."""
        ends = [closed for _, _, closed in self.sections if closed <= at_s]
        return max(
            (end for end in ends if not any(opened <= end < closed for _, opened, closed in self.sections)),
            default=self.initialised_at_s,
        )

    def changes(self) -> list[float]:
        return sorted({*self.heartbeats, *(t for _, *span in self.sections for t in span), self.initialised_at_s})


def first_hang_s(script: Script, limits: HangLimits, *, until_s: float) -> float | None:
    """Returns the true first moment when a limit is met, by checking every stretch between two changes."""
    moments = [change for change in script.changes() if change < until_s]
    for begin, end in zip(moments, [*moments[1:], until_s], strict=True):
        expiries = [since + limit for since, limit in silences(script.progress(begin), limits)]
        met = [max(expiry, begin) for expiry in expiries if expiry < end]
        if met:
            return min(met)
    return None


def silences(progress: Progress, limits: HangLimits) -> list[tuple[float, float]]:
    """Returns (since, limit) of all running silences, rule by rule."""
    sections = dict(limits.sections)
    found: list[tuple[float, float | None]] = []
    if progress.heartbeats == 0:
        found.append((progress.initialised_at_s, limits.initial_heartbeat_s))
    if progress.heartbeat_at_s is not None:
        found.append((progress.heartbeat_at_s, limits.heartbeat_s))
    for name, opened in progress.open_sections:
        limit = sections.get(name)
        if name == "step" and "warmup" in sections and progress.steps_since_first < limits.warm_up_steps:
            limit = sections["warmup"]
        found.append((opened, limit))
    if not progress.open_sections:
        closed_one = progress.out_of_section_since_s != progress.initialised_at_s
        early = "warmup" in sections and (closed_one or progress.heartbeats == 0)
        if progress.first_step_seen or early:
            found.append((progress.out_of_section_since_s, limits.out_of_section_s))
    return [(since, limit) for since, limit in found if limit is not None]


def restarts_granted(max_restarts: int, faults: int) -> int:
    """Counts a budget in matches: each fault takes one while any are left."""
    matches = ["|"] * max_restarts
    granted = 0
    for _ in range(faults):
        if not matches:
            break
        matches.pop()
        granted += 1
    return granted


def cycles_until_no_progress(
    iterations: list[int | None], start: int | None, *, wanted: int, allowed: int
) -> int | None:
    """Returns the number of the fault at which a job without progress ends; None if it never does."""
    highest = reached = start  # `reached`: since the last fall
    falls = in_a_row = 0
    for number, iteration in enumerate(iterations, start=1):
        if iteration is None:
            continue
        if highest is None or reached is None:
            highest = reached = iteration
            continue
        if iteration >= highest + wanted:
            highest = reached = iteration
            falls = in_a_row = 0
        elif iteration >= reached + wanted:
            reached, in_a_row = iteration, falls
        else:
            in_a_row += 1
            if iteration < reached:
                reached, falls = iteration, falls + 1
        if allowed > 0 and in_a_row >= allowed:
            return number
    return None


def nodes_suspected(faults: list[tuple[str, float]], *, often: int, window_s: float) -> list[list[str]]:
    """Returns the suspects after each fault (node, at_s), counted over the whole history every time."""
    suspected: list[list[str]] = []
    for number, (_, now_s) in enumerate(faults, start=1):
        recent = [node for node, at_s in faults[:number] if now_s - at_s < window_s]
        suspected.append(sorted({node for node in recent if recent.count(node) >= often}))
    return suspected
