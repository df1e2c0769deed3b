"""Several jobs in one engine, in virtual time, with spawners that do what they like. A failure prints its seed."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

import anyio
import anyio.lowlevel
import pytest

from supervisor.config import JobSpec
from supervisor.core import job_phases
from supervisor.core.announcements import Announcement, JobEnded
from supervisor.core.cluster import coordinator
from supervisor.core.facts import JobState, RestartRules
from supervisor.core.node import node, node_messages
from supervisor.engine.job_record import JobRecord
from supervisor.errors import HoldfastError, NotNowError
from tests.engine.disobedience import DisobedientSpawners, Population, Schedule
from tests.engine.world import SetClock, World

SEEDS_PER_TEST = 40
END_S = 50_000.0
SETTLING_ROUNDS = 8  # of the event loop: an event, the task that it starts, what that posts, and once more
CALM = "calm"


@dataclass
class Run:
    """One seed. `calm` is a job without faults."""

    seed: int
    world: World
    population: Population
    specs: list[JobSpec]
    finished: list[str] = field(default_factory=list[str])
    requests: list[str] = field(default_factory=list[str])  # ids of jobs for which a person requested a restart
    stops: set[str] = field(default_factory=set[str])

    async def play(self) -> None:
        draw = self.population.schedule.random
        for spec in self.specs:
            self.population.schedule.after(draw.uniform(0.0, 30.0), lambda spec=spec: self._begin(spec))
        while True:
            await self._settle()
            self._check_waiting()
            if self.population.schedule.next_s is None and not self._unfinished():
                return
            moments = [moment for moment in (self._deadline_s(), self.population.schedule.next_s) if moment is not None]
            assert moments, f"nothing happens any more: {self.world.engine_state.node_state}"
            assert min(moments) < END_S, f"these jobs do not end: {self._unfinished()}"
            if self._deadline_s() == min(moments):
                self.world.clock.at_s = max(self.world.clock.at_s, min(moments))
                self.world.inbox.post(node_messages.DeadlineReached())
            else:
                self.population.schedule.pass_next()

    async def _settle(self) -> None:
        for _ in range(SETTLING_ROUNDS):
            await anyio.lowlevel.checkpoint()

    def _deadline_s(self) -> float | None:
        return self.world.next_deadline_s()

    def _unfinished(self) -> list[str]:
        return [spec.job_id for spec in self.specs if spec.job_id not in self.finished]

    def _begin(self, spec: JobSpec) -> None:
        job_id, schedule = spec.job_id, self.population.schedule

        async def submit() -> None:
            await self.world.job_service.submit(spec, {})

        self.world.start_soon(submit)
        if job_id == CALM:
            return
        if schedule.chance(0.2):
            schedule.after(schedule.random.uniform(0.1, 90.0), lambda: self._request(job_id))
        if schedule.chance(0.2):
            self.stops.add(job_id)
            for _ in range(schedule.random.choice([1, 2])):
                signal = schedule.random.choice([0, 2, 15])
                schedule.after(schedule.random.uniform(0.1, 90.0), lambda signal=signal: self._stop(job_id, signal))

    def _request(self, job_id: str) -> None:
        if self.world.jobs[job_id].verdict is None:
            with suppress(NotNowError):  # It is ending.
                self.world.job_service.restart(job_id, reason="a person asked")
                self.requests.append(job_id)

    def _stop(self, job_id: str, signal: int) -> None:
        try:
            self.world.job_service.stop(job_id, reason=f"stop by {signal}", signal=signal)
        except HoldfastError:
            assert self.world.jobs[job_id].verdict is not None

    def _check_waiting(self) -> None:
        """If the job does not wait for the training itself, something of that very job has a deadline."""
        state = self.world.engine_state.node_state
        for job_id, machines in state.jobs.items():
            phase = machines.job.phase
            led = self.world.engine_state.coordinators.get(job_id)
            moments = (
                node.job_due_s(state, job_id),
                coordinator.next_deadline_s(led) if led is not None else None,
            )
            is_training = isinstance(phase, job_phases.Running) and self.population.unseen(job_id)
            if not isinstance(phase, job_phases.Ended) and not is_training and moments == (None, None):
                self.population.complaints.append(f"{job_id} waits without a deadline in {phase}: {machines}")


def check_each_job_ends_once(run: Run) -> None:
    assert sorted(run.finished) == sorted(spec.job_id for spec in run.specs)
    for job_id in run.finished:
        verdict = run.world.jobs[job_id].verdict
        assert verdict is not None
        assert verdict.reason
        ends = [each.kind for each in run.world.journal.events if each.job_id == job_id and each.kind in ENDS]
        assert ends == [f"job_{verdict.state}"]


ENDS = ("job_succeeded", "job_failed", "job_stopped")


def check_verdicts_have_their_causes(run: Run) -> None:
    for spec in run.specs:
        record = run.world.jobs[spec.job_id]
        assert record.verdict is not None
        if record.verdict.state is JobState.STOPPED:
            assert spec.job_id in run.stops
        elif record.verdict.state is JobState.FAILED:
            assert run.population.faults.get(spec.job_id)


def check_budgets_hold(run: Run) -> None:
    for spec in run.specs:
        used = run.world.jobs[spec.job_id].shown.restarts_used
        assert used <= spec.restart.max_restarts
        assert used <= run.population.faults.get(spec.job_id, 0), "a restart is used for a fault and nothing else"


def check_the_calm_job_was_not_touched(run: Run) -> None:
    report = run.world.job_service.job(CALM)
    assert report is not None
    assert (report.state, report.cycle, report.restarts_used) == (JobState.SUCCEEDED, 0, 0)
    assert [(rank.cycle, rank.is_alive) for rank in run.population.ranks if rank.job_id == CALM] == [(0, False)] * 2


def check_nothing_is_left(run: Run) -> None:
    assert run.population.complaints == []
    assert [rank for rank in run.population.ranks if rank.is_alive] == []
    assert run.world.tokens.live == set()
    assert run.world.workers.open == {}
    assert run.world.claims.held == set()
    assert run.world.engine_state.coordinators == {}
    assert [job_id for job_id, job in run.world.jobs.items() if job.spawner is not None] == []


CHECKS: tuple[Callable[[Run], None], ...] = (
    check_each_job_ends_once,
    check_verdicts_have_their_causes,
    check_budgets_hold,
    check_the_calm_job_was_not_touched,
    check_nothing_is_left,
)  # fmt: skip


def specs(schedule: Schedule) -> list[JobSpec]:
    draw = schedule.random
    wild = [
        JobSpec(
            job_id,
            ("t.py",),
            local_world_size=draw.randint(1, 3),
            restart=RestartRules(max_restarts=draw.randint(0, 4), max_no_progress_cycles=0),
            rank_termination_signal=draw.choice([9, 15]),
            master_port=draw.choice([0, 29500]),
            checkpoint_iteration_file=draw.choice(["", "/ckpt"]),
        )
        for job_id in ("a", "b", "c")
    ]
    return [*wild, JobSpec(CALM, ("t.py",), local_world_size=2)]


async def play(seed: int, log_dir: Path) -> Run:
    clock = SetClock()
    schedule = Schedule(clock, seed)
    schedule.calm.add(CALM)
    population = Population(schedule, post=lambda _: None)
    async with anyio.create_task_group() as tasks:
        world = World(tasks, log_dir, clock=clock, spawners=DisobedientSpawners(population), stacks=population)
        population.post = world.inbox.post
        world.workers.read = population.read_progress
        run = Run(seed, world, population, specs(schedule))

        def finished(job: JobRecord, announcement: Announcement) -> None:
            if isinstance(announcement, JobEnded):
                run.finished.append(job.spec.job_id)

        world.followers.append(finished)
        try:
            await run.play()
            for check in CHECKS:
                check(run)
        except AssertionError as error:
            events = "\n".join(
                f"{each.at_ns / 1e9:9.3f} {each.job_id} {each.kind}: {each.reason}" for each in world.journal.events
            )
            raise AssertionError(f"seed {seed}: {error}\n{run.population.complaints}\n{events}") from error
        tasks.cancel_scope.cancel()
        return run
    raise AssertionError("the task group swallows nothing but its own cancellation")


@pytest.mark.parametrize("first_seed", range(0, 200, SEEDS_PER_TEST))
async def test_every_job_ends_well_and_none_disturbs_another(first_seed: int, tmp_path: Path) -> None:
    for seed in range(first_seed, first_seed + SEEDS_PER_TEST):
        await play(seed, tmp_path)


async def test_the_same_seed_gives_the_same_run(tmp_path: Path) -> None:
    one, other = [(await play(7, tmp_path)).world.journal.events for _ in range(2)]
    assert one == other
