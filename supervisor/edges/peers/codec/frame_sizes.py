"""What is left out, or sent later, if a frame would exceed the limit of the cluster stream?"""

from __future__ import annotations

from collections.abc import Callable

import msgspec

from supervisor.core.cluster.cluster_messages import CallReport, Reported, StacksTaken
from supervisor.core.facts import Evidence, StackGroup
from supervisor.core.node.node_messages import Ordered
from supervisor.core.orders import TellMembers
from supervisor.core.process_facts import ProcessFacts, RankFacts
from supervisor.core.wrapped_calls.call_messages import too_large
from supervisor.edges.peers.codec.cluster_frames import Frame

Measure = Callable[[Frame], int]  # returns the size of a frame's payload in bytes

NOTES_BYTES_MAX = 64 * 1024
LENGTHS_BYTES_MAX = 64  # nested messages' lengths need more bytes as they grow, and the last note counts, too


def shortened(frame: Frame, bytes_max: int, measure: Measure) -> Frame:
    """Returns the same content in fewer bytes, or the frame unchanged if nothing can be left out."""
    match frame:
        case Reported(job_id, StacksTaken(node, cycle, evidence)):

            def evidence_bytes(part: Evidence) -> int:
                return measure(Reported(job_id, StacksTaken(node, cycle, part)))

            return Reported(job_id, StacksTaken(node, cycle, _with_the_oddest(evidence, bytes_max, evidence_bytes)))
        case Ordered(job_id, TellMembers(order=order) as tells):
            refused = too_large(order, frame_bytes=measure(frame), bytes_max=bytes_max)
            return Ordered(job_id, msgspec.structs.replace(tells, order=refused))
        case _:
            return frame


def halves(frame: Frame) -> tuple[Frame, Frame]:
    """Splits a report into two that together say the same."""
    match frame:
        case Reported(job_id, CallReport(told=told) as report) if len(told) > 1:
            middle = len(told) // 2
            first, rest = (msgspec.structs.replace(report, told=part) for part in (told[:middle], told[middle:]))
            return Reported(job_id, first), Reported(job_id, rest)
        case _:
            raise AssertionError(f"{type(frame).__name__} is longer than a frame and can't be split")


def _with_the_oddest(evidence: Evidence, bytes_max: int, evidence_bytes: Callable[[Evidence], int]) -> Evidence:
    """Puts the unusual stacks first: keeps what few ranks do, and leaves out what most do."""
    ranks = sum(len(group.ranks) for group in evidence.groups)
    bare = msgspec.structs.replace(
        evidence,
        groups=(),
        notes=_first_notes(evidence.notes, bytes_max),
        facts=_facts_that_fit(evidence.facts, bytes_max // 4, evidence_bytes),
    )
    bare_bytes = evidence_bytes(_noted(bare, ranks, bytes_max))
    free = bytes_max - bare_bytes - LENGTHS_BYTES_MAX
    kept: list[StackGroup] = []
    for group in evidence.groups:
        group_bytes = (
            evidence_bytes(_noted(msgspec.structs.replace(bare, groups=(group,)), ranks, bytes_max)) - bare_bytes
        )
        if group_bytes > free:
            if kept:
                break
            group = _first_alone(group, group_bytes - free, free)
            group_bytes = free
        kept.append(group)
        free -= group_bytes
    shorter = msgspec.structs.replace(bare, groups=tuple(kept))
    left_out = sum(len(group.ranks) for group in evidence.groups[len(kept) :])
    return _noted(shorter, left_out, bytes_max) if left_out else shorter


def _first_alone(group: StackGroup, bytes_over: int, free: int) -> StackGroup:
    """Shortens a group by so many bytes: first its stack from the beginning, then its frames."""
    stack_bytes = len(group.stack.encode(errors="replace"))
    if bytes_over < stack_bytes:
        return msgspec.structs.replace(group, stack=_innermost(group.stack, bytes_over))
    return msgspec.structs.replace(group, stack=_innermost(group.stack, max(0, stack_bytes - free)), frames=())


def _facts_that_fit(
    facts: tuple[RankFacts, ...], bytes_max: int, evidence_bytes: Callable[[Evidence], int]
) -> tuple[RankFacts, ...]:
    """Returns facts that the stacks do not show, each rank's state first: all, less of each, or none."""
    slim = tuple(
        msgspec.structs.replace(each, sections=(), gil_frames=(), source_line="", process=_without_children(each))
        for each in facts
    )
    return next((part for part in (facts, slim) if evidence_bytes(Evidence(facts=part)) <= bytes_max), ())


def _without_children(facts: RankFacts) -> ProcessFacts | None:
    return msgspec.structs.replace(facts.process, children=()) if facts.process is not None else None


def _noted(evidence: Evidence, ranks: int, bytes_max: int) -> Evidence:
    note = f"the stacks of {ranks} ranks are left out: a message holds {bytes_max} bytes"
    return msgspec.structs.replace(evidence, notes=(*evidence.notes, note))


def _first_notes(notes: tuple[str, ...], bytes_max: int) -> tuple[str, ...]:
    """Returns as many notes as fit into part of a frame."""
    free = min(NOTES_BYTES_MAX, bytes_max // 2)
    for count, note in enumerate(notes):
        free -= len(note.encode(errors="replace"))
        if free < 0:
            return notes[:count]
    return notes


def _innermost(stack: str, bytes_over: int) -> str:
    """Cuts so many bytes from the beginning of a stack: its innermost frame is the last."""
    return stack.encode(errors="replace")[bytes_over:].decode(errors="ignore")
