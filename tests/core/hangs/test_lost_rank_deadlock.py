"""When can none of a job's ranks go on?"""

from __future__ import annotations

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from supervisor.core.facts import Evidence, StackGroup
from supervisor.core.hangs import lost_rank_deadlock
from supervisor.core.hangs.lost_rank_deadlock import Deadlock
from supervisor.core.process_facts import Frame, ProcessFacts, ProcessState, RankFacts

SCRIPT = Frame("/app/train.py", "train", 3)
REDUCES = (SCRIPT, Frame("/x/torch/distributed/distributed_c10d.py", "all_reduce", 9))
GOES_BACK = (
    SCRIPT,
    Frame("/x/torch/_tensor.py", "backward", 5),
    Frame("/x/torch/autograd/graph.py", "_engine_run_backward", 9),
)
LOADS = (SCRIPT, Frame("/x/torch/utils/data/dataloader.py", "_try_get_data", 9))
LOCKS = (SCRIPT, Frame("/usr/lib/python3.11/threading.py", "wait", 9))
ENDS = (SCRIPT, Frame("/x/torch/distributed/distributed_c10d.py", "destroy_process_group", 9))
HANDLES = (*REDUCES, Frame("/app/train.py", "save", 20))
STUCK = ProcessFacts(ProcessState.SLEEPING, is_still=True, is_idle=True)


def rank(number: int, frames: tuple[Frame, ...] = REDUCES, process: ProcessFacts | None = STUCK) -> Evidence:
    groups = (StackGroup((number,), "a stack", frames),) if frames else ()
    return Evidence(groups, facts=(RankFacts(number, process),))


def test_ranks_that_all_wait_in_collectives_with_one_that_is_gone() -> None:
    assert lost_rank_deadlock.find([rank(0), rank(1)], world_size=3) == Deadlock(
        "ranks 0 and 1 wait in all_reduce", (0, 1)
    )
    found = lost_rank_deadlock.find([rank(2, GOES_BACK), rank(0)], world_size=3)
    assert found == Deadlock("rank 0 waits in all_reduce, rank 2 waits in backward", (0, 2))


def test_where_no_rank_is_gone_each_may_still_be_woken() -> None:
    assert lost_rank_deadlock.find([rank(0), rank(1)], world_size=2) is None
    assert lost_rank_deadlock.find([], world_size=2) is None


@pytest.mark.parametrize("frames", [LOADS, LOCKS, ENDS, HANDLES, (SCRIPT,), ()])
def test_a_rank_that_waits_for_something_else_may_go_on_and_wake_the_others(frames: tuple[Frame, ...]) -> None:
    assert lost_rank_deadlock.find([rank(0), rank(1, frames)], world_size=3) is None


@pytest.mark.parametrize(
    "process", [
        None, ProcessFacts(), msgspec.structs.replace(STUCK, is_still=False),
        msgspec.structs.replace(STUCK, is_idle=False), msgspec.structs.replace(STUCK, cpu_share=0.1),
        msgspec.structs.replace(STUCK, state=ProcessState.STOPPED),
        msgspec.structs.replace(STUCK, state=ProcessState.UNINTERRUPTIBLE),
    ]
)  # fmt: skip
def test_a_rank_that_moves_or_writes_or_of_which_nothing_is_known_prevents_it(process: ProcessFacts | None) -> None:
    assert lost_rank_deadlock.find([rank(0), rank(1, process=process)], world_size=3) is None


def test_ranks_that_have_exited_wait_for_nothing() -> None:
    gone = Evidence(facts=(RankFacts(1, has_exited=True),))
    assert lost_rank_deadlock.find([rank(0), gone], world_size=2) == Deadlock("rank 0 waits in all_reduce", (0,))


FRAMES = st.sampled_from([REDUCES, GOES_BACK, LOADS, LOCKS, ENDS, HANDLES, ()])
PROCESSES = st.one_of(
    st.just(STUCK),
    st.none(),
    st.builds(ProcessFacts, st.sampled_from(ProcessState), st.booleans(), st.floats(0, 2), is_idle=st.booleans()),
)


@given(st.lists(st.tuples(FRAMES, PROCESSES), max_size=4), st.integers(0, 5))
def test_no_rank_that_may_do_something_is_ever_part_of_one(
    ranks: list[tuple[tuple[Frame, ...], ProcessFacts | None]], world_size: int
) -> None:
    found = lost_rank_deadlock.find([rank(at, *each) for at, each in enumerate(ranks)], world_size=world_size)
    if found is None:
        return
    assert found.ranks == tuple(range(len(ranks)))
    assert 0 < len(ranks) < world_size
    for frames, process in ranks:
        assert frames in (REDUCES, GOES_BACK)
        assert process is not None
        assert (process.state, process.is_still, process.is_idle) == (ProcessState.SLEEPING, True, True)
        assert process.cpu_share <= lost_rank_deadlock.CPU_SHARE_MAX
