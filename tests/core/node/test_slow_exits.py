"""What do people read about ranks that are to end and still run, and when?"""

from __future__ import annotations

import pytest

from supervisor.core import worker_messages
from supervisor.core.facts import WorkerExit
from supervisor.core.node import node_messages, slow_exits
from supervisor.core.node.slow_exits import LOOK_MARGIN_S, LOOK_S, State, next_deadline_s, step
from supervisor.core.process_facts import Frame, NamedThread, RankLook

PYTHON = "/usr/lib/python3.11"
SHUTDOWN = Frame(f"{PYTHON}/threading.py", "_shutdown", 1590)
TRAIN = Frame("/data/train.py", "train", 12)
SAVE = Frame("/data/train.py", "Saver.save", 7)
STOP = worker_messages.StopWorkers(15, 30.0)
LOOK = node_messages.LookAtRanks("j", 0, LOOK_S)
DUE = node_messages.DeadlineReached()


def thread(name: str, *frames: Frame) -> NamedThread:
    return NamedThread(name, (Frame(f"{PYTHON}/threading.py", "Thread.run", 982), *frames))


def advanced(
    state: State, event: slow_exits.Event, now_s: float, alive: tuple[int, ...] = (0,), *, by_signal: bool = True
) -> tuple[State, list[str], bool]:
    """Returns the state, what is told, and whether the ranks are looked at."""
    state, actions = step(state, event, now_s=now_s, job_id="j", cycle=0, alive=alive, by_signal=by_signal)
    told = [each.event.reason for each in actions if isinstance(each, node_messages.Publish)]
    return state, told, LOOK in actions


def told_of(*looks: RankLook, alive: tuple[int, ...] = (0,), by_signal: bool = True) -> str:
    state, _, _ = advanced(State(), STOP, 0.0, alive)
    state, _, looks_now = advanced(state, DUE, 2.0, alive)
    assert looks_now
    answer = node_messages.RanksLookedAt("j", 0, looks)
    _, (text,), _ = advanced(state, answer, 2.1, alive, by_signal=by_signal)
    return text


def test_nothing_is_told_of_ranks_that_end_soon() -> None:
    state, told, _ = advanced(State(), STOP, 0.0)
    assert (told, next_deadline_s(state)) == ([], 2.0)
    state, told, looks = advanced(state, DUE, 2.0, ())
    assert (state, told, looks) == (State(), [], False)


def test_the_end_of_the_last_rank_ends_it() -> None:
    state, _, _ = advanced(State(), STOP, 0.0, (0, 1))
    ended = node_messages.WorkerExited("j", 0, WorkerExit(1, 1, 101, 0, None, 0.5))
    assert advanced(state, ended, 0.5, (0, 1))[0] == state
    assert advanced(state, ended, 0.5, (1,))[0] == State()


def test_a_thread_that_keeps_a_rank_alive_is_named_with_the_time_that_is_left() -> None:
    look = RankLook(0, (SHUTDOWN,), (thread("uploader", SAVE), thread("holdfast-channel", TRAIN)))
    assert told_of(look) == (
        "rank 0 has 28 s left to end: the main thread has ended, thread uploader in Saver.save (train.py:7) "
        "still runs; another signal kills it at once"
    )


@pytest.mark.parametrize(
    ("look", "what"),
    [
        (RankLook(0, (SHUTDOWN,)), "the main thread has ended, and waits for other threads"),
        (
            RankLook(0, (SHUTDOWN,), (thread("a", SAVE), thread("b", TRAIN))),
            "the main thread has ended, and waits for other threads: a in Saver.save (train.py:7), "
            "b in train (train.py:12)",
        ),
        (
            RankLook(0, (Frame(f"{PYTHON}/multiprocessing/util.py", "_exit_function", 360),)),
            "the main thread has ended, and waits for child processes",
        ),
        (
            RankLook(0, (TRAIN, Frame(f"{PYTHON}/multiprocessing/popen_fork.py", "Popen.poll", 27))),
            "the main thread is in train (train.py:12)",
        ),
        (
            RankLook(0, (Frame(f"{PYTHON}/site-packages/torch/x.py", "join", 3), Frame(f"{PYTHON}/q.py", "get", 1))),
            "the main thread is in join (x.py:3)",
        ),
        (RankLook(0, (Frame(f"{PYTHON}/q.py", "get", 1),)), "the main thread is in get (q.py:1)"),
    ],
)
def test_what_a_rank_does_is_said_in_a_phrase(look: RankLook, what: str) -> None:
    assert told_of(look) == f"rank 0 has 28 s left to end: {what}; another signal kills it at once"


def test_without_a_look_the_time_is_told_nevertheless() -> None:
    assert told_of() == "rank 0 has 28 s left to end; another signal kills it at once"
    state, _, _ = advanced(State(), STOP, 0.0)
    state, _, _ = advanced(state, DUE, 2.0)
    late_s = 2.0 + LOOK_S + LOOK_MARGIN_S
    assert next_deadline_s(state) == late_s
    state, told, _ = advanced(state, DUE, late_s)
    assert told == ["rank 0 has 26 s left to end; another signal kills it at once"]
    _, told, _ = advanced(state, node_messages.RanksLookedAt("j", 0), late_s)
    assert told == []  # an answer that comes too late


def test_equal_ranks_are_told_together_and_a_restart_needs_no_signal() -> None:
    looks = tuple(RankLook(rank, (TRAIN if rank else SAVE,)) for rank in (0, 1, 2, 3, 9))
    assert told_of(*looks, alive=(0, 1, 2, 3), by_signal=False) == (
        "ranks 0 to 3 have 28 s left to end: rank 0: the main thread is in Saver.save (train.py:7); "
        "ranks 1 to 3: the main thread is in train (train.py:12)"
    )


def test_it_is_told_more_and_more_rarely_and_not_beyond_the_end() -> None:
    state, _, _ = advanced(State(), worker_messages.StopWorkers(15, 300.0), 0.0)
    at_s: list[float] = []
    while (due_s := next_deadline_s(state)) is not None:
        state, _, looks = advanced(state, DUE, due_s)
        if looks:
            at_s.append(due_s)
            state, _, _ = advanced(state, node_messages.RanksLookedAt("j", 0), due_s)
    assert at_s == [2.0, 10.0, 30.0, 60.0, 120.0, 240.0]


def test_moments_that_have_passed_while_the_supervisor_was_stopped_are_told_once() -> None:
    state, _, _ = advanced(State(), worker_messages.StopWorkers(15, 300.0), 0.0)
    state, _, looks = advanced(state, DUE, 31.0)
    assert looks
    state, told, _ = advanced(state, node_messages.RanksLookedAt("j", 0), 31.1)
    assert len(told) == 1
    assert next_deadline_s(state) == 60.0


def test_a_signal_that_caused_the_fault_gives_more_time() -> None:
    state, _, _ = advanced(State(), worker_messages.StopWorkers(15, 15.0, for_restart=True), 0.0)
    state, _, _ = advanced(state, worker_messages.StopWorkers(15, 1800.0, by_signal=True), 0.1)
    assert state.until_s == 1800.1


def test_a_shorter_time_counts_and_a_kill_ends_it() -> None:
    state, _, _ = advanced(State(), STOP, 0.0)
    state, _, _ = advanced(state, worker_messages.StopWorkers(2, 1.0), 0.5)
    assert next_deadline_s(state) is None
    for event in (worker_messages.KillWorkers(), worker_messages.LoseWorkers(), worker_messages.PrepareWorkers(1)):
        assert advanced(state, event, 0.6)[0] == State()
