"""One sentence about all ranks: which one hangs, which wait for it, or that this is unknown."""

from __future__ import annotations

from collections.abc import Mapping

import pytest
from hypothesis import given
from hypothesis import strategies as st

from supervisor.core.facts import Evidence, StackGroup
from supervisor.core.hangs.hang_culprits import CERTAIN, HangVerdict, judge
from supervisor.core.hangs.hung_rank_diagnosis import Pattern
from supervisor.core.process_facts import Frame, ProcessFacts, ProcessState, RankFacts
from tests.core.hangs.test_hung_rank_diagnosis import AT_LOAD, DEAD_CHILD, IN_REDUCE, STILL
from tests.core.hangs.test_library_frames import BACKWARD, C10D, GET, LOAD, LOGGER, NEXT, TRAIN, WAIT

STOPPED = ProcessFacts(ProcessState.STOPPED, stop_signal="SIGSTOP")
IN_D = ProcessFacts(ProcessState.UNINTERRUPTIBLE, is_still=True, kernel_place="nfs_wait")
IN_BARRIER = (Frame("/app/train.py", "train", 50), LOGGER, Frame(C10D, "barrier", 4))
IN_LATER_REDUCE = (Frame("/app/train.py", "train", 60), *IN_REDUCE[1:])
IN_BACKWARD = (TRAIN, *BACKWARD)
ENDING = (Frame("/app/train.py", "main", 90), LOGGER, Frame(C10D, "destroy_process_group", 5))
LEAVES = Frame("/app/train.py", "save", 70)


def evidence(stacks: Mapping[int, tuple[Frame, ...]], *facts: RankFacts) -> Evidence:
    groups = tuple(StackGroup((rank,), str(frames), frames) for rank, frames in stacks.items())
    known = {each.rank for each in facts}
    return Evidence(groups, facts=(*facts, *(RankFacts(rank, STILL) for rank in stacks if rank not in known)))


def judged(stacks: Mapping[int, tuple[Frame, ...]], *facts: RankFacts, silent: tuple[int, ...] = ()) -> HangVerdict:
    verdict = judge(evidence(stacks, *facts), silent=silent)
    assert verdict is not None
    return verdict


WAIT_FOR_1 = "ranks 0 and 2 wait for it in all_reduce"


@pytest.mark.parametrize(
    ("stack", "facts", "pattern", "sentence"),
    [
        (IN_REDUCE, RankFacts(1, STOPPED), Pattern.STOPPED, f"rank 1 is stopped (SIGSTOP); {WAIT_FOR_1}"),
        (AT_LOAD, RankFacts(1, IN_D), Pattern.STATE_D, f"rank 1 hangs in the kernel (state D, nfs_wait); {WAIT_FOR_1}"),
        (
            (TRAIN, LOAD, WAIT), RankFacts(1, STILL),
            Pattern.LOCK, f"rank 1 waits for a lock in Loader.load_batch (data.py:40); {WAIT_FOR_1}",
        ),
        (
            (TRAIN, NEXT, GET), RankFacts(1, DEAD_CHILD),
            Pattern.CHILD_DEAD,
            f"rank 1 waits in train (train.py:31) for a child process that is dead (pid 13); {WAIT_FOR_1}",
        ),
        (
            AT_LOAD, RankFacts(1, STILL, gil_frames=AT_LOAD, answers=False),
            Pattern.GIL_HELD, f"rank 1 holds the GIL in Loader.load_batch (data.py:40); {WAIT_FOR_1}",
        ),
        ((), RankFacts(1, has_exited=True), Pattern.LEFT_EARLY, f"rank 1 has exited with code 0; {WAIT_FOR_1}"),
        (
            ENDING, RankFacts(1, STILL),
            Pattern.LEFT_EARLY,
            f"rank 1 has left the training loop and waits in destroy_process_group; {WAIT_FOR_1}",
        ),
        (
            (LEAVES,), RankFacts(1),
            Pattern.ELSEWHERE, "rank 1 is in save (train.py:70) while ranks 0 and 2 wait in all_reduce",
        ),
        (
            IN_BARRIER, RankFacts(1, STILL),
            Pattern.MISMATCH,
            "the collectives do not match: rank 1 waits in barrier, called from train (train.py:50), while "
            "ranks 0 and 2 wait in all_reduce, called from train (train.py:31)",
        ),
    ],
)  # fmt: skip
def test_one_rank_keeps_two_waiting(
    stack: tuple[Frame, ...], facts: RankFacts, pattern: Pattern, sentence: str
) -> None:
    stacks = {0: IN_REDUCE, 2: IN_REDUCE} | ({1: stack} if stack else {})
    # The waiting ranks were silent first; the hanging one beat last.
    verdict = judged(stacks, facts, silent=(0, 2))
    assert verdict == HangVerdict(pattern, sentence, (1,), (0, 2))


