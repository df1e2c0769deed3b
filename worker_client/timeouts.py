"""Which limits apply to a rank, and which follow from what the ranks have measured?

Pure. Calculated value = safety factor x the largest of any rank; if the current value was itself calculated, the mean
of both; never below a floor, because what was short while measured need not stay short. Values that were not selected
stay.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import cast

from worker_client.errors import RankMonitorClientError

CALCULATED_WEIGHT = 0.5  # weight of the new value if the current one was calculated too


@dataclass(frozen=True, slots=True)
class Limits:
    """All limits of a rank, as sent in frames. None: no limit."""

    initial_heartbeat_s: float | None = None
    heartbeat_s: float | None = None
    out_of_section_s: float | None = None
    sections: tuple[tuple[str, float | None], ...] = ()

    def shortest_s(self) -> float | None:
        """Returns the limit that is reached first; None if there is none."""
        values = (self.initial_heartbeat_s, self.heartbeat_s, self.out_of_section_s, *dict(self.sections).values())
        return min((value for value in values if value is not None), default=None)


@dataclass(frozen=True, slots=True)
class MonitoringConfig:
    """What the supervisor configured for this rank, before any calculation.

    The properties have the names that users' scripts use for these settings.
    """

    limits: Limits = field(default_factory=Limits)
    warm_up_steps: int = 5
    safety_factor: float = 5.0
    learned_limit_floor_s: float = 0.0
    install_exception_hook: bool = False

    @property
    def initial_rank_heartbeat_timeout(self) -> float | None:
        return self.limits.initial_heartbeat_s

    @property
    def rank_heartbeat_timeout(self) -> float | None:
        return self.limits.heartbeat_s

    @property
    def rank_section_timeouts(self) -> dict[str, float | None]:
        return dict(self.limits.sections)

    @property
    def rank_out_of_section_timeout(self) -> float | None:
        return self.limits.out_of_section_s

    @property
    def num_warmup_iterations(self) -> int:
        return self.warm_up_steps


@dataclass(frozen=True, slots=True)
class HeartbeatTimeouts:
    """Limits in seconds until the first heartbeat and between heartbeats. None: no limit."""

    initial: float | None = None
    subsequent: float | None = None
    were_calculated: bool = False
    is_initial_configured: bool = False  # although the other was calculated

    @property
    def are_valid(self) -> bool:
        return self.initial is not None and self.subsequent is not None


@dataclass(frozen=True, slots=True)
class SectionTimeouts:
    """Limits in seconds on each monitored section, and on the time outside all of them. None: no limit."""

    section: Mapping[str, float | None] = field(default_factory=dict[str, "float | None"])
    out_of_section: float | None = None
    calculated_sections: tuple[str, ...] = ()  # sorted
    is_out_of_section_calculated: bool = False

    @property
    def are_valid(self) -> bool:
        return self.out_of_section is not None and None not in self.section.values()

    @property
    def were_calculated(self) -> bool:
        return self.is_out_of_section_calculated or bool(self.calculated_sections)


@dataclass(frozen=True, slots=True)
class Timeouts:
    """Both kinds together: what `state_dict()` stores and what is sent to a supervisor."""

    heartbeat: HeartbeatTimeouts = field(default_factory=HeartbeatTimeouts)
    section: SectionTimeouts = field(default_factory=SectionTimeouts)

    @property
    def were_calculated(self) -> bool:
        return self.heartbeat.were_calculated or self.section.were_calculated

    def limits(self) -> Limits:
        return Limits(
            initial_heartbeat_s=self.heartbeat.initial,
            heartbeat_s=self.heartbeat.subsequent,
            out_of_section_s=self.section.out_of_section,
            sections=tuple(self.section.section.items()),
        )

    def over(self, configured: Limits) -> Timeouts:
        """Returns these timeouts over `configured`: calculated values win; sections not configured are left out."""
        ours = self.section
        sections = dict(configured.sections)
        calculated = tuple(name for name in ours.calculated_sections if name in sections)
        sections |= {name: ours.section[name] for name in calculated}
        heartbeat = HeartbeatTimeouts(configured.initial_heartbeat_s, configured.heartbeat_s)
        if self.heartbeat.were_calculated:
            is_given = self.heartbeat.is_initial_configured
            heartbeat = replace(self.heartbeat, initial=heartbeat.initial) if is_given else self.heartbeat
        outside = ours.out_of_section if ours.is_out_of_section_calculated else configured.out_of_section_s
        return Timeouts(
            heartbeat=heartbeat,
            section=SectionTimeouts(sections, outside, calculated, ours.is_out_of_section_calculated),
        )

    def not_below(self, floor_s: float) -> Timeouts:
        """Returns these timeouts with shorter calculated limits raised to `floor_s`; configured ones stay."""
        ours, heartbeat = self.section, self.heartbeat
        if heartbeat.were_calculated:
            initial = heartbeat.initial if heartbeat.is_initial_configured else _raised(heartbeat.initial, floor_s)
            heartbeat = replace(heartbeat, initial=initial, subsequent=_raised(heartbeat.subsequent, floor_s))
        calculated = {name: _raised(ours.section[name], floor_s) for name in ours.calculated_sections}
        outside = _raised(ours.out_of_section, floor_s) if ours.is_out_of_section_calculated else ours.out_of_section
        section = replace(ours, section={**ours.section, **calculated}, out_of_section=outside)
        return Timeouts(heartbeat, section)


def _raised(limit_s: float | None, floor_s: float) -> float | None:
    return None if limit_s is None else max(limit_s, floor_s)


# --- calculation ---------------------------------------------------------------------------------------------------


def calculate_heartbeat(
    current: HeartbeatTimeouts, *, initial_max_s: float | None, gap_max_s: float, safety_factor: float
) -> HeartbeatTimeouts:
    """Returns new heartbeat limits from the longest silences of any rank; the initial one stays if it is None."""
    weigh = current.were_calculated
    has_initial = weigh and not current.is_initial_configured
    initial = current.initial
    if initial_max_s is not None:
        initial = _follow(initial, safety_factor * initial_max_s, has_initial)
    return HeartbeatTimeouts(
        initial=initial,
        subsequent=_follow(current.subsequent, safety_factor * gap_max_s, weigh),
        were_calculated=True,
        is_initial_configured=initial_max_s is None and not has_initial,
    )


def calculate_sections(
    current: SectionTimeouts, *, max_s: Mapping[str, float], outside_max_s: float | None, safety_factor: float
) -> SectionTimeouts:
    """Returns new limits for the sections in `max_s` and, unless None, for the time outside; others stay."""
    sections = dict(current.section)
    for name, longest_s in max_s.items():
        weigh = name in current.calculated_sections
        sections[name] = _follow(sections.get(name), safety_factor * longest_s, weigh)
    outside = current.out_of_section
    if outside_max_s is not None:
        outside = _follow(outside, safety_factor * outside_max_s, current.is_out_of_section_calculated)
    return SectionTimeouts(
        section=sections,
        out_of_section=outside,
        calculated_sections=tuple(sorted({*current.calculated_sections, *max_s})),
        is_out_of_section_calculated=current.is_out_of_section_calculated or outside_max_s is not None,
    )


def _follow(current_s: float | None, calculated_s: float, weigh: bool) -> float:
    if weigh and current_s is not None:
        return CALCULATED_WEIGHT * calculated_s + (1 - CALCULATED_WEIGHT) * current_s
    return calculated_s


# --- state ---------------------------------------------------------------------------------------------------------


def to_state(timeouts: Timeouts) -> dict[str, object]:
    """Returns the calculated values of `timeouts` as plain data for JSON."""
    heartbeat = timeouts.heartbeat if timeouts.heartbeat.were_calculated else HeartbeatTimeouts()
    section = timeouts.section
    outside_calculated = section.is_out_of_section_calculated
    return {
        "current_timeouts": {
            "heartbeat": {
                "initial": None if heartbeat.is_initial_configured else heartbeat.initial,
                "subsequent": heartbeat.subsequent,
                "were_calculated": heartbeat.were_calculated,
            },
            "section": {
                "section": {name: section.section[name] for name in section.calculated_sections},
                "out_of_section": section.out_of_section if outside_calculated else None,
                "calculated_sections": list(section.calculated_sections),
                "is_out_of_section_calculated": outside_calculated,
            },
        }
    }


def from_state(state: object) -> Timeouts:
    """Returns the timeouts in the output of `to_state()`. Raises RankMonitorClientError, which names what is wrong."""
    current = _mapping(_mapping(state, "the state").get("current_timeouts"), "current_timeouts")
    heartbeat = _mapping(current.get("heartbeat"), "heartbeat")
    section = _mapping(current.get("section"), "section")
    values = _mapping(section.get("section"), "section.section")
    names = section.get("calculated_sections")
    if not isinstance(names, list | tuple):
        raise _unusable("section.calculated_sections is not a list")
    calculated = sorted(str(name) for name in cast("list[object]", names))
    if lost := [name for name in calculated if name not in values]:
        raise _unusable(f"section.section lacks the calculated sections {', '.join(lost)}")
    were_calculated = bool(heartbeat.get("were_calculated"))
    initial_s = _seconds(heartbeat.get("initial"), "heartbeat.initial", needed=False)
    outside_calculated = bool(section.get("is_out_of_section_calculated"))
    return Timeouts(
        heartbeat=HeartbeatTimeouts(
            initial=initial_s,
            subsequent=_seconds(heartbeat.get("subsequent"), "heartbeat.subsequent", needed=were_calculated),
            were_calculated=were_calculated,
            is_initial_configured=were_calculated and initial_s is None,
        ),
        section=SectionTimeouts(
            section={name: _seconds(values[name], f"section.section.{name}", needed=True) for name in calculated},
            out_of_section=_seconds(section.get("out_of_section"), "out_of_section", needed=outside_calculated),
            calculated_sections=tuple(calculated),
            is_out_of_section_calculated=outside_calculated,
        ),
    )


def _mapping(value: object, name: str) -> Mapping[str, object]:
    if not isinstance(value, Mapping):
        raise _unusable(f"{name} is not a mapping")
    return cast("Mapping[str, object]", value)


def _seconds(value: object, name: str, *, needed: bool) -> float | None:
    if value is None and not needed:
        return None
    if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value) or value <= 0:
        raise _unusable(f"{name} is {value!r}, not a number of seconds above 0")
    return float(value)


def _unusable(why: str) -> RankMonitorClientError:
    return RankMonitorClientError(f"cannot load the client's state: {why}; pass what state_dict() returned")
