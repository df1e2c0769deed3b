"""Which faults and requests did a job have, what was done about each, and when did its ranks run again?"""

from __future__ import annotations

import itertools
import re
from collections.abc import Mapping, Sequence

import msgspec

from supervisor.core.event_weights import CAUSES, ENDS, SETTLED, Weight, weight
from supervisor.ports.reports import RecordedEvent
from supervisor.report.timeline.timeline import Cycle, Incident, Outcome, StackGroup, Trouble

LATE_NS = 10 * 10**9  # how long after the ranks run again stacks and their verdict may come
STALE_NS = 120 * 10**9  # a fault without consequences for this long is not the cause of later events
FIRST_EVENTS = 4  # among which a silence is first reported
SILENCE_MAX_S = 1e9
EVENTS_MAX = 200  # kept for one incident

_ACTS = frozenset({"restart_decided", "iteration_interrupted", "rank_replaced", "call_lost", "fault_tolerated"})
_DONE = _ACTS | SETTLED | ENDS | {"workers_stopping", "restart_requested", "workers_stopped"}
_FINDINGS = frozenset({"stacks_collected", "stacks_missing", "hang_explained", "root_cause_found"})
_DECISIONS = (
    "restart_decided",
    "call_lost",
    "restart_refused",
    "rank_replaced",
    "iteration_restarted",
    "fault_tolerated",
)
_FAILURES = ("worker_failed", "rank_lost_in_call", "spawner_lost", "store_failed", "spawn_failed")
_NODE_LOST = re.compile(r"node (\S+)(?: of group rank \d+)? is lost")
_SILENT = re.compile(r"executed no Python code|soft timeout|has not come back")
_SILENCE = re.compile(
    r"\bfor ([0-9]{1,12}(?:\.[0-9]{1,12})?(?:e[-+]?[0-9]{1,2})?) s(?: or more)?(?: \((?:limit|soft timeout)|[;,]|$)"
)
_INTERRUPTED = re.compile(r"^iteration \d+ of call \d+ is interrupted: ")
_DECIDED = re.compile(r"; (?:restarting\b|restarts used \d+ of \d+).*$", re.DOTALL)
_UNITS = re.compile(r"restarts used ([0-9]{1,9}) of")
_NUMBER = re.compile(r"[0-9]{1,9}")
_RANK = re.compile(r"\brank ([0-9]{1,9})\b")


def incidents_of(
    events: Sequence[RecordedEvent], cycles: Sequence[Cycle], *, until_ns: int, has_failed: bool, has_ended: bool
) -> tuple[Incident, ...]:
    """Returns the incidents. `events`: see `in_order`. `has_failed`: the job failed, so its last fault ended it."""
    found = _Collector(has_failed)
    for event in events:
        found.take(event)
    found.finish(until_ns, has_ended=has_ended)
    seen = {event.cycle: event.reason for event in events if event.kind == "script_seen"}
    told = [_told(each, number, cycles, seen) for number, each in enumerate(found.collected, 1)]
    return tuple(_not_into_the_next(told))


def _not_into_the_next(told: list[Incident]) -> list[Incident]:
    """Moves a rank that fails before all have restarted to the next incident."""
    for before, (one, after) in enumerate(itertools.pairwise(told)):
        if one.until_ns is None or one.until_ns > after.noticed_ns:
            told[before] = msgspec.structs.replace(one, until_ns=max(after.noticed_ns, one.noticed_ns))
    return told


class _Collected(msgspec.Struct):
    events: list[RecordedEvent]
    outcome: Outcome = Outcome.OPEN
    until_ns: int | None = None
    next_cycle: int | None = None

    @property
    def kinds(self) -> set[str]:
        return {event.kind for event in self.events}

    @property
    def restarts_all(self) -> bool:
        return not self.kinds.isdisjoint(("restart_decided", "workers_stopping"))

    @property
    def counts(self) -> bool:
        """Whether anything was done about it, so it is more than a remark."""
        return not self.kinds.isdisjoint(_DONE)

    @property
    def may_be_stale(self) -> bool:
        """Whether it may still lead to nothing. An unfit rank may be replaced after the others have restarted."""
        return self.kinds.isdisjoint(_DONE - {"rank_replaced"})


