"""Does each call answer from the job service and the history, and refuse with the right sentence?"""

from __future__ import annotations

import os
from collections.abc import AsyncGenerator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import TypeVar

import anyio
import pytest
from anyio import to_thread
from holdfast_wire.v1 import control_pb2 as wire
from msgspec.structs import replace

from supervisor.config.job_spec import JobSpec
from supervisor.core.facts import JobState
from supervisor.edges.machine.journal import journal_reader
from supervisor.edges.machine.journal.journal import Journal
from supervisor.edges.machine.journal.journal_reader import report_from_json
from supervisor.edges.operators import control_encoding, event_streams, log_merge, node_pages
from supervisor.edges.operators.control_client import ControlClient
from supervisor.edges.operators.control_service import ControlService
from supervisor.edges.operators.log_follower import LogChoice
from supervisor.errors import ExhaustedError, InvalidRequestError, NoAnswerError, NotFoundError, NotNowError
from supervisor.ports.job_requests import RendezvousRequest
from supervisor.ports.reports import JobNodeReport, JobReport, LogBytes, NodeReport, RecordedEvent
from tests.edges.operators.fake_job_service import FakeJobService, running, serving
from tests.edges.operators.test_event_streams import unexpected

JOB = "train-7f3a"
Answer = TypeVar("Answer")


@asynccontextmanager
async def asked(tmp_path: Path, *reports: JobReport) -> AsyncGenerator[tuple[FakeJobService, ControlClient, Journal]]:
    """Yields a job service, a blocking client for calls in threads, and the journal behind it."""
    journal = Journal(tmp_path, on_alarm=unexpected)
    journal.start()
    job_service = FakeJobService(*reports, journal=journal)
    for report in reports:
        journal.save(report)
    async with serving(job_service, tmp_path / "control.sock", journal):
        with ControlClient(tmp_path / "control.sock") as client:
            yield job_service, client, journal
    journal.close()


@asynccontextmanager
async def meanwhile(job_service: FakeJobService, ask: Callable[..., None], *given: object) -> AsyncGenerator[None]:
    """Asks in a thread until the job ends, which it does after the block."""
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(to_thread.run_sync, ask, *given)
        try:
            yield
        finally:
            job_service.end(JOB, JobState.SUCCEEDED, "done")


def on_two_nodes(log_dir: Path) -> JobReport:
    nodes = (JobNodeReport("n0", "active", 0), JobNodeReport("n1", "active", 1))
    return replace(running(log_dir=str(log_dir)), nodes=nodes)


async def test_submit_hands_on_specification_and_environment(tmp_path: Path) -> None:
    spec = JobSpec("new", ("train.py",), local_world_size=2)
    async with asked(tmp_path) as (job_service, client, _):
        umask = os.umask(0o027)
        try:
            assert await to_thread.run_sync(client.submit, spec, {"HF_TOKEN": "s3cret"}) == "new"
        finally:
            os.umask(umask)
        assert job_service.submitted == [(replace(spec, umask=0o027), {"HF_TOKEN": "s3cret"})]


async def test_lists_join_live_and_recorded_jobs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    decoded: list[str] = []

    def counted(text: str) -> JobReport:
        decoded.append(text)
        return report_from_json(text)

    many = [
        replace(running(f"old-{n}", submitted_at_ns=n), state=JobState.FAILED, ended_at_ns=9) for n in range(1, 251)
    ]
    async with asked(tmp_path, running(submitted_at_ns=10**6)) as (_, client, journal):
        for report in many:
            journal.save(report)
        assert await to_thread.run_sync(journal.flush, 10)
        assert [job.job_id for job in await to_thread.run_sync(client.jobs)] == [JOB]
        monkeypatch.setattr(journal_reader, "report_from_json", counted)
        found = await to_thread.run_sync(lambda: client.jobs(include_ended=True))  # three pages
        assert len(decoded) < 2 * len(many), "not all of them for each page"
        assert [job.job_id for job in found] == [JOB, *(f"old-{n}" for n in range(250, 0, -1))]
        assert (await to_thread.run_sync(client.job, "old-7")).state == JobState.FAILED


async def test_long_command_lines_and_sentences_fit_into_a_list(tmp_path: Path) -> None:
    words = ("train.py", "x" * 100_000)
    long = [replace(running(f"{n}", submitted_at_ns=n), command=words, reason="why " * 5_000) for n in range(1, 121)]
    async with asked(tmp_path, *long) as (_, client, _):
        found = await to_thread.run_sync(lambda: client.jobs(within_s=60))
        assert [job.job_id for job in found] == [f"{n}" for n in range(120, 0, -1)]
        assert found[0].command[0] == "train.py"
        for shown in (" ".join(found[0].command), found[0].reason):
            assert len(shown) <= 16_384
            assert shown.endswith("more characters)")


