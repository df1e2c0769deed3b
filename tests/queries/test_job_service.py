"""What can people ask, and what answers do they get? The whole engine against fakes."""

import logging
import os
from pathlib import Path

import anyio
import msgspec
import pytest
from holdfast_wire import spawner_link as link

from supervisor.config import JobSpec
from supervisor.config.node_check_plans import HealthChecks
from supervisor.core.facts import HangLimits, JobState, Progress, RestartRules
from supervisor.core.node import node_messages
from supervisor.core.node_check_facts import Health, HealthFinding
from supervisor.errors import AlreadyExistsError, CordonedError, InvalidRequestError, NotFoundError, NotNowError
from supervisor.ports.reports import CheckReport
from supervisor.queries import job_service
from tests.engine.world import World


def spec(job_id: str = "j", *, ranks: int = 2, max_restarts: int = 1) -> JobSpec:
    return JobSpec(job_id, ("t.py",), local_world_size=ranks, restart=RestartRules(max_restarts=max_restarts))


async def test_a_job_runs_and_succeeds(tmp_path: Path) -> None:
    async with World.opened(tmp_path) as world:
        spawner = await world.submit(spec())
        report = world.job_service.job("j")
        assert report is not None
        assert (report.state, report.cycle, [rank.pid for rank in report.ranks]) == (JobState.RUNNING, 0, [1000, 1001])
        spawner.exit(0, 0, code=0)
        spawner.exit(0, 1, code=0)
        await world.settle()
        ended = await world.job_service.wait("j")
        assert ended.verdict is not None
        assert (ended.verdict.state, ended.verdict.exit_code) == (JobState.SUCCEEDED, 0)
        report = world.job_service.job("j")
        assert report is not None
        assert report.ended_at_ns is not None
        assert isinstance(spawner.heard[-1], link.End)
        assert world.tokens.live == set()
        assert world.workers.open == {}


async def test_the_reason_of_a_stop_is_told_once_and_recorded_twice(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, logger="holdfast.jobs")
    async with World.opened(tmp_path) as world:
        await world.submit(spec())
        world.job_service.stop("j", reason="holdfast stop by kim", signal=0)
        await world.job_service.wait("j")
        assert caplog.messages.count("holdfast stop by kim") == 1
        assert [event.kind for event in world.journal.events if event.reason == "holdfast stop by kim"] == [
            "stop_requested", "job_stopped",
        ]  # fmt: skip


async def test_secrets_on_the_command_line_reach_neither_journal_nor_report(tmp_path: Path) -> None:
    async with World.opened(tmp_path) as world:
        secret = JobSpec("j", ("t.py", "--hf-token", "s3cret", "--lr=1", "db=redis://me:s3cret@host"))
        spawner = await world.submit(secret)
        shown = ("t.py", "--hf-token", "***", "--lr=1", "db=redis://me:***@host")
        report = world.job_service.job("j")
        assert report is not None
        assert report.command == shown
        assert {each.command for each in world.journal.reports} == {shown}
        assert "s3cret" not in repr((world.journal.reports, world.journal.events))
        assert [message for message in spawner.heard if isinstance(message, link.Spawn)]


async def test_a_fault_starts_a_new_cycle_with_a_new_store_and_token(tmp_path: Path) -> None:
    async with World.opened(tmp_path) as world:
        spawner = await world.submit(spec())
        spawner.exit(0, 1, signal=9)
        await world.settle()
        report = world.job_service.job("j")
        assert report is not None
        assert (report.state, report.cycle, report.restarts_used) == (JobState.RUNNING, 1, 1)
        ports = [message.cycle for message in spawner.heard if isinstance(message, link.PrepareStore)]
        assert ports == [0, 1]
        spawns = [message for message in spawner.heard if isinstance(message, link.Spawn)]
        assert [plan.env["MASTER_PORT"] for plan in spawns[1].workers] == ["20001", "20001"]
        assert world.tokens.live == {("j", 1)}
        assert list(world.workers.open) == [("j", 1)]