def test_a_rank_in_load_batch_while_seven_wait_in_backward() -> None:
    stacks = dict.fromkeys(range(8), IN_BACKWARD) | {3: AT_LOAD}
    verdict = judged(stacks, silent=(0, 1, 2, 4, 5, 6, 7))
    assert verdict.sentence == "rank 3 is in Loader.load_batch (data.py:40) while 7 ranks wait in backward"
    assert verdict.culprits == (3,)


def test_one_that_computes_in_backward_keeps_those_waiting_that_sleep_there() -> None:
    busy = ProcessFacts(ProcessState.RUNNING, cpu_share=0.9)
    verdict = judged(dict.fromkeys(range(3), IN_BACKWARD), RankFacts(1, busy), silent=(0, 1, 2))
    assert verdict.culprits == (1,)
    assert verdict.sentence == (
        "rank 1 computes in backward at train (train.py:31) while ranks 0 and 2 wait in backward"
    )


def test_all_in_the_same_collective_is_not_told_as_the_fault_of_all() -> None:
    verdict = judged(dict.fromkeys(range(3), IN_REDUCE), silent=(0, 1, 2))
    assert (verdict.pattern, verdict.culprits) == (Pattern.ALL_WAIT, ())
    assert verdict.sentence == (
        "all 3 ranks wait in all_reduce, called from train (train.py:31); it is unknown which of them holds up the "
        "others; check the network and the shapes that they pass"
    )


def test_the_same_collective_at_another_line_is_a_mismatch() -> None:
    verdict = judged({0: IN_REDUCE, 1: IN_REDUCE, 2: IN_LATER_REDUCE}, silent=(0, 1, 2))
    assert (verdict.pattern, verdict.culprits) == (Pattern.MISMATCH, (2,))
    # Of two, nobody knows which one is wrong.
    assert judged({0: IN_REDUCE, 2: IN_LATER_REDUCE}, silent=(0, 2)).culprits == ()


def test_a_rank_without_a_stack_is_not_accused_but_named() -> None:
    verdict = judged({0: IN_REDUCE, 2: IN_REDUCE}, RankFacts(1, STILL), silent=(0,))
    assert verdict.culprits == ()
    assert verdict.sentence.endswith("; what rank 1 does is unknown: no stack arrived")


def test_a_silent_rank_among_healthy_ones_hangs_by_itself() -> None:
    beats = (Frame("/app/train.py", "beat_for", 5),)
    verdict = judged({0: beats, 1: AT_LOAD, 2: beats}, silent=(1,))
    assert verdict.sentence == "rank 1 is in Loader.load_batch (data.py:40)"
    assert verdict.culprits == (1,)
    both = judged({0: beats, 1: AT_LOAD, 2: beats, 3: AT_LOAD}, silent=(1, 3))
    assert both.sentence == "ranks 1 and 3 are in Loader.load_batch (data.py:40)"


