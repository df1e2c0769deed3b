"""One job of wrapped ranks: which rank is in which iteration, and how does the bench make one fail?"""

from __future__ import annotations

import os
import random
import signal
import time
from collections import defaultdict
from collections.abc import Mapping

from tests.benchmarks import processes
from tests.benchmarks.bench import EXIT_LIMIT_S, RECOVERY_LIMIT_S, START_LIMIT_S
from tests.benchmarks.launch import Event, Run, RunFailedError
from tests.benchmarks.subjects import JobOptions, Subject

WORKLOAD = "wrapped_faults"


def wrapped_run(
    subject: Subject,
    fault: str,
    *,
    world_size: int = 4,
    nodes: int = 1,
    max_restarts: int = 0,
    tuned: bool = False,
    gloo_timeout_s: float = 0.0,
    durations_s: Mapping[str, float] | None = None,
) -> Run:
    """Returns a run that has not started. `durations_s` has the Wrapper's names for them."""
    arguments = ["--fault", fault, "--gloo-timeout-s", f"{gloo_timeout_s:g}"]
    arguments += ["--tuned"] if tuned else []
    arguments += ["--durations-s", *(f"{name}={value:g}" for name, value in (durations_s or {}).items())]
    options = JobOptions(
        world_size=world_size, max_restarts=max_restarts, wrapped=True, arguments=tuple(arguments), nodes=nodes
    )
    return Run(subject, WORKLOAD, options)


def await_world(run: Run, size: int, *, from_iteration: int = 0, limit_s: float = RECOVERY_LIMIT_S) -> list[Event]:
    """Returns the entries of the first iteration, `from_iteration` or later, that all `size` ranks have entered.

    Raises RunFailedError, also if an iteration had two world sizes.
    """

    def whole() -> list[Event]:
        found: dict[int, list[Event]] = defaultdict(list)
        for event in run.events:
            if event.name == "entered" and iteration_of(event) >= from_iteration:
                found[iteration_of(event)].append(event)
        return next((found[each] for each in sorted(found) if len(found[each]) >= size), list[Event]())

    what = f"entry of {size} ranks in iteration {from_iteration} or a later one"
    came = run.await_found(whole, what, limit_s=limit_s)
    iterations = {iteration_of(event) for event in came}
    sizes = {event.fields["world_size"] for event in run.events if event.name == "entered"
             and iteration_of(event) in iterations}  # fmt: skip
    if sizes != {str(size)}:
        raise RunFailedError(f"{run.subject.label}: {size} ranks entered iteration {iterations} with worlds of {sizes}")
    return came


def await_first_world(run: Run) -> list[Event]:
    return await_world(run, run.options.world_size, limit_s=START_LIMIT_S)


def iteration_of(event: Event) -> int:
    return int(event.fields["iteration"])


def fail(run: Run, world: list[Event], rank: int) -> Event:
    """Makes the process that came as `rank` fail after a random time; returns its own stamp of the fault."""
    before = sum(event.name == "fault" for event in run.events)
    time.sleep(random.uniform(0.1, 0.4))  # so that faults fall at every point of a poller's phase
    os.kill(_pid_of(run, next(event for event in world if event.rank == rank)), signal.SIGUSR1)
    return run.await_events("fault", before + 1, limit_s=START_LIMIT_S)[-1]


def _pid_of(run: Run, event: Event) -> int:
    """Returns its pid here: nodes have their own process ids and folder for temporary files (on_nodes.py)."""
    if run.options.nodes == 1:
        return event.pid
    node = event.rank // (run.options.world_size // run.options.nodes) + 1
    return processes.pid_here(run.pid, event.pid, f"TMPDIR={run.folder}/node{node}")


def end_well(run: Run, world: list[Event]) -> None:
    """Lets all ranks return from the function; the job must end well. Raises RunFailedError."""
    for event in world:
        os.kill(_pid_of(run, event), signal.SIGUSR2)
    code = run.await_exit(limit_s=EXIT_LIMIT_S)
    if code:
        raise RunFailedError(f"{run.subject.label}: exit code {code} after the restarts\n{run.output_tail()}")


def last_ns(events: list[Event]) -> int:
    return max(event.at_ns for event in events)