async def test_a_job_of_very_many_ranks_fits_into_an_answer(tmp_path: Path) -> None:
    async with asked(tmp_path, running(JOB, ranks=80_000)) as (_, client, _):
        (found,) = await to_thread.run_sync(lambda: client.jobs(within_s=60))
        assert len(found.ranks) == 80_000


async def test_who_asks_for_a_job_that_is_being_taken_over_waits_until_it_is(tmp_path: Path) -> None:
    """The journal would say that nobody has it."""
    async with asked(tmp_path) as (job_service, client, journal):
        journal.save(running(JOB))
        job_service.coming_back[JOB] = anyio.Event()
        found: list[JobReport] = []

        async def ask() -> None:
            found.append(await to_thread.run_sync(client.job, JOB))

        async with anyio.create_task_group() as tasks:
            tasks.start_soon(ask)
            await to_thread.run_sync(client.nodes)  # The server has heard both.
            await to_thread.run_sync(client.nodes)
            assert not found
            job_service.reports[JOB] = replace(running(JOB), reason="it was taken over")
            job_service.coming_back[JOB].set()
        assert [each.reason for each in found] == ["it was taken over"]


async def test_stop_and_restart_reach_the_job_service(tmp_path: Path) -> None:
    async with asked(tmp_path, running()) as (job_service, client, _):
        assert await to_thread.run_sync(lambda: client.restart(JOB, reason="why")) == 3
        await to_thread.run_sync(lambda: client.stop(JOB, reason="", signal=2))
        stopped = ("stop", JOB, "asked for through the control API", 2, None)
        assert job_service.calls == [("restart", JOB, "why"), stopped]
        with pytest.raises(NotNowError, match=r"cannot stop job train-7f3a: it has ended \(stopped\)"):
            await to_thread.run_sync(lambda: client.stop(JOB, reason=""))
        with pytest.raises(NotNowError, match="cannot restart"):
            await to_thread.run_sync(lambda: client.restart(JOB, reason=""))
        with pytest.raises(InvalidRequestError, match="there is no signal 99"):
            await to_thread.run_sync(lambda: client.stop(JOB, reason="", signal=99))
        with pytest.raises(NotFoundError, match="cannot stop job other"):
            await to_thread.run_sync(lambda: client.stop("other", reason=""))


async def test_stacks_come_with_groups_and_notes(tmp_path: Path) -> None:
    async with asked(tmp_path, running()) as (_, client, _):
        evidence = await to_thread.run_sync(client.stacks, JOB)
        assert [group.ranks for group in evidence.groups] == [(2,), (0, 1, 3)]
        assert evidence.notes == ("rank 5: has exited",)
        with pytest.raises(NotFoundError, match="ranks 0 to 3"):
            await to_thread.run_sync(client.stacks, JOB, 99)


async def test_nodes_are_cordoned_by_name(tmp_path: Path) -> None:
    async with asked(tmp_path) as (_, client, _):
        assert (await to_thread.run_sync(lambda: client.cordon("n0", reason="disk"))).state == "cordoned"
        assert [(node.name, node.reason) for node in await to_thread.run_sync(client.nodes)] == [("n0", "disk")]
        with pytest.raises(NotNowError):
            await to_thread.run_sync(lambda: client.cordon("n0", reason="disk"))
        assert (await to_thread.run_sync(client.uncordon, "n0")).state == "ready"
        with pytest.raises(NotFoundError, match="it is not among the nodes known here; choose one of n0"):
            await to_thread.run_sync(client.uncordon, "n1")


async def test_all_pages_of_the_nodes_are_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(node_pages, "NODES_PAGE_MAX", 2)
    async with asked(tmp_path) as (job_service, client, _):
        job_service.other_nodes = [NodeReport(f"n{number}", "ready") for number in range(4, 0, -1)]
        found = await to_thread.run_sync(lambda: client.nodes(within_s=60))
        assert [node.name for node in found] == ["n0", "n1", "n2", "n3", "n4"]