class _Collector:
    """Goes through the events once; at most one incident is open at a time."""

    def __init__(self, has_failed: bool) -> None:
        self._has_failed = has_failed
        self._open: _Collected | None = None
        self.collected: list[_Collected] = []

    def take(self, event: RecordedEvent) -> None:
        self._drop_stale(event.at_ns)
        known = self._open
        if known is None:
            if event.kind in _FINDINGS and self._belongs_to_last(event):
                self.collected[-1].events.append(event)
            elif opens(event):
                self._open = _Collected([event])
                if event.kind in SETTLED:  # Another fault at the same time has closed the incident.
                    self._close(Outcome.TOLERATED, event.at_ns)
            return
        if event.kind == "cycle_started" and event.cycle > known.events[0].cycle:
            known.next_cycle = event.cycle
            self._close(Outcome.RESTARTED, event.at_ns)
            return
        if len(known.events) < EVENTS_MAX or event.kind in _ACTS | _FINDINGS | ENDS:
            known.events.append(event)
        if event.kind == "iteration_restarted" and not known.restarts_all:
            self._close(Outcome.INSIDE, event.at_ns)
        elif event.kind in SETTLED and not known.restarts_all:
            self._close(Outcome.TOLERATED, event.at_ns)

    def finish(self, until_ns: int, *, has_ended: bool) -> None:
        self._drop_stale(until_ns)
        known = self._open
        if known is None:
            return
        if not has_ended:
            self._close(Outcome.OPEN, None)
        elif self._has_failed or "restart_decided" in known.kinds:
            self._close(Outcome.ENDED_JOB, known.events[-1].at_ns)

    def _drop_stale(self, now_ns: int) -> None:
        """Drops remarks that have had no consequences for too long, whatever comes next."""
        known = self._open
        if known is None or now_ns - known.events[0].at_ns <= STALE_NS or not known.may_be_stale:
            return
        fresh = [event for event in known.events if now_ns - event.at_ns <= STALE_NS]
        events = list(itertools.dropwhile(lambda event: not opens(event), fresh))
        self._open = _Collected(events) if events else None

    def _close(self, outcome: Outcome, at_ns: int | None) -> None:
        known, self._open = self._open, None
        if known is not None and (known.counts or outcome is Outcome.ENDED_JOB):
            # the clock of the node that begins the next cycle may be behind
            known.outcome, known.until_ns = outcome, None if at_ns is None else max(at_ns, known.events[0].at_ns)
            self.collected.append(known)

    def _belongs_to_last(self, event: RecordedEvent) -> bool:
        last = self.collected[-1] if self.collected else None
        if last is None or last.until_ns is None:
            return False
        return event.cycle == last.events[0].cycle and event.at_ns - last.until_ns < LATE_NS


def opens(event: RecordedEvent) -> bool:
    """Returns whether an incident may begin with this event."""
    return event.kind in CAUSES or event.kind in _ACTS or weight(event.kind) is Weight.FAULT


# --- one of them ---------------------------------------------------------------------------------------------------


def _told(found: _Collected, number: int, cycles: Sequence[Cycle], seen: Mapping[int, str]) -> Incident:
    events = found.events
    began_ns = {cycle.number: cycle.began_ns for cycle in cycles}
    started_ns = {cycle.number: cycle.started_ns for cycle in cycles}
    first, by_kind = events[0], _by_kind(events)
    cause, culprits, node = _cause(events, by_kind)
    until_ns = found.until_ns
    if found.next_cycle is not None and (again_ns := started_ns.get(found.next_cycle)) is not None:
        until_ns = max(again_ns, until_ns or again_ns)
    decided = [event for event in events if event.kind in _DECISIONS or event.kind in ENDS]
    units = [int(match[1]) for event in decided for match in _UNITS.finditer(event.reason)]
    stacks = next((event for event in reversed(events) if event.kind == "stacks_collected"), None)
    followers = {event.rank for event in events if event.kind in ("worker_failed", "rank_lost_in_call")}
    return Incident(
        number=number,
        trouble=_trouble(events, by_kind, cause),
        outcome=found.outcome,
        began_ns=min(first.at_ns, max(_began_ns(events), began_ns.get(first.cycle, 0))),
        noticed_ns=first.at_ns,
        until_ns=until_ns,
        cycle=first.cycle,
        iteration=first.iteration,
        cause=cause,
        culprits=culprits,
        node=node,
        decision=_decision(decided, cause),
        followers=tuple(sorted(rank for rank in followers if rank is not None and rank not in culprits)),
        units_used=max(units, default=None),
        stacks=_stacks(stacks, culprits),
        stacks_note=_stacks_note(stacks, by_kind.get("stacks_missing")),
        script=seen.get(found.next_cycle, "") if found.next_cycle is not None else "",
        events=tuple(events),
    )


