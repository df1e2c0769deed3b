"""The in-process guide, statement by statement: what wrapped functions of real jobs go through."""

from __future__ import annotations

from collections.abc import Generator
from datetime import datetime
from pathlib import Path

import pytest

from tests.e2e.launch import SCRIPTS, Launch, launched
from tests.seeds.documents import Document

GUIDE = Document("inprocess-usage-guide")
PAGE = "reference/in-process.md"
SCRIPT = str(Path(__file__).with_name("guided.py"))
CALLBACKS = ("Initialize", "HealthCheck", "fn", "Abort", "Finalize", "Completion")
SOFT_S, HARD_S, GRACE_S = 1.0, 1.6, 0.2  # of the silent case
BUSY_S = 4.0


def job(case: str, ranks: int, *flags: str) -> object:
    """Returns a fixture with the ended job of a case of guided.py."""

    @pytest.fixture(scope="module")
    def ended(tmp_path_factory: pytest.TempPathFactory) -> Generator[Launch]:
        words = ("--nproc-per-node", str(ranks), *flags, SCRIPT, case)
        with launched(tmp_path_factory.mktemp(case), *words) as launch:
            assert launch.wait() == 0, launch.explained()
            yield launch

    return ended


fault = job("fault", 3)
silent = job("silent", 3, "--max-restarts=1")
unfit = job("unfit", 4)
retry = job("retry", 2)
completion = job("completion", 2)
reserve = job("reserve", 3, "--max-restarts=1")
missing = job("missing", 2)


def order(launch: Launch, rank: int, *names: str) -> list[object]:
    return [line["what"] for line in launch.traced() if line["rank"] == rank and line["what"] in (names or CALLBACKS)]


def entries(launch: Launch, iteration: int) -> dict[object, dict[str, object]]:
    return {line["rank"]: line for line in launch.traced("fn") if line["iteration"] == iteration}


def at(launch: Launch, what: str, rank: int) -> float:
    (line,) = [line for line in launch.traced(what) if line["rank"] == rank]
    return float(str(line["at"]))


# --- the function ----------------------------------------------------------------------------------------------------


@GUIDE.says(29, "automatically retry on any failure, meaning it will be called again with the same set of input")
def test_the_function_gets_the_same_arguments_again(fault: Launch):
    assert entries(fault, 0)[0]["given"] == ["first"]
    assert entries(fault, 1)[0]["given"] == ["first", "changed"], "the object itself, as the first call has left it"


@GUIDE.says(30, "extra caution is needed if the function accepts mutable arguments")
def test_a_restart_is_in_the_same_process(fault: Launch):
    assert [entries(fault, 0)[rank]["pid"] for rank in range(3)] == [
        entries(fault, 1)[rank]["pid"] for rank in range(3)
    ]


@GUIDE.says(46, "The function does not suppress")
@GUIDE.says(488, "Logging with :py:obj:`logging.DEBUG` level shows the location where the wrapped function suppressed")
def test_the_log_says_where_the_exception_was_suppressed(fault: Launch):
    told = [line for line in fault.stderr_text().splitlines() if "suppressed RankShouldRestart" in line]
    assert told
    assert all("guided.py:" in line and "in train" in line for line in told)


@GUIDE.says(50, "The function is responsible for initialization of PyTorch distributed backend")
@GUIDE.says(51, "the initialization needs to read `standard PyTorch distributed variables")
def test_the_variables_of_torch_are_set(fault: Launch):
    for rank, entry in entries(fault, 0).items():
        assert (entry["as_rank"], entry["WORLD_SIZE"], entry["LOCAL_RANK"]) == (str(rank), "3", str(rank))
        assert entry["MASTER_ADDR"]
        assert str(entry["MASTER_PORT"]).isdigit()


@GUIDE.says(
    44,
    "terminated ranks will not rejoin the distributed job upon restart",
    instead=f"{PAGE}: a killed rank is replaced",
)
def test_a_killed_rank_is_replaced(silent: Launch):
    assert [line["WORLD_SIZE"] for line in entries(silent, 3).values()] == ["3"] * 3
    assert entries(silent, 3)[1]["pid"] != entries(silent, 0)[1]["pid"]


@GUIDE.says(42, "hung ranks must be forcibly terminated using the :ref:`hard timeout")
def test_a_rank_that_can_not_be_interrupted_is_killed(silent: Launch):
    assert "was killed by SIGKILL" in silent.stderr_text()


