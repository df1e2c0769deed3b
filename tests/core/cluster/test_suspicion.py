"""A leader that could not hear its nodes declares none of them lost; one that could declares it in time."""

from __future__ import annotations

import random

from supervisor.core.cluster import suspicion

LOST_S = 5.0


def test_a_silent_node_is_lost_after_the_window() -> None:
    assert suspicion.lost_at_s(suspicion.initial_state(0.0), heard_at_s=8.0, lost_s=LOST_S) == 13.0


def test_a_new_leader_waits_for_a_whole_window() -> None:
    assert suspicion.lost_at_s(suspicion.initial_state(100.0), heard_at_s=0.0, lost_s=LOST_S) == 105.0


def test_the_time_in_which_the_leader_stood_still_is_no_silence() -> None:
    state = suspicion.stood_still(suspicion.initial_state(0.0), from_s=110.0, to_s=170.0)
    assert suspicion.stood_still(state, from_s=111.0, to_s=170.0) == state, "two tasks notice the same stall"
    lost_at_s = {heard_at_s: suspicion.lost_at_s(state, heard_at_s=heard_at_s, lost_s=LOST_S) for heard_at_s in
                 (100.0, 109.0, 120.0, 171.0)}  # fmt: skip
    assert lost_at_s == {100.0: 105.0, 109.0: 174.0, 120.0: 175.0, 171.0: 176.0}


def test_what_is_remembered_is_bounded() -> None:
    state = suspicion.initial_state(0.0)
    for number in range(1000):
        state = suspicion.stood_still(state, from_s=number + 0.5, to_s=number + 1.0)
    assert len(state.stalls) == suspicion.STALLS_MAX


def test_a_node_is_lost_once_the_leader_has_listened_for_a_window_in_vain() -> None:
    """This guards against counting the time in steps."""
    for seed in range(300):
        draw = random.Random(seed)
        state, stalls, now = suspicion.initial_state(0.0), list[tuple[int, int]](), 0
        for _ in range(draw.randint(0, 6)):
            now += draw.randint(1, 6)
            stalls.append((now, now + draw.randint(1, 9)))
            state = suspicion.stood_still(state, from_s=now, to_s=stalls[-1][1])
            now = stalls[-1][1]
        heard = draw.randint(0, now + 3)
        listened, at = 0, heard
        while listened < LOST_S:
            listened += not any(begin <= at < end for begin, end in stalls)
            at += 1
        found = suspicion.lost_at_s(state, heard_at_s=heard, lost_s=LOST_S)
        assert found == at, (seed, stalls, heard)
