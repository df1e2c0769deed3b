"""What is left out of evidence and reports, and what is sent later?"""

from __future__ import annotations

import msgspec
import pytest

from supervisor.core.cluster.cluster_messages import CallReport, NodeDown, Reported, StacksTaken, Told
from supervisor.core.facts import Evidence, StackGroup
from supervisor.core.node.node_messages import Ordered
from supervisor.core.orders import TellMembers
from supervisor.core.process_facts import ChildProcess, ProcessFacts, ProcessState, RankFacts
from supervisor.core.process_facts import Frame as PythonFrame
from supervisor.core.wrapped_calls.call_messages import Interrupt, Started
from supervisor.edges.peers.codec.cluster_frames import Frame
from supervisor.edges.peers.codec.frame_sizes import halves, shortened


def _characters(frame: Frame) -> int:
    """Measures a frame by the characters of its stacks and notes."""
    assert isinstance(frame, Reported)
    assert isinstance(frame.report, StacksTaken)
    evidence = frame.report.evidence
    return sum(len(group.stack) for group in evidence.groups) + sum(map(len, evidence.notes))


def _shortened(evidence: Evidence, bytes_max: int) -> Evidence:
    frame = shortened(Reported("j", StacksTaken("n", 1, evidence)), bytes_max, _characters)
    assert isinstance(frame, Reported)
    assert isinstance(frame.report, StacksTaken)
    assert _characters(frame) <= bytes_max
    return frame.report.evidence


def test_the_odd_stacks_stay():
    odd, even, most = StackGroup((5,), "a" * 400), StackGroup((1, 2), "b" * 400), StackGroup((0, 3, 4), "c" * 400)
    evidence = Evidence((odd, even, most), ("a note",), "py-spy", 0.1)
    shorter = _shortened(evidence, 1000)
    assert shorter.groups == (odd, even)
    assert shorter.notes[0] == "a note"
    assert shorter.notes[1].startswith("the stacks of 3 ranks are left out: a message holds")
    assert (shorter.source, shorter.took_s) == ("py-spy", 0.1)


def test_of_one_stack_that_is_too_long_the_innermost_frames_stay():
    shorter = _shortened(Evidence((StackGroup((5,), "outer\n" * 999 + "inner"),)), 500)
    assert shorter.groups[0].stack.endswith("outer\ninner")
    assert len(shorter.groups[0].stack) < 500


def test_facts_that_take_too_much_lose_what_is_seen_in_stacks_then_all():
    frames = (PythonFrame("/app/data.py", "load", 8),) * 16
    process = ProcessFacts(ProcessState.STOPPED, children=(ChildProcess(7, ProcessState.ZOMBIE),))
    facts = tuple(RankFacts(rank, process, gil_frames=frames, source_line="x" * 200) for rank in range(8))

    def measure(frame: Frame) -> int:
        assert isinstance(frame, Reported)
        assert isinstance(frame.report, StacksTaken)
        return len(msgspec.json.encode(frame.report.evidence))

    def kept(bytes_max: int) -> tuple[RankFacts, ...]:
        evidence = Evidence((StackGroup((0,), "a" * 9000, frames),), facts=facts)
        frame = shortened(Reported("j", StacksTaken("n", 1, evidence)), bytes_max, measure)
        assert measure(frame) <= bytes_max
        assert isinstance(frame, Reported)
        assert isinstance(frame.report, StacksTaken)
        return frame.report.evidence.facts

    assert kept(60_000) == facts
    (slim, *_) = kept(12_000)
    assert slim == RankFacts(0, ProcessFacts(ProcessState.STOPPED))
    assert kept(3000) == ()


def test_what_can_not_be_shortened_stays_as_it_is():
    frame = Reported("j", NodeDown("n", 1))
    assert shortened(frame, 8, lambda _: 9) == frame


def test_a_report_of_many_words_is_two_of_fewer():
    told = tuple(Told(rank, Started()) for rank in range(5))
    assert halves(Reported("j", CallReport("n", 1, told))) == (
        Reported("j", CallReport("n", 1, told[:2])),
        Reported("j", CallReport("n", 1, told[2:])),
    )


@pytest.mark.parametrize(
    "frame",
    [Reported("j", CallReport("n", 1, (Told(0, Started()),))), Ordered("j", TellMembers(1, (0,), Interrupt(1, 0)))],
)
def test_what_has_no_parts_is_not_parted(frame: Frame):
    with pytest.raises(AssertionError, match="can't be split"):
        halves(frame)
