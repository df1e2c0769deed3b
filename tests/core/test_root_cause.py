"""Which failure is named if several are seen in the wrong order?"""

from __future__ import annotations

import signal as signals

from supervisor.core.facts import Cause, WorkerExit
from supervisor.core.root_cause import APART_S, first_cause, root_cause
from supervisor.core.worker_messages import Worker

ABORT, KILL = int(signals.SIGABRT), int(signals.SIGKILL)


def failed(
    rank: int, at_s: float, *, signal: int | None = None, error_at: float | None = None, signalled: bool = False
) -> Worker:
    code = None if signal else 1
    known = WorkerExit(
        rank, rank, 1, code, signal, at_s, error=f"error {rank}", error_at_unix_s=error_at, error_at_s=error_at
    )
    return Worker(rank, rank, 1, known, signalled=signalled)


def named(*workers: Worker, first: int | None = 0) -> int | None:
    cause = root_cause(workers, first, 60.0)
    return int(cause.sentence.split()[1]) if cause is not None else None


def test_nobody_failed() -> None:
    done = Worker(0, 0, 1, WorkerExit(0, 0, 1, 0, None, 1.0))
    assert named(done, first=None) is None
    assert named(done, first=0) is None


def test_a_lone_failure_is_its_own_cause() -> None:
    assert named(failed(0, 1.0), Worker(1, 1, 2)) == 0


def test_the_oldest_error_file_wins_over_the_first_exit() -> None:
    assert named(failed(0, 1.0, error_at=50.0), failed(1, 2.0, error_at=49.0)) == 1
    assert named(failed(0, 1.0, error_at=50.0), failed(1, 2.0, error_at=50.0)) == 0, "files count whole seconds"
    assert named(failed(0, 1.0, error_at=50.0), failed(1, 2.0, error_at=49.0, signalled=True)) == 1


def test_an_abort_yields_to_an_error_file_that_we_did_not_cause() -> None:
    assert named(failed(0, 1.0, signal=ABORT), failed(1, 2.0, error_at=50.0)) == 1
    assert named(failed(0, 1.0, signal=ABORT), failed(1, 2.0, error_at=50.0, signalled=True)) == 0


def test_a_sudden_death_stands_for_itself() -> None:
    assert named(failed(0, 1.0, signal=KILL), failed(1, 2.0, error_at=40.0)) == 0


def test_a_worker_that_was_not_started() -> None:
    cause = Cause("rank 0 was not started: x")
    assert root_cause((Worker(0, 0, not_started=cause.sentence),), 0, 60.0) == cause


def test_a_cause_says_how_old_its_error_file_is() -> None:
    cause = root_cause((failed(0, 52.0, error_at=50.0),), 0, 60.0)
    assert cause is not None
    assert cause.age_s == 10.0
    cause = root_cause((failed(0, 52.0),), 0, 60.0)
    assert cause is not None
    assert cause.age_s is None


# --- over all nodes ------------------------------------------------------------------------------------------------

SEEN, OTHER = Cause("rank 0 lost its peer"), Cause("rank 3 raised")


def test_an_error_file_of_another_node_wins_if_it_is_clearly_older() -> None:
    seen = (SEEN, 12.0)
    assert first_cause(seen, (seen, (OTHER, 12.0 - APART_S - 0.1))) == OTHER
    assert first_cause(seen, (seen, (OTHER, 12.0 - APART_S))) == SEEN
    assert first_cause(seen, ()) == SEEN


def test_a_failure_of_unknown_age_is_no_older_and_has_no_older_one() -> None:
    """It left no file, as after SIGKILL, or an earlier version of Holdfast has reported it."""
    assert first_cause((SEEN, None), ((OTHER, 1.0),)) == SEEN
    assert first_cause((SEEN, 12.0), ((OTHER, None),)) == SEEN
