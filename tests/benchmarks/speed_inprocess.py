"""Rows: how soon is a wrapped function called again on all ranks, after each kind of fault?"""

from __future__ import annotations

import os
import select
import time

from tests.benchmarks.bench import EXIT_LIMIT_S, RECOVERY_LIMIT_S, START_LIMIT_S, Bench, Measured, seconds
from tests.benchmarks.launch import Event, Run, RunFailedError
from tests.benchmarks.rows import Group, Row, Statistic, Target, Unit
from tests.benchmarks.subjects import Family, JobOptions, Subject
from tests.benchmarks.wrapped_job import await_first_world, await_world, end_well, fail, iteration_of, last_ns
from tests.benchmarks.wrapped_job import wrapped_run as wrapped

TARGETS_S = {(4, False): 0.1, (8, False): 0.2, (4, True): 0.03, (8, True): 0.06}  # (world size, tuned)
TUNING = (
    "Both with the durations that let the reference restart soonest: intervals of 0.1 s, its monitor process 0.01 s, "
    "last_call_wait 0.01 s. With all intervals at 0.01 s it takes 5 s."
)
GLOO_TIMEOUT_S = 10.0
SOFT_TIMEOUT_S = 1.0
HARD_TIMEOUT_S = 2.0
GRACE_S = 1.0


def measure_exception(bench: Bench) -> list[Row]:
    return [_exception_row(bench, size, tuned=tuned) for size, tuned in TARGETS_S]


def _exception_row(bench: Bench, world_size: int, *, tuned: bool) -> Row:
    row = Row(
        f"inprocess_exception_{world_size}{'_tuned' if tuned else ''}",
        Group.SPEED,
        f"in-process, exception on 1 of {world_size} ranks, {'tuned' if tuned else 'defaults'}: from the exception → "
        "the function is entered again on all",
        Unit.SECONDS,
        Target(at_most=TARGETS_S[world_size, tuned]),
        notes=[TUNING] if tuned else [],
    )
    peer = "reference_tuned" if tuned else "reference"
    faults = {peer: int(bench.length(4, 2)), "holdfast": int(bench.length(10, 2))}

    def once(subject: Subject) -> Measured:
        took_s: list[float] = []
        with wrapped(subject, "exception", world_size=world_size, tuned=tuned) as run:
            world = await_first_world(run)
            for _ in range(faults[subject.key]):
                fault = fail(run, world, 1)
                world = await_world(run, world_size, from_iteration=iteration_of(world[0]) + 1)
                took_s.append(seconds(fault.at_ns, last_ns(world)))
            end_well(run, world)
        return {row.key: took_s}

    bench.fill([row], {peer: bench.runs(2, 1), "holdfast": bench.runs(3, 1)}, once)
    return row


def measure_gloo(bench: Bench) -> list[Row]:
    row = Row(
        "inprocess_gloo",
        Group.SPEED,
        "in-process, exception on 1 of 4 ranks, the others in a gloo all_reduce, defaults: the same",
        Unit.SECONDS,
        Target(at_most=0.3),
        notes=[
            f"The group's own timeout, set to {GLOO_TIMEOUT_S:g} s here, is all that ends the reference's wait; by "
            "default that is 30 min."
        ],
    )
    faults = {"reference": 1, "holdfast": int(bench.length(5, 2))}

    def once(subject: Subject) -> Measured:
        took_s: list[float] = []
        with wrapped(subject, "exception", gloo_timeout_s=GLOO_TIMEOUT_S) as run:
            world = await_first_world(run)
            for _ in range(faults[subject.key]):
                iteration = iteration_of(world[0])
                run.await_found(
                    lambda done=iteration: _of_iteration(run, "connected", done, 4), "the group", limit_s=START_LIMIT_S
                )
                fault = fail(run, world, 1)
                world = await_world(run, 4, from_iteration=iteration + 1)
                took_s.append(seconds(fault.at_ns, last_ns(world)))
            end_well(run, world)
        return {row.key: took_s}

    bench.fill([row], {"reference": bench.runs(2, 1), "holdfast": bench.runs(4, 1)}, once)
    return [row]


def measure_kill(bench: Bench) -> list[Row]:
    survivors = Row(
        "inprocess_kill",
        Group.SPEED,
        "in-process, rank 3 of 4 kills itself, then rank 2, defaults: → entered again on the survivors",
        Unit.SECONDS,
        Target(at_most=0.1),
        notes=["holdfast run without --max-restarts, so that nobody is waited for; the reference as plain processes."],
    )
    whole = Row(
        "inprocess_replaced",
        Group.SPEED,
        "in-process, rank 1 of 4 kills itself and is replaced, defaults: → entered again on all 4",
        Unit.SECONDS,
        Target(at_most=0.6),
        notes=["holdfast run with --max-restarts. The reference never replaces a rank."],
    )
    replaced = int(bench.length(6, 2))

    def once(subject: Subject) -> Measured:
        measured: dict[str, list[float]] = {survivors.key: [], whole.key: []}
        with wrapped(subject, "kill") as run:
            world = await_first_world(run)
            for rank in (3, 2):
                fault = fail(run, world, rank)
                world = await_world(run, rank, from_iteration=iteration_of(world[0]) + 1)
                measured[survivors.key].append(seconds(fault.at_ns, last_ns(world)))
        if subject.family is Family.HOLDFAST:
            with wrapped(subject, "kill", max_restarts=replaced) as run:
                world = await_first_world(run)
                for _ in range(replaced):
                    fault = fail(run, world, 1)
                    world = await_world(run, 4, from_iteration=iteration_of(world[0]) + 1)
                    measured[whole.key].append(seconds(fault.at_ns, last_ns(world)))
                end_well(run, world)
        return measured

    bench.fill([survivors, whole], {"reference": bench.runs(3, 1), "holdfast": bench.runs(4, 1)}, once)
    return [survivors, whole]


