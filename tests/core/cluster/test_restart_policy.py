"""Budget, progress and back-off, each against its rule and its slow twin."""

# pyright: reportUnusedExpression=false
from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from supervisor.core.cluster import restart_policy as policy
from supervisor.core.cluster.restart_policy import FaultHappened, GiveUp, Restart, Tolerate, Warn
from supervisor.core.facts import JobState, RestartPolicyName, RestartRules
from tests.core import dumb
from tests.core.playbook import Playbook


def opened(training_iteration: int | None = None, **rules: object) -> Playbook[policy.State]:
    state = policy.initial_state(RestartRules(**({"max_restarts": 99} | rules)), training_iteration=training_iteration)  # pyright: ignore[reportArgumentType]
    return Playbook(policy.step, state, jitter=0.0)


def fault(node: str = "a", *, lived_s: float | None = 60.0, **more: object) -> FaultHappened:
    return FaultHappened(node, "rank 1 died", healthy_nodes=0, lived_s=lived_s, **more)  # pyright: ignore[reportArgumentType]


def decide(play: Playbook[policy.State], event: FaultHappened) -> Restart | Tolerate | GiveUp:
    play >> event
    (decision,) = [each for each in play.last if not isinstance(each, Warn)]
    assert play.last[-1] is decision
    return decision


def delays(play: Playbook[policy.State], *events: FaultHappened) -> list[float | None]:
    decisions = [decide(play, event) for event in events]
    return [each.delay_s if isinstance(each, Restart) else None for each in decisions]


# --- budget --------------------------------------------------------------------------------------------------------


def test_each_restart_says_what_is_used() -> None:
    play = opened(max_restarts=1)
    assert decide(play, fault()) == Restart(0.0, "rank 1 died; restarting at once, restarts used 1 of 1")
    end = decide(play, fault())
    assert isinstance(end, GiveUp)
    assert (end.verdict.state, end.verdict.exit_code) == (JobState.FAILED, 1)
    assert end.verdict.reason == "rank 1 died; restarts used 1 of 1"


@given(max_restarts=st.integers(0, 6), faults=st.integers(0, 10), nodes=st.lists(st.sampled_from("abc"), min_size=10))
def test_the_budget_is_job_wide(max_restarts: int, faults: int, nodes: list[str]) -> None:
    play = opened(max_restarts=max_restarts)
    granted = sum(isinstance(decide(play, fault(nodes[number])), Restart) for number in range(faults))
    assert granted == play.state.used == dumb.restarts_granted(max_restarts, faults)


def test_a_workload_that_asked_for_its_end_is_not_restarted() -> None:
    play = opened()
    end = decide(play, fault(restart_allowed=False))
    assert isinstance(end, GiveUp)
    assert (end.verdict.exit_code, end.verdict.reason, play.state.used) == (1, "rank 1 died", 0)


# --- min-healthy -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("healthy", "kind"), [(3, Tolerate), (2, Tolerate), (1, Restart), (0, Restart)])
def test_min_healthy_restarts_when_too_few_nodes_are_left(healthy: int, kind: type) -> None:
    play = opened(policy=RestartPolicyName.MIN_HEALTHY, min_nodes=2)
    decision = decide(play, FaultHappened("a", "x", healthy_nodes=healthy, lived_s=60.0))
    assert isinstance(decision, kind)
    assert play.state.used == (kind is Restart)


def test_any_failed_does_not_count_the_healthy() -> None:
    play = opened(min_nodes=1)
    assert isinstance(decide(play, FaultHappened("a", "x", healthy_nodes=9, lived_s=60.0)), Restart)


# --- progress ------------------------------------------------------------------------------------------------------


def test_no_progress_ends_the_job_with_its_own_exit_code() -> None:
    play = opened(training_iteration=100, max_no_progress_cycles=2, min_progress_iterations=10, no_restart_exit_code=94)
    assert isinstance(decide(play, fault(training_iteration=105)), Restart)  # cycle 0 counts
    end = decide(play, fault(training_iteration=109))
    assert isinstance(end, GiveUp)
    assert end.verdict.exit_code == 94
    assert "no progress in 2 cycles: the iteration is 109 and was 100" in end.verdict.reason


def test_progress_is_judged_before_the_budget() -> None:
    play = opened(training_iteration=0, max_no_progress_cycles=1, max_restarts=0)
    end = decide(play, fault(training_iteration=0))
    assert isinstance(end, GiveUp)
    assert end.verdict.exit_code == 93


def test_small_steps_add_up_from_the_mark() -> None:
    play = opened(training_iteration=0, min_progress_iterations=10)
    decide(play, fault(training_iteration=6))
    decide(play, fault(training_iteration=12))
    assert (play.state.training_iteration, play.state.fruitless) == (12, 0)


def test_after_a_return_to_an_older_checkpoint_progress_counts_from_there() -> None:
    """The checkpoint of 41,000 is damaged, so the script trains on from that of 30,000."""
    play = opened(training_iteration=40_000, max_no_progress_cycles=3)
    for iteration in (41_000, 33_000, 35_000, 37_000, 39_000, 42_000):
        assert isinstance(decide(play, fault(training_iteration=iteration)), Restart), iteration
    assert (play.state.training_iteration, play.state.fallen_to, play.state.fruitless) == (42_000, None, 0)


