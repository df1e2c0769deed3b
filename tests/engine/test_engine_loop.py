"""Turns, the single timer, and the effect of one job's defect on others: the loop with its real machines."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable
from pathlib import Path

import anyio
import pytest

from supervisor.config import JobSpec
from supervisor.core.announcements import Announcement, CycleBegan, LeadChanged, NodeLost
from supervisor.core.cluster import cluster_messages, coordinator, coordinator_states, leader_takeover
from supervisor.core.facts import HangLimits, JobRules, JobState, Progress, RestartRules
from supervisor.core.leader_ledger import Ledger
from supervisor.core.node import job, node, node_messages, spawner_deadlines
from supervisor.engine.engine_inbox import EngineInbox
from supervisor.engine.engine_loop import LATE_S, TURN_S, Engine
from supervisor.engine.engine_state import EngineState
from supervisor.engine.fair_queue import TAKEN_MAX
from supervisor.ports.timed_waits import PAUSED_S, TURN_EVERY_S
from tests.core import one_node
from tests.core.one_node import JOB
from tests.engine.world import SetClock, World
from tests.settling import settled


class Recorder:
    """A performer without anything outside; `answer` may turn actions into events."""

    def __init__(self) -> None:
        self.actions: list[node_messages.Action] = []
        self.announced: list[Announcement] = []
        self.shown = (0, 0)
        self.is_leader = False
        self.settled_times = 0
        self.answer: Callable[[node_messages.Action], tuple[node_messages.Event, ...]] = lambda _: ()

    def perform(self, action: node_messages.Action) -> tuple[node_messages.Event, ...]:
        self.actions.append(action)
        return self.answer(action)

    def send(self, job_id: str, action: cluster_messages.Send) -> None:
        pass

    def publish(self, job_id: str, action: cluster_messages.Publish) -> None:
        pass

    def record(self, job_id: str, ledger: Ledger) -> None:
        pass

    def announce(self, job_id: str, announcement: Announcement) -> None:
        self.announced.append(announcement)

    def show(self, job_id: str, *, restarts_used: int, iteration: int) -> None:
        self.shown = restarts_used, iteration

    def leads(self, job_id: str) -> bool:
        return self.is_leader

    def name_in(self, job_id: str) -> str:
        return "n0"

    def settled(self) -> None:
        self.settled_times += 1

    def of(self, kind: type[node_messages.Action]) -> list[node_messages.Action]:
        return [action for action in self.actions if isinstance(action, kind)]


class Played:
    """An engine with its inbox and its machines."""

    def __init__(self, recorder: Recorder, clock: SetClock, *, turn_every_s: float = math.inf) -> None:
        self.inbox, self.engine_state = EngineInbox(), EngineState("n0")
        self.engine = Engine(
            clock=clock, inbox=self.inbox, engine_state=self.engine_state, performer=recorder, jitter=lambda: 0.5,
            turn_every_s=turn_every_s,
        )  # fmt: skip
        self.post, self.run, self.handle = self.inbox.post, self.engine.run, self.engine.handle
        self.take_back = self.engine.take_back


async def test_what_follows_at_once_is_decided_before_anything_is_shown() -> None:
    recorder, clock = Recorder(), SetClock()
    played = Played(recorder, clock)
    recorder.answer = lambda action: (
        (node_messages.SpawnerReady("j", action.number),) if isinstance(action, node_messages.StartSpawner) else ()
    )
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(played.run)
        played.post(node_messages.JobSubmitted(JobRules("j", 1)))
        await settled()
        assert recorder.settled_times == 1
        joined = [each.report for each in recorder.actions if isinstance(each, node_messages.TellCoordinator)]
        assert [type(report) for report in joined] == [cluster_messages.JobOpened, cluster_messages.NodeJoined]
        tasks.cancel_scope.cancel()


async def test_a_job_that_never_comes_to_rest_holds_up_neither_others_nor_deadlines() -> None:
    recorder, clock = Recorder(), SetClock()
    played = Played(recorder, clock)

    def never_rests(action: node_messages.Action) -> tuple[node_messages.Event, ...]:
        if action.job_id == "loud" and isinstance(action, node_messages.Publish):
            played.post(node_messages.RestartRequested("loud", "again"))
        return ()

    recorder.answer = never_rests
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(played.run)
        played.post(node_messages.JobSubmitted(JobRules("loud", 1)))
        for _ in range(3):
            await anyio.lowlevel.checkpoint()
        played.post(node_messages.JobSubmitted(JobRules("quiet", 1)))
        while not any(action.job_id == "quiet" for action in recorder.actions):
            await anyio.lowlevel.checkpoint()
        due_s = played.engine_state.next_deadline_s()
        assert due_s is not None
        clock.at_s = due_s  # both spawners are late by now
        while not any(action.job_id == "quiet" for action in recorder.of(node_messages.KillSpawner)):
            await anyio.lowlevel.checkpoint()
        tasks.cancel_scope.cancel()


async def test_a_deadline_that_falls_due_among_many_events_waits_for_no_more_than_one_take() -> None:
    recorder, clock = Recorder(), SetClock()
    played = Played(recorder, clock)
    heard_until_kill: list[int] = []

    def note(action: node_messages.Action) -> tuple[node_messages.Event, ...]:
        if isinstance(action, node_messages.KillSpawner):
            heard_until_kill.append(len(recorder.of(node_messages.Publish)))
        return ()

    recorder.answer = note
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(played.run)
        played.post(node_messages.JobSubmitted(JobRules("j", 1)))
        await settled()
        for _ in range(20 * TAKEN_MAX):
            played.post(node_messages.RestartRequested("j", "again"))
        deadline_s = node.next_deadline_s(played.engine_state.node_state)
        assert deadline_s is not None
        clock.at_s = deadline_s + LATE_S / 2  # due while the loop works, and not late
        await settled()
        assert len(heard_until_kill) == 1
        assert heard_until_kill[0] <= TAKEN_MAX + 2  # including job_submitted and spawner_killed
        tasks.cancel_scope.cancel()


async def test_while_many_events_take_long_the_other_tasks_have_their_turn() -> None:
    recorder, clock = Recorder(), SetClock()
    played = Played(recorder, clock)

    def takes_long(_: node_messages.Action) -> tuple[node_messages.Event, ...]:
        clock.at_s += TURN_S / 10
        return ()

    recorder.answer = takes_long
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(played.run)
        played.post(node_messages.JobSubmitted(JobRules("j", 1)))
        await settled()
        before = len(recorder.actions)
        for _ in range(20 * TAKEN_MAX):
            played.post(node_messages.RestartRequested("j", "again"))
        turns: list[int] = []
        while len(recorder.actions) - before < 20 * TAKEN_MAX:
            turns.append(len(recorder.actions))
            await anyio.lowlevel.checkpoint()
        assert max(after - last for last, after in itertools.pairwise(turns)) <= 2 * TAKEN_MAX
        tasks.cancel_scope.cancel()


async def test_after_a_pause_of_its_own_the_loop_hears_what_was_said_before_it_judges_a_silence() -> None:
    recorder, clock = Recorder(), SetClock()
    played = Played(recorder, clock)
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(played.run)
        played.post(node_messages.JobSubmitted(JobRules("j", 1)))
        await settled()
        settled_times = recorder.settled_times
        due_s = played.engine_state.next_deadline_s()
        assert due_s is not None
        clock.at_s = due_s + PAUSED_S  # the loop was blocked, and the spawner is overdue
        played.post(node_messages.RestartRequested("j", "anything that wakes the loop"))
        await settled()
        played.post(node_messages.SpawnerReady("j", 1))  # it was in the socket all the time
        while recorder.settled_times == settled_times:
            await anyio.lowlevel.checkpoint()
        assert recorder.of(node_messages.KillSpawner) == []
        tasks.cancel_scope.cancel()


@pytest.mark.parametrize(("late_s", "pauses"), [(10_000.0, ((100.0, 10_100.0),)), (PAUSED_S, ())])
async def test_a_deadline_that_comes_much_too_late_is_a_pause_of_this_process(
    late_s: float, pauses: tuple[tuple[float, float], ...]
) -> None:
    recorder, clock = Recorder(), SetClock()
    played = Played(recorder, clock)
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(played.run)
        played.post(node_messages.JobSubmitted(JobRules("j", 1)))
        await settled()
        due_s = played.engine_state.next_deadline_s()
        assert due_s is not None
        settled_times = recorder.settled_times
        clock.at_s = 100.0 + late_s if pauses else due_s + late_s
        played.post(node_messages.RestartRequested("j", "anything that wakes the loop"))
        while recorder.settled_times == settled_times:
            await anyio.lowlevel.checkpoint()
        assert played.engine_state.node_state.jobs["j"].pauses == pauses
        tasks.cancel_scope.cancel()


async def test_a_pause_that_ends_before_the_deadline_is_one_too() -> None:
    """A rank with a limit of 10 s beats at 0; it is suspended with its supervisor from 1 to 9.5."""
    limits, beaten = HangLimits(heartbeat_s=10.0), Progress(0.0, 0.0, 0.0, 1)
    watched = one_node.running(one_node.rules(1, hang_limits=limits))
    watched.send(node_messages.ClientJoined(JOB, 0, 0, limits, beaten))
    recorder, clock = Recorder(), SetClock()
    recorder.answer = lambda action: (
        (node_messages.ProgressRead(JOB, 0, 0, beaten),) if isinstance(action, node_messages.ReadProgress) else ()
    )
    clock.at_s = 1.0
    played = Played(recorder, clock, turn_every_s=TURN_EVERY_S)
    played.take_back(JOB, watched.state.jobs[JOB], None)
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(played.run)
        await settled()
        for at_s in (9.5, 10.0, 12.0, 14.0, 16.0, 18.0, 18.4, 18.5):
            assert recorder.of(node_messages.TellCoordinator) == [], "the rank has run for less than 10 s"
            turns, clock.at_s = recorder.settled_times, at_s
            played.post(node_messages.DeadlineReached())  # wakes the loop, as its timer would
            while recorder.settled_times == turns:
                await anyio.lowlevel.checkpoint()
        told = [each.report for each in recorder.actions if isinstance(each, node_messages.TellCoordinator)]
        assert [type(each) for each in told] == [cluster_messages.StacksWanted]
        assert played.engine_state.node_state.jobs[JOB].pauses == ((1.0, 9.5),)
        tasks.cancel_scope.cancel()


async def test_the_loop_takes_turns_by_itself_while_there_is_a_deadline_and_only_then() -> None:
    recorder = Recorder()
    played = Played(recorder, SetClock(), turn_every_s=0.001)
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(played.run)
        await anyio.sleep(0.05)
        assert recorder.settled_times == 0
        played.post(node_messages.JobSubmitted(JobRules("j", 1)))
        with anyio.fail_after(10):
            while recorder.settled_times < 5:
                await anyio.lowlevel.checkpoint()
        tasks.cancel_scope.cancel()


async def test_after_a_pause_what_comes_in_later_has_its_own_time_and_what_was_owed_has_its_rest() -> None:
    recorder, clock = Recorder(), SetClock()
    played = Played(recorder, clock)
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(played.run)
        played.post(node_messages.JobSubmitted(JobRules("old", 1)))
        await settled()
        settled_times = recorder.settled_times
        clock.at_s += 10_000
        played.post(node_messages.JobSubmitted(JobRules("new", 1)))
        while recorder.settled_times == settled_times:
            await anyio.lowlevel.checkpoint()
        due_s = [node.job_due_s(played.engine_state.node_state, each) for each in ("old", "new")]
        assert due_s == [clock.at_s + spawner_deadlines.START_S] * 2
        assert recorder.of(node_messages.KillSpawner) == []
        tasks.cancel_scope.cancel()


@pytest.mark.parametrize("stops", [False, True])
async def test_a_job_that_was_suspended_while_its_nodes_meet_or_stop_has_the_rest_of_its_time(stops: bool) -> None:
    """As by docker pause or scontrol suspend; the other nodes were suspended, too."""
    recorder, clock = Recorder(), SetClock()
    recorder.is_leader = True
    played = Played(recorder, clock)
    rules = JobRules("j", 1, restart=RestartRules(min_nodes=2))
    reports = [cluster_messages.JobOpened("n0", rules), cluster_messages.JobOpened("n1", rules)]
    reports += [cluster_messages.StopAsked("the launcher got SIGTERM", 15, grace_s=900.0)] if stops else []
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(played.run)
        for report in reports:
            played.post(cluster_messages.Reported("j", report))
        await settled()
        phase, settled_times = played.engine_state.coordinators["j"].phase, recorder.settled_times
        clock.at_s += 2000.0
        played.post(cluster_messages.Reported("j", cluster_messages.NodeHeard("n1")))
        while recorder.settled_times == settled_times:
            await anyio.lowlevel.checkpoint()
        found = played.engine_state.coordinators["j"].phase
        assert isinstance(found, coordinator_states.WindingDown if stops else coordinator_states.Gathering)
        assert isinstance(phase, type(found))
        assert found.until_s == phase.until_s + 2000.0
        assert (played.engine_state.next_deadline_s() or 0.0) > clock.at_s
        tasks.cancel_scope.cancel()


async def test_a_pause_among_events_is_one_too() -> None:
    recorder, clock = Recorder(), SetClock()
    played = Played(recorder, clock)

    def is_stopped(_: node_messages.Action) -> tuple[node_messages.Event, ...]:
        clock.at_s = 10_100.0
        return ()

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(played.run)
        played.post(node_messages.JobSubmitted(JobRules("j", 1)))
        await settled()
        settled_times = recorder.settled_times
        recorder.answer = is_stopped
        played.post(node_messages.RestartRequested("j", "anything that has an action"))
        while recorder.settled_times == settled_times:
            await anyio.lowlevel.checkpoint()
        assert played.engine_state.node_state.jobs["j"].pauses == ((100.0, 10_100.0),)
        tasks.cancel_scope.cancel()


async def test_a_report_that_outlived_its_job_opens_no_coordinator() -> None:
    played = Played(Recorder(), SetClock())
    played.handle(cluster_messages.Reported("nobody", cluster_messages.NodeJoined("n0", 0)))
    assert played.engine_state.coordinators == {}


async def test_a_lost_node_is_announced_before_what_follows_from_it() -> None:
    recorder = Recorder()
    played = Played(recorder, SetClock())
    recorder.is_leader = True
    played.handle(cluster_messages.Reported("j", cluster_messages.JobOpened("n0", JobRules("j", 1))))
    played.handle(cluster_messages.Reported("j", cluster_messages.NodeJoined("n0", -1)))
    played.handle(cluster_messages.Reported("j", cluster_messages.NodeLost("n1", "node n1 is lost: silence")))
    assert recorder.announced[2:] == [NodeLost("n1", "node n1 is lost: silence")]


async def test_who_leads_is_announced_before_what_the_leader_decides() -> None:
    recorder = Recorder()
    played = Played(recorder, SetClock())
    recorder.is_leader = True
    played.handle(cluster_messages.Reported("j", cluster_messages.JobOpened("n0", JobRules("j", 1))))
    played.handle(cluster_messages.Reported("j", cluster_messages.NodeJoined("n0", -1)))
    assert recorder.announced == [LeadChanged(leads=True), CycleBegan(0, ("n0",))]


async def test_an_elected_leader_is_announced_when_the_lead_is_taken_and_when_it_is_lost() -> None:
    recorder = Recorder()
    played = Played(recorder, SetClock())
    played.handle(cluster_messages.Reported("j", cluster_messages.LeadershipTaken(7, Ledger(cycle=3, opened=3))))
    assert recorder.announced == [LeadChanged(leads=True, cycle=3)]
    played.handle(cluster_messages.Reported("j", cluster_messages.LeadershipLost("another node leads")))
    assert recorder.announced[1:] == [LeadChanged(leads=False)]
    assert played.engine_state.coordinators == {}


async def test_a_supervisor_that_takes_a_job_back_leads_it_again() -> None:
    recorder = Recorder()
    played = Played(recorder, SetClock())
    led = leader_takeover.initial_state(
        "j", cluster_messages.LeadershipTaken(7, Ledger(cycle=3)), leader="n0", now_s=0.0
    )
    machines = node.step(node.initial_state("n0"), node_messages.JobSubmitted(JobRules("j", 1)), now_s=0.0)[0].jobs["j"]
    played.take_back("j", machines, None)
    assert recorder.announced == []
    played.take_back("j", machines, led)
    assert recorder.announced == [LeadChanged(leads=True, cycle=3)]


@pytest.mark.parametrize("where", [coordinator, job])
async def test_a_defect_in_one_jobs_machines_ends_it_and_leaves_the_other_alone(
    where: object, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with World.opened(tmp_path) as world:
        hit_spawner = await world.submit(JobSpec("hit", ("t.py",)))
        spawner = await world.submit(JobSpec("beside", ("t.py",)))

        def broken(*_: object, **__: object) -> None:
            raise AssertionError("no such phase")

        with monkeypatch.context() as patched:
            patched.setattr(where, "step", broken)
            world.job_service.stop("hit", reason="enough", signal=0)
            if where is coordinator:
                world.inbox.post(cluster_messages.Reported("hit", cluster_messages.StopAsked("enough", 0)))
            await world.settle()
        ended = await world.job_service.wait("hit")
        assert ended.verdict is not None
        assert ended.verdict.state is JobState.FAILED
        assert "AssertionError: no such phase" in ended.verdict.reason
        assert hit_spawner.ended.is_set()
        await world.settle()
        assert list(world.engine_state.coordinators) == ["beside"]
        spawner.exit(0, 0, code=0)
        beside = await world.job_service.wait("beside")
        assert beside.verdict is not None
        assert (beside.verdict.state, world.claims.held) == (JobState.SUCCEEDED, set())


async def test_an_id_whose_job_met_a_defect_begins_with_a_new_coordinator(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with World.opened(tmp_path) as world:
        await world.submit(JobSpec("j", ("t.py",)))
        with monkeypatch.context() as patched:
            patched.setattr(job, "step", None)
            world.job_service.stop("j", reason="enough", signal=0)
            await world.settle()
        assert world.engine_state.coordinators == {}
        spawner = await world.submit(JobSpec("j", ("t.py",), restart=RestartRules(max_restarts=1)))
        report = world.job_service.job("j")
        assert report is not None
        assert (report.state, report.cycle) == (JobState.RUNNING, 0)
        spawner.exit(0, 0, code=0)
        await world.settle()
        assert world.engine_state.coordinators == {}