@GUIDE.says(
    85,
    "node failure on rank 0 causes termination of the entire job",
    instead=f"{PAGE}: the death of rank 0 is an ordinary fault",
)
def test_the_death_of_rank_0_is_an_ordinary_fault(reserve: Launch):
    assert set(entries(reserve, 1)) == {1, 2}


# --- the order of what happens ---------------------------------------------------------------------------------------


@GUIDE.says(118, "illustrates the order of operations executed by")
@pytest.mark.parametrize("rank", [0, 1, 2])
def test_the_order_of_operations(fault: Launch, rank: int):
    first, second = ["Initialize", "HealthCheck", "fn"], ["Initialize", "HealthCheck", "fn", "Completion"]
    assert order(fault, rank) == [*first, "Abort", "Finalize", "HealthCheck", *second]


@GUIDE.says(134, "if rank_is_active: wrapped_function() else: sleep()")
def test_inactive_ranks_wait(reserve: Launch):
    assert set(entries(reserve, 0)) == {0, 1}
    assert order(reserve, 2)[:3] == ["Initialize", "HealthCheck", "Abort"]


@GUIDE.says(154, "Upon entry, all workers retrieve their initial rank assignments and the total number of workers by")
def test_initial_ranks_are_those_of_the_environment(unfit: Launch):
    assert {rank: entry["as_rank"] for rank, entry in entries(unfit, 0).items()} == {0: "0", 1: "1", 2: "2", 3: "3"}


@GUIDE.says(156, "all workers synchronize through a ``initial_barrier`` using a user-defined ``barrier_timeout``")
def test_nobody_enters_without_the_others(missing: Launch):
    assert len(missing.traced("barrier timeout")) == 1
    assert missing.traced("fn") == []


@GUIDE.says(
    160, "all ranks that finish enter a ``completion_barrier`` governed by a user-defined ``completion_timeout``"
)
def test_completion_waits_for_all(completion: Launch):
    assert order(completion, 0, "fn", "Abort", "Completion") == ["fn", "Abort", "fn", "Completion"]


@GUIDE.says(161, "If any rank fails to synchronize within the ``completion_timeout``, it is treated as a rank failure")
def test_a_rank_that_does_not_complete_restarts_all(completion: Launch):
    assert set(entries(completion, 1)) == {0, 1}


@GUIDE.says(167, "``iteration_barrier`` (executed before rank reassignment and filtering)")
def test_no_rank_begins_before_all_are_ready(fault: Launch):
    checked = [line for line in fault.traced("HealthCheck") if line["iteration"] == 0]
    assert len(checked) == 6, "at the beginning and after the fault"
    assert max(float(str(line["at"])) for line in checked) < min(
        float(str(line["at"])) for line in fault.traced("Initialize") if line["iteration"] == 1
    )


@GUIDE.says(168, "``termination_barrier`` (executed before exiting from the wrapped scope)")
def test_all_ranks_leave_with_their_results(fault: Launch):
    assert (
        max(at(fault, "Completion", rank) for rank in range(3))
        < min(at(fault, "returned", 0), at(fault, "returned", 1)) + BUSY_S
    )
    assert [line["value"] for line in sorted(fault.traced("returned"), key=lambda line: str(line["rank"]))] == [
        f"result of {rank}" for rank in range(3)
    ]


@GUIDE.says(179, "restarted with a consecutive sequence of integer rank indices, from ``0`` to ``WORLD_SIZE - 1``")
def test_ranks_are_consecutive_after_a_loss(unfit: Launch):
    again = entries(unfit, 1)
    assert {rank: entry["as_rank"] for rank, entry in again.items()} == {0: "0", 3: "1"}
    assert {entry["WORLD_SIZE"] for entry in again.values()} == {"2"}


@GUIDE.says(213, "active ranks, which are calling the wrapped function")
def test_the_world_of_the_function_has_the_active_ranks(reserve: Launch):
    assert {entry["WORLD_SIZE"] for entry in entries(reserve, 0).values()} == {"2"}


@GUIDE.says(214, "inactive ranks, which are waiting idle, and could serve as a static, preallocated and preinitialized")
@GUIDE.says(215, "reserve ranks would be activated in a subsequent restart iteration if previously active ranks")
def test_a_reserve_takes_the_place_of_a_lost_rank(reserve: Launch):
    assert entries(reserve, 1)[2]["as_rank"] == "1"


