"""What do people read? A subject, a verb, a cause; bounded for any number of ranks."""

from __future__ import annotations

from supervisor.core.wrapped_calls import call_text
from supervisor.core.wrapped_calls.call_messages import FaultRecord, Interruption
from supervisor.core.wrapped_calls.replacement_ranks import Plan


def test_faults_are_named_and_the_rest_counted() -> None:
    failed = FaultRecord(1, Interruption.EXCEPTION, "ValueError: x")
    killed = FaultRecord(0, Interruption.TERMINATED, "was killed by SIGKILL")
    faults = {member: {Interruption.EXCEPTION: failed} for member in range(6)}
    faults[0] = {Interruption.TERMINATED: killed}
    text = call_text.faults_sentence(faults)
    assert text.startswith("rank 0 was killed by SIGKILL; rank 1 failed: ValueError: x; ")
    assert text.endswith("; and 2 more ranks")


def test_a_long_error_is_cut_where_several_are_named() -> None:
    """Each rank of a broken collective raises a sentence of gloo's or NCCL's with hundreds of characters."""
    told = {Interruption.EXCEPTION: FaultRecord(1, Interruption.EXCEPTION, "RuntimeError: " + "x" * 1000)}
    text = call_text.faults_sentence({0: told, 1: told, 2: told, 3: told})
    assert text.startswith("rank 0 failed: RuntimeError: xxx")
    assert text.count("x…") == 4
    assert len(text) < 4 * (call_text.REASON_CHARACTERS_MAX + 3)


def test_a_member_that_is_known_by_its_number_alone_is_named_by_that() -> None:
    record = FaultRecord(3, Interruption.UNRESPONSIVE, "did not come back")
    assert call_text.fault_sentence(-4, record) == "rank 3 did not come back"


def test_how_an_iteration_begins() -> None:
    plan = Plan(4, ())
    assert call_text.begun_sentence(1, 4, 4, (), plan) == "iteration 1 begins with all 4 ranks"
    assert call_text.begun_sentence(2, 3, 4, (2,), plan) == "iteration 2 begins with 3 of 4 ranks; rank 2 is gone"
    text = call_text.begun_sentence(2, 7, 8, (2,), Plan(8, (2,), standing_in=(5,)))
    assert text == "iteration 2 begins with 7 of 8 ranks; rank 2 is gone; a new process stands in for rank 5"
    text = call_text.begun_sentence(2, 7, 8, (2,), Plan(8, (2,)), later=(2,), has_reserves=True)
    assert text == (
        "iteration 2 begins with 7 of 8 ranks; rank 2 is gone, and the reserve stands in; "
        "a new process of rank 2 may join the next iteration"
    )
    text = call_text.begun_sentence(3, 8, 7, (), Plan(7, (), joining=(2,)))
    assert text == "iteration 3 begins with all 8 ranks; a new process of rank 2 joins"


def test_who_was_lost_and_who_had_not_joined() -> None:
    assert call_text.lost_sentence(4, [1], []) == "rank 1 was lost in iteration 4"
    text = call_text.lost_sentence(4, [1, 2], [0])
    assert text == "ranks 1, 2 were lost in iteration 4, and rank 0 before it took part again"
    assert call_text.committed_sentence(1, 2, [0, 2], []) == "call 1 succeeded in iteration 2 on ranks 0, 2"
    assert call_text.committed_sentence(1, 2, [0, 2], [1]).endswith("; the new process of rank 1 had not joined")
    assert call_text.late_sentence([1]).startswith("the new process of rank 1 did not enter in time")


def test_many_ranks_are_counted() -> None:
    assert call_text.ranks_sentence(range(20)) == "ranks 0, 1, 2, 3 and 16 more"
    why = dict.fromkeys(range(6), "was killed by SIGKILL")
    assert call_text.deserted_sentence(2, why).endswith("; and 2 more ranks")