async def test_what_an_older_cycle_says_changes_nothing(tmp_path: Path) -> None:
    async with World.opened(tmp_path) as world:
        spawner = await world.submit(spec())
        spawner.exit(0, 1, signal=9)
        await world.settle()
        spawner.exit(0, 0, code=3)
        await world.settle()
        report = world.job_service.job("j")
        assert report is not None
        assert (report.cycle, report.restarts_used) == (1, 1)


async def test_a_lost_spawner_is_started_again(tmp_path: Path) -> None:
    async with World.opened(tmp_path) as world:
        spawner = await world.submit(spec())
        spawner.ended.set()
        await world.settle()
        assert len(world.spawners.started) == 2
        assert "spawner_lost" in world.journal.kinds()
        report = world.job_service.job("j")
        assert report is not None
        assert (report.state, report.restarts_used) == (JobState.RUNNING, 1)


async def test_stop_and_restart_on_request(tmp_path: Path) -> None:
    async with World.opened(tmp_path) as world:
        await world.submit(spec(max_restarts=0))
        assert world.job_service.restart("j", reason="asked") == 1
        await world.settle()
        report = world.job_service.job("j")
        assert report is not None
        assert (report.cycle, report.restarts_used) == (1, 0)
        world.job_service.stop("j", reason="enough", signal=0)
        ended = await world.job_service.wait("j")
        assert ended.verdict is not None
        assert (ended.verdict.state, ended.verdict.exit_code) == (JobState.STOPPED, 93)


async def test_a_job_that_is_ending_is_not_said_to_restart(tmp_path: Path) -> None:
    async with World.opened(tmp_path) as world:
        spawner = await world.submit(spec())
        spawner.silent.add(link.Signal)  # the ranks take time to end
        world.job_service.stop("j", reason="enough", signal=0)
        await world.settle()
        with pytest.raises(NotNowError, match=r"cannot restart job j: it is ending \(enough\)"):
            world.job_service.restart("j", reason="asked")
        for local_rank in range(2):
            spawner.exit(0, local_rank, signal=15)
        await world.job_service.wait("j")


async def test_end_all_ends_every_job_and_takes_no_new_one(tmp_path: Path) -> None:
    async with World.opened(tmp_path) as world:
        await world.submit(spec("a", ranks=1))
        await world.submit(spec("b", ranks=1))
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(world.job_service.end_all, "node goes down")
        assert world.job_service.live_jobs() == []
        with pytest.raises(CordonedError, match="cordoned"):
            await world.job_service.submit(spec("c"), {})


async def test_refusals_name_what_is_wrong(tmp_path: Path) -> None:
    async with World.opened(tmp_path) as world:
        await world.submit(spec())
        with pytest.raises(AlreadyExistsError, match=rf"since \S+[+-]\d\d:\d\d, under the .* with pid {os.getpid()};"):
            await world.job_service.submit(spec(), {})
        with pytest.raises(InvalidRequestError, match="cannot keep logs in"):
            await world.job_service.submit(JobSpec("k", ("t.py",), log_dir="/" + "x" * 300), {})
        assert world.claims.held == {"j"}
        with pytest.raises(NotFoundError, match="no such job"):
            world.job_service.stop("nobody", reason="", signal=0)
        with pytest.raises(NotFoundError, match="rank 9"):
            await world.job_service.stacks("j", 9)


async def test_stacks_are_taken_of_the_ranks_that_run(tmp_path: Path) -> None:
    async with World.opened(tmp_path) as world:
        await world.submit(spec())
        evidence = await world.job_service.stacks("j", None)
        assert world.stacks.asked == [{0: 1000, 1: 1001}]
        assert evidence.groups[0].ranks == (0, 1)
        await world.job_service.stacks("j", 1)
        assert world.stacks.asked[-1] == {1: 1001}