async def test_a_node_is_asked_to_leave_and_waited_for(tmp_path: Path) -> None:
    async with asked(tmp_path, running()) as (job_service, client, _):
        node = await to_thread.run_sync(lambda: client.cordon("n0", reason="disk", leaves=True))
        assert node.leaves == ("train",)
        assert (await to_thread.run_sync(lambda: client.until_left(JOB, "n1"))).job_id == JOB
        assert job_service.waited_for == [(JOB, "n1")]


async def test_the_answer_of_a_supervisor_that_does_not_wait_says_nothing_of_the_node(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An older one does not know the request, and its state of the node may be that of a node that has left."""

    async def at_once(self: ControlService, request: wire.GetJobRequest) -> wire.Job:
        return control_encoding.job_to_wire(job_service.reports[request.job_id])

    monkeypatch.setattr(ControlService, "_get_job", at_once)
    left = replace(running(), nodes=(JobNodeReport("n1", "left", None),))
    async with asked(tmp_path, left) as (job_service, client, _):
        with pytest.raises(NoAnswerError, match=f"cannot wait until node n1 has left job {JOB}: .* older version"):
            await to_thread.run_sync(lambda: client.until_left(JOB, "n1"))
        job_service.reports[JOB] = replace(left, state=JobState.SUCCEEDED)
        assert (await to_thread.run_sync(lambda: client.until_left(JOB, "n1"))).state.has_ended


async def test_watch_is_a_snapshot_then_all_events_to_the_end(tmp_path: Path) -> None:
    async with asked(tmp_path, running()) as (job_service, client, _):
        job_service.publish(JOB)
        seen: list[JobReport | RecordedEvent] = []

        def watch() -> None:
            for each in client.watch(JOB, follow=True):
                seen.append(each)  # noqa: PERF402  # one by one, for the test that looks on

        async with anyio.create_task_group() as tasks:
            tasks.start_soon(to_thread.run_sync, watch)
            await until(lambda: len(seen) == 2)
            job_service.publish(JOB)
            await until(lambda: len(seen) == 3)
            job_service.end(JOB, JobState.SUCCEEDED, "done")
        assert isinstance(seen[0], JobReport)
        assert [each.sequence for each in seen if isinstance(each, RecordedEvent)] == [1, 2, 3]
        again = await to_thread.run_sync(lambda: list(client.watch(JOB, after_sequence=1)))
        assert [each.sequence for each in again if isinstance(each, RecordedEvent)] == [2, 3]


async def test_events_are_followed_though_no_leader_answers_for_a_moment(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(event_streams, "LEADER_AGAIN_S", 0.01)
    before = RecordedEvent(JOB, 1, 5, "before", "a", node="n1")
    later = replace(before, at_ns=6, kind="later")
    async with asked(tmp_path, running()) as (job_service, client, _):
        job_service.leader_events = [before]
        job_service.leader_fails = NoAnswerError("cannot ask the leader: no answer within 5 s")
        seen: list[JobReport | RecordedEvent] = []
        notes: list[str] = []

        def kinds() -> list[str]:
            return [each.kind for each in seen if isinstance(each, RecordedEvent)]

        def watch() -> None:
            for each in client.watch(JOB, follow=True, on_note=notes.append):
                seen.append(each)  # noqa: PERF402  # one by one, for the test that looks on

        async with meanwhile(job_service, watch):
            await until(lambda: notes)
            job_service.publish(JOB, "here")
            await until(lambda: "here" in kinds())
            job_service.leader_events = [later, replace(before, sequence=2)]  # The next leader numbers them itself.
            await until(lambda: "later" in kinds())
            assert not isinstance(seen[-1], JobReport)  # the job runs, and so does the watch
        assert kinds() == ["before", "here", "later", "job_ended"]
        last = seen[-1]
        assert isinstance(last, JobReport)
        assert last.state is JobState.SUCCEEDED
        assert "the leader is asked again" in notes[0]


async def test_logs_are_followed_to_the_end_of_the_job(tmp_path: Path) -> None:
    rank_dir = tmp_path / "logs" / JOB / "cycle_2" / "rank_1"
    rank_dir.mkdir(parents=True)
    log = rank_dir / "stdout.log"
    log.write_text("one\n")
    async with asked(tmp_path, running(log_dir=str(tmp_path / "logs" / JOB))) as (job_service, client, _):
        seen: list[bytes] = []

        def follow() -> None:
            for piece in client.logs(JOB, LogChoice(rank=1), follow=True):
                seen.append(piece.data)  # noqa: PERF401

        async with anyio.create_task_group() as tasks:
            tasks.start_soon(to_thread.run_sync, follow)
            await until(lambda: seen == [b"one\n"])
            with log.open("a") as file:
                file.write("two\n")
            await until(lambda: seen == [b"one\n", b"two\n"])
            job_service.end(JOB, JobState.SUCCEEDED, "done")
        with pytest.raises(NotFoundError, match="holds nothing of rank 7"):
            await to_thread.run_sync(lambda: list(client.logs(JOB, LogChoice(rank=7))))


async def test_output_before_the_first_cycle_asked_for_is_not_sent(tmp_path: Path) -> None:
    for cycle in (0, 1):
        rank_dir = tmp_path / "logs" / f"cycle_{cycle}" / "rank_0"
        rank_dir.mkdir(parents=True)
        (rank_dir / "stdout.log").write_text("here\n")
    async with asked(tmp_path, on_two_nodes(tmp_path / "logs")) as (job_service, client, _):
        job_service.output_elsewhere = {"n1": [LogBytes(2, cycle, False, b"there\n") for cycle in (0, 1)]}
        for first, expected in ((0, [(0, 0), (0, 2), (1, 0), (1, 2)]), (1, [(1, 0), (1, 2)])):
            choice = LogChoice(first_cycle=first)
            pieces = await to_thread.run_sync(lambda choice=choice: list(client.logs(JOB, choice)))
            assert sorted((piece.cycle, piece.rank) for piece in pieces) == expected


async def test_a_node_that_does_not_answer_for_a_moment_is_followed_further(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(log_merge, "LOOK_S", 0.01)
    async with asked(tmp_path, on_two_nodes(tmp_path / "logs")) as (job_service, client, _):
        job_service.output_elsewhere = {"n1": [LogBytes(2, 0, False, b"ab", 7, 0)]}
        job_service.silent_nodes = {"n1"}
        seen: list[bytes] = []
        notes: list[str] = []
        async with meanwhile(job_service, follow_all, client, seen, notes):
            await until(lambda: seen and notes)  # at once: the job runs
            more = [LogBytes(2, 0, False, b"abc", 7, 0), LogBytes(2, 0, False, b"d", 7, 3)]
            job_service.output_elsewhere["n1"] = more
            job_service.silent_nodes = set()
            await until(lambda: seen == [b"ab", b"c", b"d"])
        assert seen == [b"ab", b"c", b"d"]
        (note,) = notes
        assert note == (
            "the output of node n1 is not complete: cannot ask node n1: no answer within 5 s; "
            "the node is asked again every 0.01 s"
        )


async def test_the_last_lines_of_a_node_go_on_where_they_were_though_it_did_not_answer_for_a_moment(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(log_merge, "LOOK_S", 0.01)
    printed = [LogBytes(2, 0, False, b"%d\n" % number, 7, 2 * number) for number in range(8)]
    async with asked(tmp_path, on_two_nodes(tmp_path / "logs")) as (job_service, client, _):
        job_service.output_elsewhere = {"n1": printed[:4]}
        job_service.silent_nodes = {"n1"}
        seen: list[bytes] = []
        notes: list[str] = []
        async with meanwhile(job_service, follow_all, client, seen, notes, LogChoice(tail_lines=2)):
            await until(lambda: seen and notes)
            job_service.output_elsewhere["n1"] = printed
            job_service.silent_nodes = set()
            await until(lambda: b"7\n" in seen)
        assert b"".join(seen) == b"2\n3\n4\n5\n6\n7\n"


async def test_the_last_lines_of_a_node_that_has_closed_its_reader_go_on_where_they_were(tmp_path: Path) -> None:
    printed = [LogBytes(2, 0, False, b"%d\n" % number, 7, 2 * number) for number in range(8)]
    async with asked(tmp_path, on_two_nodes(tmp_path / "logs")) as (job_service, client, _):
        job_service.output_elsewhere, job_service.output_later = {"n1": printed[:4]}, {"n1": printed}
        notes: list[str] = []
        pieces = await to_thread.run_sync(lambda: list(client.logs(JOB, LogChoice(tail_lines=2), on_note=notes.append)))
        assert b"".join(piece.data for piece in pieces) == b"2\n3\n4\n5\n6\n7\n"
        assert notes == []


async def test_a_node_that_joins_a_job_is_followed_from_then_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(log_merge, "LOOK_S", 0.01)
    job = on_two_nodes(tmp_path / "logs")
    async with asked(tmp_path, job) as (job_service, client, _):
        job_service.output_elsewhere = {name: [LogBytes(2, 0, False, name.encode(), 7, 0)] for name in ("n1", "n2")}
        seen: list[bytes] = []
        notes: list[str] = []
        async with meanwhile(job_service, follow_all, client, seen, notes):
            await until(lambda: seen == [b"n1"])
            job_service.reports[JOB] = replace(job, nodes=(*job.nodes, JobNodeReport("n2", "active", 2)))
            await until(lambda: seen == [b"n1", b"n2"])
        assert (seen, notes) == ([b"n1", b"n2"], [])


def follow_all(client: ControlClient, seen: list[bytes], notes: list[str], choice: LogChoice | None = None) -> None:
    for piece in client.logs(JOB, choice or LogChoice(), follow=True, on_note=notes.append):
        seen.append(piece.data)  # noqa: PERF401  # one by one, for the test that looks on


async def test_a_rendezvous_is_led_where_nobody_else_can_join_it(tmp_path: Path) -> None:
    async with asked(tmp_path) as (job_service, client, _):
        safe = RendezvousRequest("torch", "10.0.0.1", 29400, everywhere=True, token_file="/srv/me/token")
        assert await to_thread.run_sync(client.lead_rendezvous, safe)
        assert not await to_thread.run_sync(client.lead_rendezvous, replace(safe, job_id="other"))
        assert job_service.calls[0] == ("lead", safe)
        for wish, why in (
            (replace(safe, token_file=""), "anybody who reaches that address could join"),
            (replace(safe, token_file="", host="127.0.0.1"), "anybody who reaches that address could join"),
            (replace(safe, token_file="token"), "a file has no absolute path"),
            (replace(safe, tls_cert="/c"), "one of tls_cert, tls_key and tls_ca is missing"),
            (replace(safe, port=0), "job, host or port is missing"),
        ):
            with pytest.raises(InvalidRequestError, match=why):
                await to_thread.run_sync(client.lead_rendezvous, wish)
        assert len(job_service.calls) == 2


async def test_a_node_shows_its_own_part_alone_where_that_is_asked_for(tmp_path: Path) -> None:
    here, there = RecordedEvent(JOB, 1, 5, "here", "a", node="n0"), RecordedEvent(JOB, 2, 5, "there", "b", node="n1")
    async with asked(tmp_path, on_two_nodes(tmp_path)) as (job_service, client, journal):
        job_service.leader_events = [here, there]
        job_service.output_elsewhere = {"n1": [LogBytes(2, 0, False, b"elsewhere")]}
        for event in (here, there):
            journal.record(event)
        assert await to_thread.run_sync(journal.flush, 10)

        def watched(*, this_node: bool) -> list[str]:
            return [each.kind for each in client.watch(JOB, this_node=this_node) if isinstance(each, RecordedEvent)]

        def printed(*, this_node: bool) -> bytes:
            return b"".join(piece.data for piece in client.logs(JOB, LogChoice(), this_node=this_node))

        assert await to_thread.run_sync(lambda: watched(this_node=False)) == ["here", "there"]
        assert await to_thread.run_sync(lambda: watched(this_node=True)) == ["here"]
        assert await to_thread.run_sync(lambda: printed(this_node=False)) == b"elsewhere"
        with pytest.raises(NotFoundError):
            await to_thread.run_sync(lambda: printed(this_node=True))


async def test_followers_of_logs_are_bounded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("supervisor.edges.operators.control_service.FOLLOWERS_MAX", 0)
    async with asked(tmp_path, running(log_dir=str(tmp_path))) as (_, client, _):
        with pytest.raises(ExhaustedError, match="readers follow logs already"):
            await to_thread.run_sync(lambda: list(client.logs(JOB, LogChoice(), follow=True)))


async def test_runs_that_show_their_output_leave_places_for_holdfast_logs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("supervisor.edges.operators.control_service.FOLLOWERS_OF_RUNS_MAX", 0)
    async with asked(tmp_path, on_two_nodes(tmp_path)) as (job_service, client, _):
        job_service.output_elsewhere = {"n1": [LogBytes(2, 0, False, b"elsewhere")]}
        with pytest.raises(ExhaustedError, match="readers follow logs already"):
            await to_thread.run_sync(lambda: list(client.logs(JOB, LogChoice(), follow=True, this_node=True)))
        (piece,) = await to_thread.run_sync(lambda: list(client.logs(JOB, LogChoice())))
        assert piece.data == b"elsewhere"


async def until(holds: object) -> None:
    assert callable(holds)
    with anyio.fail_after(10):
        while not holds():
            await anyio.lowlevel.checkpoint()