# --- Initialize ------------------------------------------------------------------------------------------------------


@GUIDE.says(247, "executed at the start of every restart iteration, including the first one")
def test_initialize_comes_first_in_every_iteration(fault: Launch):
    assert [line["iteration"] for line in fault.traced("Initialize") if line["rank"] == 0] == [0, 1]


@GUIDE.says(250, "Raising a standard Python :py:exc:`Exception` triggers another restart of the wrapped function")
def test_an_exception_in_initialize_restarts_all(retry: Launch):
    assert 0 not in entries(retry, 0)
    assert set(entries(retry, 1)) == {0, 1}


@GUIDE.says(251, "while raising a :py:exc:`BaseException` terminates the :py:class:`Wrapper`")
@GUIDE.says(253, "can be used to limit the number of restart attempts")
def test_the_retry_controller_ends_the_call_on_all_ranks(retry: Launch):
    assert sorted(str(line["rank"]) for line in retry.traced("aborted")) == ["0", "1"]
    assert entries(retry, 2) == {}


# --- how the function is interrupted ---------------------------------------------------------------------------------


@GUIDE.says(
    265,
    "waits for the ``last_call_wait`` interval to allow",
    instead=f"{PAGE}: `last_call_wait` ends once every rank has answered",
)
def test_the_last_call_ends_when_all_have_answered(fault: Launch):
    assert at(fault, "interrupted", 0) - at(fault, "fault", 1) < BUSY_S


@GUIDE.says(270, "calls an instance of :py:class:`nvidia_resiliency_ext.inprocess.abort.Abort` from a separate Python")
def test_abort_runs_on_another_thread(fault: Launch):
    assert all(line["thread"] != "MainThread" for line in fault.traced("Abort"))
    assert all(line["thread"] == "MainThread" for line in fault.traced("Finalize"))


@GUIDE.says(275, "next the :py:class:`Wrapper` raises asynchronous Python exception within the wrapped function")
def test_the_exception_comes_after_abort(fault: Launch):
    assert order(fault, 0, "Abort", "interrupted") == ["Abort", "interrupted"]


@GUIDE.says(280, "respects regular Python exception propagation logic")
@GUIDE.says(281, "opportunity to properly clean up resources by calling all encountered exception handlers")
def test_handlers_and_context_managers_run(fault: Launch):
    assert order(fault, 0, "interrupted", "cleaned up", "Finalize") == ["interrupted", "cleaned up", "Finalize"]


@GUIDE.says(284, "direct subclass of Python :py:exc:`BaseException`")
def test_the_exceptions_class(fault: Launch):
    (line,) = fault.traced("interrupted")
    assert line["kind"] == ["RankShouldRestart", "BaseException", "object"]


@GUIDE.says(298, "termination procedure won't be launched if the main thread is in")
def test_an_atomic_block_is_finished_first(fault: Launch):
    assert order(fault, 2, "left the block", "Abort") == ["left the block", "Abort"]


# --- silence ---------------------------------------------------------------------------------------------------------


@GUIDE.says(314, "Soft timeout is equivalent to a Python exception raised by one of the ranks")
def test_a_silent_rank_restarts_all(silent: Launch):
    assert set(entries(silent, 1)) == {0, 1, 2}
    assert entries(silent, 1)[1]["pid"] == entries(silent, 0)[1]["pid"]


@GUIDE.says(322, "forcefully terminates the main Python interpreter process by sending a sequence of signals")
@GUIDE.says(325, "sends the signals (``SIGCONT``, ``SIGTERM``) to allow for a graceful shutdown")
def test_a_stopped_rank_hears_sigterm(silent: Launch):
    assert (silent.folder / "sigterm").read_text(), "its handler runs only if SIGCONT comes, too"


@GUIDE.says(327, "a second sequence of signals (``SIGCONT``, ``SIGTERM``, ``SIGKILL``) is sent after a delay specified")
def test_the_kill_comes_after_the_grace_time(silent: Launch):
    """By the supervisor's own times: the rank may hear the first signal late, or be interrupted while it handles it."""
    asked, killed = (
        datetime.fromisoformat(next(str(event["at"]) for event in silent.events() if event["kind"] == kind))
        for kind in ("hard_timeout_reached", "worker_failed")
    )
    assert (killed - asked).total_seconds() > GRACE_S