def test_where_a_wait_has_no_name_the_crowd_is_not_accused() -> None:
    """As for ranks that wait for their GPU: their innermost frame is a line of the script."""
    stacks = dict.fromkeys(range(8), (TRAIN,)) | {3: AT_LOAD}
    silent = tuple(rank for rank in range(8) if rank != 3)
    verdict = judged(stacks, *(RankFacts(rank) for rank in range(8)), silent=silent)
    assert verdict.sentence == "rank 3 is in Loader.load_batch (data.py:40) while 7 ranks are in train (train.py:31)"
    assert verdict.culprits == (3,)


def test_ranks_that_hang_in_different_places_are_not_weighed() -> None:
    verdict = judged({0: (LEAVES,), 1: AT_LOAD}, silent=(0, 1))
    assert verdict.culprits == ()
    assert verdict.sentence.endswith("; it is unknown which of them holds up the others")


def test_nothing_known_is_no_verdict() -> None:
    assert judge(Evidence()) is None
    assert judge(Evidence(), silent=(1,)) is None
    assert judge(Evidence((StackGroup((0,), "only text"),)), silent=(0,)) is None


def test_many_waiters_are_counted_and_certain_reasons_come_first() -> None:
    stacks = dict.fromkeys(range(9), IN_REDUCE) | {7: AT_LOAD}
    verdict = judged(stacks, RankFacts(8, STOPPED), silent=(0,))
    assert verdict.sentence == "rank 8 is stopped (SIGSTOP); 7 ranks wait for it in all_reduce"
    assert verdict.culprits == (8,)


STACKS = st.sampled_from([(), AT_LOAD, IN_REDUCE, IN_BARRIER, IN_BACKWARD, ENDING, (TRAIN, LOAD, WAIT), (TRAIN, NEXT)])
PROCESSES = st.builds(
    ProcessFacts,
    st.sampled_from(ProcessState), is_still=st.booleans(), cpu_share=st.floats(0, 4), waits_on_futex=st.booleans(),
)  # fmt: skip
RANKS = st.dictionaries(
    st.integers(0, 40),
    st.tuples(STACKS, st.none() | PROCESSES, st.booleans(), st.booleans(), st.none() | st.booleans()),
    max_size=9,
)


@given(ranks=RANKS, order=st.randoms(use_true_random=False))
def test_whatever_is_seen_the_verdict_is_one_sentence_about_these_ranks(
    ranks: dict[int, tuple[tuple[Frame, ...], ProcessFacts | None, bool, bool, bool | None]], order: object
) -> None:
    facts = [
        RankFacts(rank, process, has_exited=exited, is_silent=silent, gil_frames=frames, answers=answers)
        for rank, (frames, process, exited, silent, answers) in ranks.items()
    ]
    stacks = {rank: each[0] for rank, each in ranks.items() if each[0]}
    verdict = judge(evidence(stacks, *facts))
    order.shuffle(facts)  # pyright: ignore[reportAttributeAccessIssue, reportUnknownMemberType]
    assert judge(evidence(dict(sorted(stacks.items())), *facts)) == verdict
    if verdict is None:
        return
    assert verdict.sentence.startswith(
        ("rank", "all ", "the collectives", "which rank", "1", "2", "3", "4", "5", "6", "7", "8", "9")
    )
    assert "\n" not in verdict.sentence
    assert "{" not in verdict.sentence
    assert set(verdict.culprits) | set(verdict.waiters) <= set(ranks)
    assert not set(verdict.culprits) & set(verdict.waiters)
    assert verdict.culprits or "unknown" in verdict.sentence or verdict.pattern is Pattern.MISMATCH
    stopped = {
        each.rank
        for each in facts
        if each.process is not None and not each.has_exited and each.process.state is ProcessState.STOPPED
    }
    assert stopped <= set(verdict.culprits)
    if verdict.pattern in CERTAIN:
        assert verdict.culprits
