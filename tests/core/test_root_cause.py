"""Which failure is named if several are seen in the wrong order?"""

from __future__ import annotations

import signal as signals

from supervisor.core.facts import Cause, WorkerExit
from supervisor.core.root_cause import first_cause, root_cause
from supervisor.core.worker_messages import Worker

ABORT, KILL = int(signals.SIGABRT), int(signals.SIGKILL)


def failed(
    rank: int, at_s: float, *, signal: int | None = None, error_at: float | None = None, signalled: bool = False
) -> Worker:
    code = None if signal else 1
    known = WorkerExit(rank, rank, 1, code, signal, at_s, error=f"error {rank}", error_at_unix_s=error_at)
    return Worker(rank, rank, 1, known, signalled=signalled)


def named(*workers: Worker, first: int | None = 0) -> int | None:
    cause = root_cause(workers, first)
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
    assert root_cause((Worker(0, 0, not_started=cause.sentence),), 0) == cause


# --- over all nodes ------------------------------------------------------------------------------------------------

SEEN, OLDER = Cause("rank 0 lost its peer", 12.0), Cause("rank 3 raised", 11.0)
UNDATED = Cause("rank 1 was killed by SIGKILL")


def test_the_oldest_error_file_of_all_nodes_wins() -> None:
    assert first_cause((SEEN, OLDER), SEEN.sentence) == OLDER
    assert first_cause((SEEN, UNDATED), SEEN.sentence) == SEEN


def test_a_death_that_left_no_file_stands_for_itself() -> None:
    assert first_cause((OLDER, UNDATED), UNDATED.sentence) == UNDATED


def test_without_any_report_nothing_is_known() -> None:
    assert first_cause((), "rank 0 failed") is None