@GUIDE.says(352, "periodically checks if the main thread of the Python interpreter keeps executing new bytecode")
@GUIDE.says(355, "this method is always active and protects against hangs in calls that block Python interpreter")
def test_a_blocked_main_thread_is_found(silent: Launch):
    assert "rank 1 executed no Python code for 1." in silent.stderr_text()
    begun = next(float(str(line["at"])) for line in silent.traced("silent"))
    assert SOFT_S - 0.1 < min(float(str(line["at"])) for line in entries(silent, 1).values()) - begun < SOFT_S + BUSY_S


@GUIDE.says(358, "doesn't protect against while-true-like livelocks")
def test_a_loop_is_no_hang(silent: Launch):
    assert [line["value"] for line in silent.traced("returned")] == [3, 3, 3], "it looped for longer than the timeout"


@GUIDE.says(374, "the timeout for the manual heartbeat is activated after the first call")
@GUIDE.says(377, "Timeout event is triggered if either of the active progress monitoring methods")
def test_a_rank_that_stops_to_ping_is_found(silent: Launch):
    assert "rank 1 called no ping() for 1." in silent.stderr_text()


@GUIDE.says(366, "inspects the signature of the wrapped function for an argument annotated with the type")
@GUIDE.says(370, "injects an instance of :py:class:`nvidia_resiliency_ext.inprocess.CallWrapper` into the function")
def test_the_call_wrapper_is_injected(fault: Launch):
    assert {line["kind"] for line in fault.traced("fn")} == {"CallWrapper"}


# --- Finalize and health checks --------------------------------------------------------------------------------------


@GUIDE.says(384, "executed after a fault was detected, distributed group was destroyed, but before the")
def test_finalize_stands_between_abort_and_health_check(unfit: Launch):
    assert order(unfit, 3)[3:6] == ["Abort", "Finalize", "HealthCheck"]


@GUIDE.says(389, "Any failure during the execution of :py:class:`Finalize` should raise an exception, in this case the")
def test_an_error_of_finalize_skips_the_health_check_and_ends_the_rank(unfit: Launch):
    assert order(unfit, 2)[3:] == ["Abort", "Finalize"]
    (raised,) = [line for line in unfit.traced("raised") if line["rank"] == 2]
    assert raised["kind"] == "ArithmeticError"


@GUIDE.says(398, "calls optional, user-provided :py:class:`nvidia_resiliency_ext.inprocess.health_check.HealthCheck")
@GUIDE.says(405, "meant to filter out unhealthy ranks that cannot continue executing the workload")
def test_an_unhealthy_rank_takes_no_part(unfit: Launch):
    assert set(entries(unfit, 1)) == {0, 3}


@GUIDE.says(410, "The exception is then reraised by the :py:class:`Wrapper`")
def test_the_error_of_a_health_check_is_raised(unfit: Launch):
    (raised,) = [line for line in unfit.traced("raised") if line["rank"] == 1]
    assert (raised["kind"], raised["cause"]) == ("HealthCheckError", "ArithmeticError('broken')")


# --- known issues ----------------------------------------------------------------------------------------------------


@GUIDE.says(
    554,
    "remaining ranks would wait till :py:class:`ProcessGroupGloo` timeout is exceeded",
    instead=f"{PAGE}: pending Gloo collectives are released",
)
@pytest.mark.soak  # loads torch
def test_collectives_of_gloo_are_released(tmp_path: Path):
    with launched(tmp_path, "--nproc-per-node=2", str(SCRIPTS / "wrapped_gloo.py"), "exception") as launch:
        assert launch.wait(100) == 0, "the group's own timeout is 5 minutes"


# --- monitoring ------------------------------------------------------------------------------------------------------


@GUIDE.says(
    443,
    "operates as a separate daemon process created by the",
    instead=f"{PAGE}: no process and no store beside each rank",
)
def test_the_supervisor_watches_the_ranks(fault: Launch):
    assert fault.kinds().count("worker_started") == 3


@GUIDE.says(497, "specify a custom path by passing a string to the ``monitor_process_logfile`` argument")
@GUIDE.says(498, "may include the ``{rank}`` placeholder")
def test_each_rank_has_its_log(fault: Launch):
    for rank in range(3):
        assert f"rank {rank}" in (fault.folder / f"monitor-{rank}.log").read_text()


def test_the_statements_stand_at_their_lines():
    GUIDE.compare()