async def test_a_person_sees_which_ranks_are_stopped_and_when_silence_ends(tmp_path: Path) -> None:
    limits = HangLimits(initial_heartbeat_s=600.0, heartbeat_s=60.0)
    async with World.opened(tmp_path) as world:
        await world.submit(spec())
        world.workers.progress = {0: Progress(0.0, 0.0), 1: Progress(0.0, 0.0, heartbeat_at_s=0.0, heartbeats=1)}
        for rank, progress in world.workers.progress.items():
            world.inbox.post(node_messages.ClientJoined("j", 0, rank, limits, progress))
        await world.settle()
        world.stacks.stopped = {1001}
        report = world.job_service.job("j")
        assert report is not None
        assert [each.state for each in report.ranks] == ["running", "stopped"]
        assert [each.heartbeat_limit_s for each in report.ranks] == [600.0, 60.0]
        assert [each.heartbeat_age_s is None for each in report.ranks] == [True, False]
        assert world.job_service.jobs()[0].ranks[1].state == "stopped"


async def test_a_main_thread_that_is_watched_shows_its_age(tmp_path: Path) -> None:
    async with World.opened(tmp_path) as world:
        await world.submit(msgspec.structs.replace(spec(), auto_heartbeat_s=60.0))
        now_s = world.clock.now_s()
        world.workers.progress = {0: Progress(0.0, 0.0, executed_at_s=now_s - 3.0)}
        report = world.job_service.job("j")
        assert report is not None
        assert [(each.main_thread_age_s, each.main_thread_limit_s) for each in report.ranks] == [
            (3.0, 60.0), (None, None),
        ]  # fmt: skip
        assert [each.heartbeat_age_s for each in report.ranks] == [None, None]


async def test_watchers_get_every_event_once_and_come_to_an_end(tmp_path: Path) -> None:
    async with World.opened(tmp_path) as world:
        spawner = await world.submit(spec(ranks=1))
        async with world.job_service.subscribe("j") as events:
            spawner.exit(0, 0, code=0)
            await world.settle()
            seen = [event.sequence async for event in events]
        assert seen == list(range(seen[0], len(world.journal.events) + 1))
        async with world.job_service.subscribe("j") as events:
            assert [event async for event in events] == []


async def test_the_journal_gets_events_without_gaps_and_the_last_report(tmp_path: Path) -> None:
    async with World.opened(tmp_path) as world:
        spawner = await world.submit(spec(ranks=1))
        spawner.exit(0, 0, code=0)
        await world.settle()
        assert [event.sequence for event in world.journal.events] == list(range(1, len(world.journal.events) + 1))
        assert world.journal.reports[-1].state is JobState.SUCCEEDED
        assert "secret" not in repr(world.journal.reports + list(world.journal.events))


async def test_the_journal_learns_when_a_job_has_ended(tmp_path: Path) -> None:
    async with World.opened(tmp_path) as world:
        spawner = await world.submit(spec(ranks=1))
        world.clock.at_s += 60
        spawner.exit(0, 0, code=0)
        ended = await world.job_service.wait("j")
        saved = world.journal.reports[-1]
        assert saved.ended_at_ns == ended.ended_at_ns == saved.submitted_at_ns + 60 * 10**9


async def test_an_ended_id_is_taken_again_and_means_its_newest_run(tmp_path: Path) -> None:
    async with World.opened(tmp_path) as world:
        spawner = await world.submit(spec(ranks=1))
        spawner.exit(0, 0, code=0)
        first = await world.job_service.wait("j")
        world.clock.at_s += 1
        await world.submit(spec(ranks=1))
        report = world.job_service.job("j")
        assert report is not None
        assert (report.state, report.submitted_at_ns) == (JobState.RUNNING, first.submitted_at_ns + 10**9)
        assert report.log_dir != first.log_dir
        assert Path(report.log_dir).parent == Path(first.log_dir).parent == tmp_path / "j"
        assert [each.state for each in world.job_service.jobs()] == [JobState.RUNNING]
        assert world.claims.held == {"j"}


async def test_an_error_file_is_the_sentence_of_the_failure(tmp_path: Path) -> None:
    async with World.opened(tmp_path) as world:
        spawner = await world.submit(spec(max_restarts=0))
        spawner.errors[1] = ("ValueError: no such batch", 5.0)
        spawner.exit(0, 1, code=1)
        ended = await world.job_service.wait("j")
        assert ended.verdict is not None
        assert "ValueError: no such batch" in ended.verdict.reason


