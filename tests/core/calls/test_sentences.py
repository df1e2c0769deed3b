"""What people read: a subject, a verb, a cause; bounded, however many ranks there are."""

from __future__ import annotations

from supervisor.core.calls import sentences
from supervisor.core.calls.words import FaultRecord, Interruption


def test_faults_are_named_and_the_rest_counted() -> None:
    failed = FaultRecord(1, Interruption.EXCEPTION, "ValueError: x")
    killed = FaultRecord(0, Interruption.TERMINATED, "was killed by SIGKILL")
    faults = {member: {Interruption.EXCEPTION: failed} for member in range(6)}
    faults[0] = {Interruption.TERMINATED: killed}
    text = sentences.faults_sentence(faults)
    assert text.startswith("rank 0 was killed by SIGKILL; rank 1 failed: ValueError: x; ")
    assert text.endswith("; and 2 more ranks")


def test_a_member_that_is_known_by_its_number_alone_is_named_by_that() -> None:
    record = FaultRecord(3, Interruption.UNRESPONSIVE, "did not come back")
    assert sentences.fault_sentence(-4, record) == "rank 3 did not come back"


def test_how_an_iteration_begins() -> None:
    assert sentences.begun_sentence(1, 4, 4, (), ()) == "iteration 1 begins with all 4 ranks"
    assert sentences.begun_sentence(2, 3, 4, (2,), ()) == "iteration 2 begins with 3 of 4 ranks; rank 2 is gone"
    text = sentences.begun_sentence(2, 7, 8, (2,), (5,))
    assert text == "iteration 2 begins with 7 of 8 ranks; rank 2 is gone; a new process stands in for rank 5"


def test_many_ranks_are_counted() -> None:
    assert sentences.ranks_sentence(range(20)) == "ranks 0, 1, 2, 3 and 16 more"
    why = dict.fromkeys(range(6), "was killed by SIGKILL")
    assert sentences.deserted_sentence(2, why).endswith("; and 2 more ranks")