def _by_kind(events: Sequence[RecordedEvent]) -> dict[str, RecordedEvent]:
    """Returns the first event of each kind."""
    found: dict[str, RecordedEvent] = {}
    for event in events:
        found.setdefault(event.kind, event)
    return found


def _began_ns(events: Sequence[RecordedEvent]) -> int:
    """Returns when the incident began; a silence begins before it is noticed."""
    return min(event.at_ns - int(silence_s(event.reason) * 1e9) for event in events[:FIRST_EVENTS])


def silence_s(reason: str) -> float:
    """Returns how long a rank or node had been silent according to the reason; 0: not silent."""
    return min(max((float(match[1]) for match in _SILENCE.finditer(reason)), default=0.0), SILENCE_MAX_S)


def _cause(events: Sequence[RecordedEvent], by_kind: dict[str, RecordedEvent]) -> tuple[str, tuple[int, ...], str]:
    """Returns the most telling sentence, the ranks to blame, and their node."""
    first = events[0]
    found = by_kind.get("root_cause_found") or by_kind.get("hang_explained")
    text = found.reason if found is not None else _DECIDED.sub("", _INTERRUPTED.sub("", first.reason))
    culprits: tuple[int, ...] = ()
    if found is not None:
        named = dict(found.details).get("culprits", "")
        culprits = tuple(int(rank) for rank in named.split(", ") if _NUMBER.fullmatch(rank))
        if not culprits and found.kind == "root_cause_found" and (match := _RANK.search(text)):
            culprits = (int(match[1]),)
    lost = next((match for event in events if (match := _NODE_LOST.search(event.reason))), None)
    if found is None and lost is not None:
        return text, (), lost[1]
    if found is None and first.kind == "restart_decided" and (match := _RANK.search(text)):
        culprits = (int(match[1]),)
    if found is None and not culprits and first.rank is not None:
        culprits = (first.rank,)
    theirs = [event for event in events if event.rank is not None and event.rank in culprits]
    nodes = [event.node for event in theirs if event.kind in _FAILURES or event.kind == "hang_detected"]
    return text, culprits, nodes[0] if nodes else ""


def _decision(decided: Sequence[RecordedEvent], cause: str) -> str:
    """Returns what was done, without the cause at the start of the sentence."""
    for kind in (*_DECISIONS, *ENDS):
        event = next((each for each in decided if each.kind == kind), None)
        if event is None:
            continue
        if event.reason.startswith(f"{cause}; "):
            return event.reason.removeprefix(f"{cause}; ")
        if kind == "restart_decided" and "; restarting" in event.reason:
            return "restarting" + event.reason.rpartition("; restarting")[2]
        return event.reason
    return ""


def _trouble(events: Sequence[RecordedEvent], by_kind: dict[str, RecordedEvent], cause: str) -> Trouble:
    asked = by_kind.get("restart_requested")
    if asked is not None and (asked is events[0] or events[0].reason.startswith(f"{asked.reason}; restarting")):
        return Trouble.REQUESTED
    if _SILENT.search(cause) or not by_kind.keys().isdisjoint(("hang_detected", "hang_explained")):
        return Trouble.HANG
    if "node_lost" in by_kind or any(_NODE_LOST.search(event.reason) for event in events):
        return Trouble.NODE_LOST
    if not by_kind.keys().isdisjoint(_FAILURES) or re.search(r"failed with exit code|was killed", cause):
        return Trouble.FAILURE
    return Trouble.EXCEPTION if "iteration_interrupted" in by_kind else Trouble.OTHER


def _stacks(event: RecordedEvent | None, culprits: tuple[int, ...]) -> tuple[StackGroup, ...]:
    """Returns the stacks, the culprits' first, then the unusual ones."""
    if event is None:
        return ()
    groups = [StackGroup(key.partition(" ")[2], text) for key, text in event.details if key.startswith("ranks ")]
    return tuple(sorted(groups, key=lambda group: not has_rank(group, culprits)))


def has_rank(group: StackGroup, ranks: tuple[int, ...]) -> bool:
    named = set(group.ranks.split(", "))
    return any(str(rank) in named for rank in ranks)


def _stacks_note(collected: RecordedEvent | None, missing: RecordedEvent | None) -> str:
    if collected is not None:
        details = dict(collected.details)
        source, took = details.get("source", ""), details.get("took_s", "")
        return f"taken by {source}" + (f" in {took} s" if took else "") if source else ""
    return missing.reason if missing is not None else ""