async def test_without_progress_in_the_checkpoint_file_the_job_ends_with_93(tmp_path: Path) -> None:
    async with World.opened(tmp_path) as world:
        world.files.iteration = 40
        rules = RestartRules(max_restarts=9, max_no_progress_cycles=2)
        spawner = await world.submit(
            JobSpec("j", ("t.py",), local_world_size=2, restart=rules, checkpoint_iteration_file="/ckpt/iteration")
        )
        spawner.exit(0, 1, code=1)
        await world.settle()
        world.clock.at_s += 60  # past any back-off
        world.inbox.post(node_messages.DeadlineReached())
        await world.settle()
        spawner.exit(1, 1, code=1)
        ended = await world.job_service.wait("j")
        assert ended.verdict is not None
        assert ended.verdict.exit_code == 93
        assert "40" in ended.verdict.reason


async def test_the_next_store_is_made_while_the_old_workers_end(tmp_path: Path) -> None:
    async with World.opened(tmp_path) as world:
        spawner = await world.submit(spec())
        spawner.silent.add(link.Signal)  # the other rank takes time to end
        spawner.exit(0, 1, signal=9)
        await world.settle()
        assert [type(message) for message in spawner.heard[-2:]] == [link.PrepareStore, link.ForkAhead]
        assert len([message for message in spawner.heard if isinstance(message, link.Spawn)]) == 1
        spawner.exit(0, 0, signal=15)
        await world.settle()
        assert [message.cycle for message in spawner.heard if isinstance(message, link.PrepareStore)] == [0, 1]
        assert world.job_service.jobs()[0].cycle == 1


async def test_the_end_of_the_old_store_does_not_hide_that_the_next_one_is_ready(tmp_path: Path) -> None:
    """The kernel, short of memory, kills a rank and a moment later the store host."""
    async with World.opened(tmp_path) as world:
        spawner = await world.submit(spec())
        spawner.silent.add(link.Signal)
        spawner.exit(0, 1, signal=9)
        await world.settle()
        assert [type(message) for message in spawner.heard[-2:]] == [link.PrepareStore, link.ForkAhead]
        spawner.tell(link.StoreExited(0, 78, "it was ended by SIGKILL"))
        await world.settle()
        spawner.exit(0, 0, signal=15)
        await world.settle()
        assert (world.job_service.jobs()[0].cycle, world.job_service.jobs()[0].restarts_used) == (1, 1)
        assert [message.cycle for message in spawner.heard if isinstance(message, link.Spawn)] == [0, 1]


@pytest.mark.parametrize(
    "told", [link.StoreExited(1, 79, "it was ended by SIGKILL"), link.StoreFailed(1, "no more processes")]
)
async def test_a_store_that_could_not_be_made_ahead_is_asked_for_again_when_the_workers_are_gone(
    tmp_path: Path, told: link.FromSpawner
) -> None:
    """Resources that those workers held, such as a fork bomb's processes, are then free."""
    async with World.opened(tmp_path) as world:
        spawner = await world.submit(spec())
        spawner.silent.add(link.Signal)
        spawner.exit(0, 1, signal=9)
        await world.settle()
        spawner.tell(told)
        await world.settle()
        spawner.exit(0, 0, signal=15)
        await world.settle()
        report = world.job_service.jobs()[0]
        assert (report.state, report.cycle, report.restarts_used) == (JobState.RUNNING, 1, 1)
        assert [message.cycle for message in spawner.heard if isinstance(message, link.PrepareStore)] == [0, 1, 1]
        assert [message.cycle for message in spawner.heard if isinstance(message, link.Spawn)] == [0, 1]


async def test_a_store_that_fails_when_it_is_needed_is_a_fault_of_its_cycle(tmp_path: Path) -> None:
    async with World.opened(tmp_path) as world:
        spawner = await world.submit(spec(max_restarts=2))
        spawner.silent.add(link.PrepareStore)
        spawner.exit(0, 1, signal=9)
        await world.settle()
        spawner.silent.clear()
        spawner.tell(link.StoreFailed(1, "no more processes"))
        await world.settle()
        report = world.job_service.jobs()[0]
        assert (report.state, report.cycle, report.restarts_used) == (JobState.RUNNING, 2, 2)
        assert [message.cycle for message in spawner.heard if isinstance(message, link.Spawn)] == [0, 2]


