"""What is left out, or sent later, where a frame would be longer than the cluster stream allows?"""

from __future__ import annotations

import msgspec

from supervisor.core.calls.words import CallRefused
from supervisor.core.cluster.messages import CallReport, Reported, StacksTaken
from supervisor.core.facts import Evidence, StackGroup
from supervisor.core.node.messages import Ordered
from supervisor.core.orders import TellMembers
from supervisor.edges.peers.cluster_frames import Frame

NOTES_BYTES_MAX = 64 * 1024
ENVELOPE_BYTES_MAX = 4096  # of a report beside its evidence: job, node, source
RANK_BYTES_MAX = 5
GROUP_BYTES_MAX = 16  # beside its ranks and its stack


def shortened(frame: Frame, frame_bytes: int, frame_bytes_max: int) -> Frame:
    """The same in fewer bytes, or the frame as it is where nothing can be left out."""
    match frame:
        case Reported(job_id, StacksTaken(node, cycle, evidence)):
            return Reported(job_id, StacksTaken(node, cycle, _with_the_oddest(evidence, frame_bytes_max)))
        case Ordered(job_id, TellMembers(cycle, members, order)):
            reason = (
                f"cannot go on with the call: {type(order).__name__} takes {frame_bytes} bytes, "
                f"and a frame holds {frame_bytes_max}; exchange shorter values in rank assignment"
            )
            return Ordered(job_id, TellMembers(cycle, members, CallRefused(order.call, reason)))
        case _:
            return frame


def halves(frame: Frame) -> tuple[Frame, Frame]:
    """Two reports that say the same, one after the other."""
    match frame:
        case Reported(job_id, CallReport(told=told) as report) if len(told) > 1:
            middle = len(told) // 2
            first, rest = (msgspec.structs.replace(report, told=part) for part in (told[:middle], told[middle:]))
            return Reported(job_id, first), Reported(job_id, rest)
        case _:
            raise AssertionError(f"{type(frame).__name__} is longer than a frame and can't be parted")


def _with_the_oddest(evidence: Evidence, bytes_max: int) -> Evidence:
    """The odd stacks come first, so what few ranks do is kept, and what most do is left out."""
    notes, free = _first_notes(evidence.notes, NOTES_BYTES_MAX)
    free = bytes_max - ENVELOPE_BYTES_MAX - (NOTES_BYTES_MAX - free)
    kept: list[StackGroup] = []
    for group in evidence.groups:
        stack_bytes_max = free - GROUP_BYTES_MAX - RANK_BYTES_MAX * len(group.ranks)
        if len(group.stack.encode(errors="replace")) > stack_bytes_max:
            if kept:
                break
            group = StackGroup(group.ranks, _innermost(group.stack, stack_bytes_max))
        kept.append(group)
        free = stack_bytes_max - len(group.stack.encode(errors="replace"))
    left_out = evidence.groups[len(kept) :]
    if left_out:
        ranks = sum(len(group.ranks) for group in left_out)
        notes += (f"the stacks of {ranks} ranks are left out: a message holds {bytes_max} bytes",)
    return msgspec.structs.replace(evidence, groups=tuple(kept), notes=notes)


def _first_notes(notes: tuple[str, ...], bytes_max: int) -> tuple[tuple[str, ...], int]:
    """As many notes as fit, and how many bytes are free then."""
    free = bytes_max
    for count, note in enumerate(notes):
        free -= len(note.encode(errors="replace")) + GROUP_BYTES_MAX
        if free < 0:
            return notes[:count], 0
    return notes, free


def _innermost(stack: str, bytes_max: int) -> str:
    """The end of a stack: its innermost frame is the last."""
    return stack.encode(errors="replace")[-max(0, bytes_max) :].decode(errors="ignore") if bytes_max > 0 else ""
