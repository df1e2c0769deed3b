"""How long may a rank be silent, since when has it been, and how is that reported?

Both machines that judge a rank by its page use this: rank_monitor.py and call_watch.py.
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from supervisor.core.facts import Progress

REREAD_PAUSE_S = 0.05  # pause before the page is read again, if an answer was too old to judge by


class Silence(msgspec.Struct, frozen=True):
    """A silence that began at `since_s` and may last `limit_s`."""

    since_s: float
    limit_s: float
    text: str  # with {age} and {limit}

    @property
    def due_at_s(self) -> float:
        return self.since_s + self.limit_s

    def reason(self, now_s: float) -> str:
        """Returns the text for a silence that was found to be too long at `now_s`."""
        # The limit was exceeded, so rounding must not show a smaller age.
        age_s = max(now_s - self.since_s, self.limit_s)
        return self.text.format(age=_seconds(age_s), limit=_seconds(self.limit_s))


def read_moment_s(progress: Progress, now_s: float) -> float:
    """Returns the moment that `progress` describes; never in the future."""
    return now_s if progress.read_at_s is None else min(progress.read_at_s, now_s)


COMES_BACK_S = 10.0  # by then, a live client has reconnected to a returning supervisor
FIRST_BEAT_S = 60.0  # a rank without heartbeats when last read may have begun since


def counted_from(progress: Progress, now_s: float) -> Progress:
    """Returns the progress of a rank that was not read until its supervisor came back at `now_s`.

    Each silence counts from the moment by which the rank's client should be back if the rank runs.
    """
    first_beat_at_s, now_s = now_s + FIRST_BEAT_S, now_s + COMES_BACK_S
    watch = progress.call_watch
    if watch is not None:
        ping_at_s = now_s if watch.ping_at_s is not None else None
        watch = msgspec.structs.replace(watch, since_s=now_s, progressed_at_s=now_s, ping_at_s=ping_at_s)
    return msgspec.structs.replace(
        progress,
        initialised_at_s=now_s,
        out_of_section_since_s=now_s,
        heartbeat_at_s=now_s if progress.heartbeat_at_s is not None else first_beat_at_s,
        open_sections=tuple((name, now_s) for name, _ in progress.open_sections),
        read_at_s=None,
        call_watch=watch,
    )


def moved_s(moment_s: float, absences: Sequence[tuple[float, float]]) -> float:
    """Returns the moment from which a silence counts that began at `moment_s`, without these times."""
    return moment_s + sum(max(back_s - max(lost_s, moment_s), 0.0) for lost_s, back_s in absences)


def without_absences(progress: Progress, absences: Sequence[tuple[float, float]]) -> Progress:
    """Returns the progress of a rank whose page was read, as if no time had passed while nobody watched it.

    `absences`: from when until when. Each silence that lasts gets shorter by the time of those.
    """

    def moved(moment_s: float) -> float:
        return moved_s(moment_s, absences)

    watch = progress.call_watch
    if watch is not None:
        ping_at_s = moved(watch.ping_at_s) if watch.ping_at_s is not None else None
        watch = msgspec.structs.replace(
            watch, since_s=moved(watch.since_s), progressed_at_s=moved(watch.progressed_at_s), ping_at_s=ping_at_s
        )
    return msgspec.structs.replace(
        progress,
        initialised_at_s=moved(progress.initialised_at_s),
        out_of_section_since_s=moved(progress.out_of_section_since_s),
        heartbeat_at_s=moved(progress.heartbeat_at_s) if progress.heartbeat_at_s is not None else None,
        open_sections=tuple((name, moved(opened_at_s)) for name, opened_at_s in progress.open_sections),
        call_watch=watch,
        executed_at_s=moved(progress.executed_at_s) if progress.executed_at_s is not None else None,
    )


def _seconds(duration_s: float) -> str:
    return f"{duration_s:.1f} s" if duration_s >= 1 else f"{duration_s:.3g} s"