def test_a_job_that_falls_back_and_comes_as_far_again_and_again_ends() -> None:
    play = opened(training_iteration=0, max_no_progress_cycles=3)
    readings = (35, 30, 35, 30, 35, 30)
    decisions = [type(decide(play, fault(training_iteration=each))) for each in readings]
    assert decisions == [Restart] * 5 + [GiveUp]
    (end,) = play.of(GiveUp)
    assert "no progress in 1 cycle after 2 returns to an older checkpoint: the iteration is 30 and was 35" in (
        end.verdict.reason
    )


@given(period=st.lists(st.integers(0, 9), min_size=1, max_size=5), wanted=st.integers(1, 3), allowed=st.integers(1, 4))
def test_a_job_that_repeats_itself_always_ends(period: list[int], wanted: int, allowed: int) -> None:
    play = opened(training_iteration=0, min_progress_iterations=wanted, max_no_progress_cycles=allowed)
    assert any(isinstance(decide(play, fault(training_iteration=each)), GiveUp) for each in period * 20)


def test_unknown_is_neither_progress_nor_none_and_is_said_once_in_a_row() -> None:
    play = opened(training_iteration=100, max_no_progress_cycles=2)
    decide(play, fault(training_iteration=100))
    told: list[int] = []
    for iteration in (None, None, 100, None):
        play >> fault(training_iteration=iteration)
        told.append(len([each for each in play.of(Warn) if each.kind == "progress_unknown"]))
        if iteration == 100:
            assert play.of(GiveUp)
    assert told == [1, 0, 0, 1]


def test_zero_or_less_switches_it_off() -> None:
    play = opened(training_iteration=5, max_no_progress_cycles=0)
    assert all(isinstance(decide(play, fault(training_iteration=5)), Restart) for _ in range(9))


@given(
    start=st.none() | st.integers(0, 9),
    iterations=st.lists(st.none() | st.integers(0, 9), max_size=12),
    wanted=st.integers(1, 3),
    allowed=st.integers(0, 4),
)
def test_progress_against_its_slow_twin(
    start: int | None, iterations: list[int | None], wanted: int, allowed: int
) -> None:
    play = opened(training_iteration=start, min_progress_iterations=wanted, max_no_progress_cycles=allowed)
    ended: int | None = None
    for number, iteration in enumerate(iterations, start=1):
        if isinstance(decide(play, fault(training_iteration=iteration)), GiveUp):
            ended = number
            break
    assert ended == dumb.cycles_until_no_progress(iterations, start, wanted=wanted, allowed=allowed)


# --- back-off ------------------------------------------------------------------------------------------------------


def test_the_first_restart_is_at_once() -> None:
    assert delays(opened(), fault(lived_s=0.01)) == [0.0]
    assert delays(opened(training_iteration=3), fault(training_iteration=3, lived_s=0.01)) == [0.0]


def test_progress_is_never_slowed() -> None:
    events = [fault(training_iteration=number, lived_s=0.1) for number in range(1, 40)]
    assert set(delays(opened(training_iteration=0), *events)) == {0.0}


def test_progress_after_returns_to_older_checkpoints_is_not_slowed_and_cycles_without_any_are() -> None:
    play = opened(training_iteration=41, max_no_progress_cycles=4)
    assert delays(play, *(fault(training_iteration=each) for each in (30, 35, 20, 25))) == [0.0] * 4
    (restart,) = play.of(Restart)
    assert "made no progress" not in restart.reason
    play = opened(training_iteration=41, max_no_progress_cycles=9)
    assert delays(play, *(fault(training_iteration=each) for each in (30, 30, 20))) == [0.0, 0.5, 1.0]
    (restart,) = play.of(Restart)
    assert "waiting because 3 cycles made no progress" in restart.reason


def test_no_progress_is_slowed_more_and_more() -> None:
    play = opened(training_iteration=0, max_no_progress_cycles=0)
    events = [fault(training_iteration=0)] * 9 + [fault(training_iteration=1), fault(training_iteration=1)]
    assert delays(play, *events) == [0.0, 0.5, 1.0, 2.0, 4.0, 8.0, 16.0, 30.0, 30.0, 0.0, 0.0]


def test_without_a_progress_file_only_cycles_that_die_young_in_a_row_are_slowed() -> None:
    assert set(delays(opened(), *[fault(lived_s=5.0)] * 30)) == {0.0}
    young = [fault(lived_s=1.0)] * 8
    assert delays(opened(), *young) == [0.0] * 5 + [0.5, 1.0, 2.0]
    assert delays(opened(), *young[:7], fault(lived_s=60.0), *young[:5])[7:] == [0.0] * 6


def test_jitter_takes_off_a_quarter_at_most_and_never_adds() -> None:
    play = opened(training_iteration=0, max_no_progress_cycles=0)
    decide(play, fault(training_iteration=0))
    for jitter in (0.0, 0.5, 1.0):
        _, actions = policy.step(play.state, fault(training_iteration=0), now_s=0.0, jitter=jitter)
        assert isinstance(actions[-1], Restart)
        assert actions[-1].delay_s == pytest.approx(0.5 * (1 - 0.25 * jitter))
        assert "waiting because 2 cycles made no progress" in actions[-1].reason


# --- suspected nodes -----------------------------------------------------------------------------------------------


def test_a_suspected_node_is_warned_of_before_the_decision() -> None:
    play = opened()
    for at_s in (0, 10, 20):
        play.at(at_s) >> fault("a")
    warning, decision = play.last
    assert isinstance(warning, Warn)
    assert warning.kind == "node_suspected"
    assert isinstance(decision, Restart)
    play.at(10_000) >> fault("a")
    assert play.of(Warn) == []