async def test_a_fixed_port_is_asked_for_only_once_the_old_store_is_gone(tmp_path: Path) -> None:
    async with World.opened(tmp_path) as world:
        fixed = JobSpec("j", ("t.py",), restart=RestartRules(max_restarts=1), master_port=29500)
        spawner = await world.submit(fixed)
        spawner.exit(0, 0, signal=9)
        await world.settle()
        kinds = [type(message) for message in spawner.heard]
        assert kinds.index(link.KillTree) < len(kinds) - 1 - kinds[::-1].index(link.PrepareStore)


async def test_what_the_checks_of_the_node_have_found_is_shown_with_the_job_and_with_the_node(tmp_path: Path) -> None:
    async with World.opened(tmp_path) as world:
        world.checks.findings = (
            HealthFinding("storage", Health.HEALTHY, "", 0.002, "/data"),
            HealthFinding("storage", Health.UNANSWERED, "/slow has not answered for 1.0 s", 1.0, "/slow"),
        )
        checked = msgspec.structs.replace(spec(), health=HealthChecks(storage_paths=("/data", "/slow")))
        await world.submit(checked)
        now_ns, why = world.clock.unix_ns(), "/slow has not answered for 1.0 s"
        expected = (
            CheckReport("storage", "healthy", "", 0.002, "/data", now_ns),
            CheckReport("storage", "unanswered", why, 1.0, "/slow", now_ns),
        )
        report = world.job_service.job("j")
        assert report is not None
        assert report.nodes[0].checks == expected
        assert world.job_service.node().checks == expected
        assert world.journal.reports[-1].nodes[0].checks == expected
        world.job_service.stop("j", reason="enough", signal=0)
        await world.job_service.wait("j")
        ended = world.job_service.job("j")
        assert ended is not None
        assert ended.nodes[0].checks == expected
        assert world.job_service.node().checks == ()


async def test_an_unhealthy_result_outlives_its_job_for_a_day_unless_there_is_a_newer_one(tmp_path: Path) -> None:
    async with World.opened(tmp_path) as world:
        checked = msgspec.structs.replace(spec(), health=HealthChecks(storage_paths=("/data",)))

        async def found(job_id: str, health: Health) -> None:
            world.checks.findings = (HealthFinding("storage", health, "", 0.002, "/data"),)
            await world.submit(msgspec.structs.replace(checked, job_id=job_id))

        def shown() -> list[str]:
            return [each.verdict for each in world.job_service.node().checks]

        await found("j", Health.UNHEALTHY)
        await world.job_service.wait("j")
        assert shown() == ["unhealthy"]
        world.clock.at_s += job_service.UNHEALTHY_KEPT_S - 1
        assert shown() == ["unhealthy"]
        world.clock.at_s += 1
        assert shown() == []
        await found("k", Health.UNHEALTHY)
        await world.job_service.wait("k")
        world.clock.at_s += 1
        await found("l", Health.HEALTHY)
        assert shown() == ["healthy"], "the node was repaired"
        world.clock.at_s += 1
        await found("m", Health.UNHEALTHY)
        await world.job_service.wait("m")
        assert shown() == ["unhealthy"], "newer than that of the job that runs"
        world.job_service.stop("l", reason="enough", signal=0)
        await world.job_service.wait("l")
        assert shown() == ["unhealthy"]
        for job_id, health, expected in (
            ("n", Health.UNANSWERED, "unhealthy"),  # It says nothing of a repair.
            ("o", Health.SKIPPED, "unhealthy"),
            ("p", Health.SUSPECT, "suspect"),
            ("q", Health.HEALTHY, "healthy"),  # newer than that of p, which runs on
        ):
            world.clock.at_s += 1
            await found(job_id, health)
            if job_id != "p":
                world.job_service.stop(job_id, reason="enough", signal=0)
                await world.job_service.wait(job_id)
            assert shown() == [expected]