def measure_silence(bench: Bench) -> list[Row]:
    told = Row(
        "inprocess_soft_told",
        Group.SPEED,
        f"in-process soft hang, tuned: no ping() on rank 1 of 4 → the first rank is interrupted, beyond soft_timeout "
        f"{SOFT_TIMEOUT_S:g} s",
        Unit.SECONDS,
        Target(at_most=0.1, never_below=0.0),
    )
    again = Row(
        "inprocess_soft_restart",
        Group.SPEED,
        "in-process soft hang, tuned: the same → the function is entered again on all, beyond soft_timeout",
        Unit.SECONDS,
    )
    killed = Row(
        "inprocess_hard",
        Group.SPEED,
        f"in-process hard hang, tuned: a rank holds the GIL → it is dead, beyond hard_timeout {HARD_TIMEOUT_S:g} s and "
        f"termination_grace_time {GRACE_S:g} s, rank 3 of 4, then rank 2",
        Unit.SECONDS,
        Target(at_most=0.02, never_below=0.0),
        Statistic.WORST,
        notes=["The rank ignores SIGTERM. It is silent from its last Python code on, by its own stamp."],
    )
    pings = int(bench.length(4, 1))

    def once(subject: Subject) -> Measured:
        measured: dict[str, list[float]] = {told.key: [], again.key: [], killed.key: []}
        soft = {"soft_timeout": SOFT_TIMEOUT_S, "hard_timeout": 15.0}
        with wrapped(subject, "silence", tuned=True, durations_s=soft) as run:
            world = await_first_world(run)
            for _ in range(pings):
                due_ns = fail(run, world, 1).at_ns + round(SOFT_TIMEOUT_S * 1e9)
                before = iteration_of(world[0])
                world = await_world(run, 4, from_iteration=before + 1)
                interrupted = _of_iteration(run, "told", before, 1)
                measured[told.key].append(seconds(due_ns, min(event.at_ns for event in interrupted)))
                measured[again.key].append(seconds(due_ns, last_ns(world)))
            end_well(run, world)
        hard = {"soft_timeout": SOFT_TIMEOUT_S, "hard_timeout": HARD_TIMEOUT_S, "termination_grace_time": GRACE_S}
        with wrapped(subject, "gil", tuned=True, durations_s=hard) as run:
            world = await_first_world(run)
            for rank in (3, 2):
                measured[killed.key].append(_hard_hang_s(run, world, rank))
                world = await_world(run, rank, from_iteration=iteration_of(world[0]) + 1)
        return measured

    bench.fill([told, again, killed], {"reference_tuned": bench.runs(2, 1), "holdfast": bench.runs(4, 1)}, once)
    return [told, again, killed]


def _hard_hang_s(run: Run, world: list[Event], rank: int) -> float:
    """Makes that rank hold the GIL; returns how long after its deadline it was dead."""
    pidfd = os.pidfd_open(next(event.pid for event in world if event.rank == rank))
    try:
        due_ns = fail(run, world, rank).at_ns + round((HARD_TIMEOUT_S + GRACE_S) * 1e9)
        if not select.select([pidfd], [], [], RECOVERY_LIMIT_S)[0]:
            raise RunFailedError(f"{run.subject.label}: the rank lives after {RECOVERY_LIMIT_S:g} s")
        return seconds(due_ns, time.monotonic_ns())
    finally:
        os.close(pidfd)


def _of_iteration(run: Run, name: str, iteration: int, count: int) -> list[Event]:
    """Returns those events of one iteration; none before there are `count`."""
    found = [event for event in run.events if event.name == name and iteration_of(event) == iteration]
    return found if len(found) >= count else []


def measure_nothing(bench: Bench) -> list[Row]:
    entry = Row(
        "inprocess_entry",
        Group.SPEED,
        "in-process, no fault: the last of 4 ranks calls the function for the first time → all are inside, defaults",
        Unit.SECONDS,
        Target(at_most=0.05),
        notes=["The supervisor is up, torch and the Wrapper's modules are imported. The function does nothing."],
    )
    again = Row(
        "inprocess_entry_again",
        Group.SPEED,
        "in-process, no fault: the same at later calls in the same processes",
        Unit.SECONDS,
        Target(at_most=0.05),
    )
    leaving = Row(
        "inprocess_exit",
        Group.SPEED,
        "in-process, no fault: the last of 4 ranks is done → all have returned",
        Unit.SECONDS,
        Target(at_most=0.02),
    )
    calls = {"reference": 2, "holdfast": int(bench.length(5, 2))}

    def once(subject: Subject) -> Measured:
        count = calls[subject.key]
        with Run(subject, "wrapped_nothing", JobOptions(wrapped=True, arguments=(str(count),))) as run:
            run.await_events("returned", 4 * count, limit_s=START_LIMIT_S)
            if run.await_exit(limit_s=EXIT_LIMIT_S):
                raise RunFailedError(f"{subject.label}: it failed\n{run.output_tail()}")

        def last(name: str, call: int) -> int:
            return last_ns([event for event in run.events if event.name == name and event.fields["call"] == str(call)])

        entered_s = [seconds(last("calling", call), last("entered", call)) for call in range(count)]
        left_s = [seconds(last("leaving", call), last("returned", call)) for call in range(count)]
        return {entry.key: entered_s[0], again.key: entered_s[1:], leaving.key: left_s}

    bench.fill([entry, again, leaving], {"reference": bench.runs(3, 1), "holdfast": bench.runs(6, 1)}, once)
    return [entry, again, leaving]
