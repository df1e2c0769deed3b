"""A supervisor goes and comes back, or is full, while a command follows a job: is everything shown once?"""

from __future__ import annotations

import os
from argparse import Namespace
from collections import deque
from collections.abc import Callable, Generator, Iterator
from pathlib import Path
from types import ModuleType
from typing import Self, cast

import anyio
import pytest
from anyio import from_thread, to_thread
from msgspec.structs import replace

from supervisor.cli import logs, reconnecting_client, stop
from supervisor.cli.found_jobs import Answering, FoundJob
from supervisor.cli.reconnecting_client import SteadyClient
from supervisor.core.facts import JobState
from supervisor.edges.operators import control_api, log_follower
from supervisor.edges.operators.control_client import ControlClient, DeadlineExceededError
from supervisor.edges.operators.log_follower import LogChoice, LogPiece
from supervisor.errors import ExhaustedError, HoldfastError, NoSupervisorError, NotFoundError
from supervisor.ports.reports import JobNodeReport, JobReport, RecordedEvent
from tests.edges.operators.fake_job_service import FakeJobService, running, serving
from worker_client.spawner.output_targets import LogFile

GONE = NoSupervisorError("cannot ask the supervisor: it has gone")


class Client:
    """Has five events and one line of output; leaves in the middle, this many times."""

    def __init__(self, leaves: int, *, knows_the_job: bool = True, comes_back: bool = True) -> None:
        self.leaves = leaves
        self.knows_the_job = knows_the_job
        self.comes_back = comes_back
        self.stops = 0

    def watch(
        self, job_id: str, *, after_sequence: int, follow: bool, on_note: Callable[[str], None], this_node: bool,
        within_s: float | None,
    ) -> Generator[JobReport | RecordedEvent]:  # fmt: skip
        yield JobReport(job_id, JobState.RUNNING, 1)
        for number in range(after_sequence + 1, 6):
            yield RecordedEvent(job_id, number, number, "k", "r")
            self._leave()

    def logs(
        self, job_id: str, choice: LogChoice, *, follow: bool, on_note: Callable[[str], None], this_node: bool
    ) -> Iterator[LogPiece]:
        for piece in (b"ab", b"cde", b"f"):
            yield LogPiece(0, 0, False, piece)
            self._leave()

    def stop(
        self, job_id: str, *, reason: str, signal: int, grace_s: float | None = None, of_node: bool = False
    ) -> None:
        assert grace_s is None
        self._leave()
        self.stops += 1

    def wait_until_ready(self, timeout_s: float) -> bool:
        return self.comes_back

    def job(self, job_id: str) -> JobReport:
        if not self.knows_the_job:
            raise NotFoundError("no such job")
        return JobReport(job_id, JobState.RUNNING, 1)

    def _leave(self) -> None:
        if self.leaves:
            self.leaves -= 1
            raise GONE


def steady(client: object, *, is_left: bool = True) -> tuple[SteadyClient, list[str]]:
    said: list[str] = []
    return SteadyClient(client, "j", say=said.append, is_left=lambda _: is_left), said  # pyright: ignore[reportArgumentType]


@pytest.mark.parametrize("leaves", [0, 1, 3])
def test_each_event_and_each_byte_is_told_once(leaves: int) -> None:
    client, said = steady(Client(leaves))
    events = [each.sequence for each in client.watch(on_note=said.append) if isinstance(each, RecordedEvent)]
    assert events == [1, 2, 3, 4, 5]
    client, said = steady(Client(leaves))
    assert b"".join(piece.data for piece in client.logs(LogChoice(), on_note=said.append)) == b"abcdef"


def test_each_source_of_a_jobs_events_numbers_them_itself_and_each_event_is_told_once() -> None:
    nodes = (JobNodeReport("n0", "active"), JobNodeReport("n1", "active"))
    lives, asked, errors = [["a", "b"], ["c", "a", "b", "d"]], list[int](), list[NoSupervisorError]()

    def events(*kinds: str) -> Iterator[RecordedEvent]:
        return (RecordedEvent("j", number, 5, kind, "r") for number, kind in enumerate(kinds, 1))

    def watch(*_: object, after_sequence: int, **__: object) -> Generator[JobReport | RecordedEvent]:
        asked.append(after_sequence)
        yield JobReport("j", JobState.RUNNING, 1, nodes=nodes[: len(asked)])  # The other node joins later.
        yield from events(*lives.pop(0))
        raise GONE

    def journal(error: NoSupervisorError) -> Iterator[RecordedEvent]:
        errors.append(error)
        return events("b", "e")

    client = Client(0)
    client.watch = watch
    client.wait_until_ready = lambda timeout_s: bool(lives)
    following, said = steady(client, is_left=False)
    told = following.watch(on_note=said.append, then=journal)
    assert [each.kind for each in told if isinstance(each, RecordedEvent)] == ["a", "b", "c", "d", "e"]
    assert (asked, errors) == ([0, 0], [GONE])


def test_of_this_node_alone_the_next_supervisor_tells_what_is_new() -> None:
    client, asked = Client(1), list[int]()
    watch = client.watch

    def noted(*names: str, after_sequence: int, **more: object) -> Generator[JobReport | RecordedEvent]:
        asked.append(after_sequence)
        return watch(*names, after_sequence=after_sequence, **more)  # pyright: ignore[reportArgumentType]

    client.watch = noted
    following, said = steady(client)
    told = [each for each in following.watch(on_note=said.append, this_node=True) if isinstance(each, RecordedEvent)]
    assert ([each.sequence for each in told], asked) == ([1, 2, 3, 4, 5], [0, 1])


def test_of_one_node_no_earlier_cycle_is_read_again() -> None:
    asked: list[int] = []

    def logs(job_id: str, choice: LogChoice, **_: object) -> Iterator[LogPiece]:
        asked.append(choice.first_cycle)
        yield LogPiece(0, 2, False, b"a", 7)
        if len(asked) % 2:
            raise GONE

    client = Client(0)
    client.logs = logs
    for this_node in (True, False):
        following, said = steady(client)
        assert [each.data for each in following.logs(LogChoice(), on_note=said.append, this_node=this_node)] == [b"a"]
    assert asked == [0, 2, 0, 0]


def test_a_supervisor_that_serves_one_job_is_not_waited_for() -> None:
    following, said = steady(Client(1))
    told = following.watch(on_note=said.append, comes_back=False)
    assert isinstance(next(told), JobReport)
    next(told)
    with pytest.raises(NoSupervisorError):
        next(told)
    assert said == []


class Output:
    """A rank's real files, of which each supervisor sends what is there, and then goes. The rank prints in between."""

    def __init__(self, folder: Path, *, of_version_without_places: bool = False) -> None:
        self.log_dir = folder / "job"
        self.printed = b""
        self.of_version_without_places = of_version_without_places
        self.lines_in_absence = [0, 3, 20, 15, 20, 0]  # of 10 bytes each; a file takes 200
        self._file = LogFile(str(self.log_dir / "cycle_0/rank_0/stdout.log"), 200, unexpected, needed=True)
        self._write(12)

    def logs(self, job_id: str, choice: LogChoice, **_: object) -> Iterator[LogPiece]:
        for piece in log_follower.read(self.log_dir, job_id, choice):
            yield replace(piece, file=0, offset=0) if self.of_version_without_places else piece
        if self.lines_in_absence:
            self._write(self.lines_in_absence.pop(0))
            raise GONE

    def wait_until_ready(self, timeout_s: float) -> bool:
        return True

    def job(self, job_id: str) -> JobReport:
        return JobReport(job_id, JobState.RUNNING, 1)

    def _write(self, lines: int) -> None:
        for _ in range(lines):
            line = b"line %4d\n" % len(self.printed)
            self.printed += line
            self._file.write(line)


def unexpected(dropped_bytes: int, reason: str) -> None:
    raise AssertionError(reason)


def test_of_a_rotated_stream_each_byte_is_told_once_though_the_first_ones_come_no_more(tmp_path: Path) -> None:
    output = Output(tmp_path)
    following, said = steady(output)
    shown = b"".join(piece.data for piece in following.logs(LogChoice(), on_note=said.append))
    assert len(output.printed) > 3 * 200  # three rotations
    assert shown == output.printed


def test_after_two_rotations_in_its_absence_all_that_is_left_is_shown(tmp_path: Path) -> None:
    output = Output(tmp_path)
    output.lines_in_absence = [20, 45, 0]
    following, said = steady(output)
    shown = b"".join(piece.data for piece in following.logs(LogChoice(), on_note=said.append))
    assert shown == output.printed[:320] + output.printed[400:], "the rest of a file that was removed is lost"


def test_a_supervisor_that_does_not_say_where_its_bytes_are_is_followed_by_their_count(tmp_path: Path) -> None:
    output = Output(tmp_path, of_version_without_places=True)
    output.lines_in_absence = [0, 3, 10]  # one rotation: all of it is still there
    following, said = steady(output)
    shown = b"".join(piece.data for piece in following.logs(LogChoice(), on_note=said.append))
    assert shown == output.printed


def test_another_file_that_got_the_inode_of_a_removed_one_is_new() -> None:
    def piece(file: int, offset: int, data: bytes) -> LogPiece:
        return LogPiece(0, 0, False, data, file, offset)

    client = Client(0)
    lives = [
        [piece(7, 0, b"a"), piece(7, 1, b"b"), piece(8, 0, b"cd")],
        [piece(8, 0, b"cdE"), piece(7, 0, b"FG"), piece(7, 2, b"H")],
        [piece(8, 0, b"cdE"), piece(7, 0, b"FG"), piece(7, 2, b"HI")],
    ]

    def logs(*_: object, **__: object) -> Iterator[LogPiece]:
        yield from lives.pop(0)
        if lives:
            raise GONE

    client.logs = logs
    following, said = steady(client)
    assert b"".join(each.data for each in following.logs(LogChoice(), on_note=said.append)) == b"abcdEFGHI"


def test_a_stop_reaches_the_supervisor_that_comes() -> None:
    client = Client(1)
    steady(client)[0].stop(reason="r", signal=15)
    assert client.stops == 1


@pytest.mark.parametrize("client", [Client(1, comes_back=False), Client(1, knows_the_job=False)])
def test_it_gives_up_once_nothing_of_the_job_is_left_or_known(client: Client) -> None:
    following, said = steady(client, is_left=False)
    with pytest.raises(NoSupervisorError, match="it has gone"):
        list(following.watch(on_note=said.append))


class Away(Client):
    """Leaves once, and is looked for in vain for so long."""

    def __init__(self, away_s: float) -> None:
        super().__init__(1)
        self.away_s = away_s

    def wait_until_ready(self, timeout_s: float) -> bool:
        self.away_s -= timeout_s
        return self.away_s < 0


def test_a_command_that_can_t_see_the_processes_of_a_job_waits_as_long_as_they_may_be_left() -> None:
    """It has a /tmp of its own, in a container or under Slurm, so that it sees no claim even while the job runs."""
    following, said = steady(Away(30.0), is_left=False)
    events = [each.sequence for each in following.watch(on_note=said.append) if isinstance(each, RecordedEvent)]
    assert events == [1, 2, 3, 4, 5]
    beside = SteadyClient(
        Away(30.0),  # pyright: ignore[reportArgumentType]
        "j",
        say=said.append,
        is_left=lambda _: False,
        hides_claims=following.hides_claims,
    )
    assert b"".join(piece.data for piece in beside.logs(LogChoice(), on_note=said.append)) == b"abcdef"


class Supervisors:
    """The supervisor that a command has found, with its job. A context manager."""

    history = None

    def __init__(self, client: object) -> None:
        self._client = cast("ControlClient", client)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None: ...

    def find(self, name: str, **_: object) -> FoundJob:
        return FoundJob(JobReport(name, JobState.RUNNING, 1), Answering(self._client, False, os.geteuid()))

    def live_parts(self, job: FoundJob) -> list[FoundJob]:
        return [job]


@pytest.mark.parametrize("command", [logs, stop])
def test_such_a_command_that_does_not_watch_the_job_knows_from_its_search_that_it_is_live(
    monkeypatch: pytest.MonkeyPatch, capfdbinary: pytest.CaptureFixture[bytes], command: ModuleType
) -> None:
    client = Away(30.0)

    def supervisors(_: Namespace, *, waits: bool) -> Supervisors:
        assert waits
        return Supervisors(client)

    monkeypatch.setattr(command, "Supervisors", supervisors)
    chosen = Namespace(rank=0, cycle=None, tail=0, follow=True, output="text", reason="r", signal=15, wait=False)
    assert command.execute(Namespace(job="no-claim-here", **vars(chosen))) == 0
    shown = capfdbinary.readouterr().out
    assert (client.stops, shown) == ((1, b"") if command is stop else (0, b"abcdef"))


def test_such_a_command_gives_up_once_nothing_can_be_left_and_knows_how_long_it_has_waited() -> None:
    following, said = steady(Away(3600.0), is_left=False)
    with pytest.raises(NoSupervisorError):
        list(following.watch(on_note=said.append))
    assert following.waited_s == 70.0


def test_a_command_that_sees_the_processes_of_a_job_does_not_wait_once_they_have_ended() -> None:
    left = [True]
    client, said = Away(3600.0), list[str]()
    following = SteadyClient(client, "j", say=said.append, is_left=lambda _: left[0])  # pyright: ignore[reportArgumentType]

    def ends(told: object) -> None:
        left[0] = isinstance(told, JobReport)

    with pytest.raises(NoSupervisorError):
        deque(map(ends, following.watch(on_note=said.append)))
    assert following.waited_s == 12.0


def test_such_a_command_goes_on_asking_a_full_supervisor(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reconnecting_client, "LOOK_AGAIN_S", 0.01)
    monkeypatch.setattr(reconnecting_client, "RETURNS_WITHIN_S", 0.1)
    refusals = [ExhaustedError("cannot answer: full")] * 20

    def watch(*_: object, **__: object) -> Generator[JobReport | RecordedEvent]:
        yield JobReport("j", JobState.RUNNING, 1)
        if refusals:
            raise refusals.pop()
        yield RecordedEvent("j", 1, 0, "k", "r")

    client = Client(0)
    client.watch = watch
    following, said = steady(client, is_left=False)
    assert [each.kind for each in following.watch(on_note=said.append) if isinstance(each, RecordedEvent)] == ["k"]


@pytest.mark.parametrize("later", [(), (JobReport("j", JobState.FAILED, 1, exit_code=1),)])
def test_such_a_command_gives_up_a_supervisor_that_keeps_refusing_and_calls_the_job_live_no_more(
    monkeypatch: pytest.MonkeyPatch, later: tuple[JobReport, ...]
) -> None:
    """The daemon was replaced, the job has ended meanwhile, and the disk with its history hangs."""
    monkeypatch.setattr(reconnecting_client, "LOOK_AGAIN_S", 0.001)
    monkeypatch.setattr(reconnecting_client, "RETURNS_WITHIN_S", 0.01)
    monkeypatch.setattr(reconnecting_client, "RETURNS_TO_JOB_WITHIN_S", 0.03)
    calls = list[int]()

    def watch(*_: object, **__: object) -> Generator[JobReport | RecordedEvent]:
        calls.append(len(calls))
        yield from later if calls[1:] else (JobReport("j", JobState.RUNNING, 1),)
        if len(calls) == 1_000:
            raise AssertionError("it never gives up")
        raise ExhaustedError("cannot read the history: /state hangs")

    client = Client(0)
    client.watch = watch
    following, said = steady(client, is_left=False)
    with pytest.raises(ExhaustedError, match="/state hangs"):
        list(following.watch(on_note=said.append))
    assert 40 <= len(calls) <= 43


def test_another_user_s_job_of_which_no_claim_is_ever_seen_is_waited_for_no_longer() -> None:
    said = list[str]()
    following = SteadyClient(Away(3600.0), "j", say=said.append, is_left=lambda _: True, is_own=False)  # pyright: ignore[reportArgumentType]
    with pytest.raises(NoSupervisorError):
        list(following.watch(on_note=said.append))
    assert (following.waited_s, following.hides_claims.is_set()) == (12.0, False)


def test_the_last_lines_alone_can_t_be_gone_on_with() -> None:
    following, said = steady(Client(1))
    with pytest.raises(NoSupervisorError):
        list(following.logs(LogChoice(tail_lines=1), on_note=said.append))


class Full:
    """A supervisor without room for one more call."""

    def __init__(self, refusal: HoldfastError) -> None:
        self.refusal = refusal
        self.calls = 0

    def watch(self, *_: object, **__: object) -> Iterator[JobReport]:
        self.stop()
        yield from ()

    def stop(self, *_: object, **__: object) -> None:
        self.calls += 1
        raise self.refusal


async def test_a_supervisor_without_room_is_asked_until_it_has_some(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(control_api, "CONCURRENT_CALLS_MAX", 2)
    monkeypatch.setattr(reconnecting_client, "LOOK_AGAIN_S", 0.01)
    job_service, path, refused = (
        FakeJobService(running("j"), running("other")),
        tmp_path / "control.sock",
        anyio.Event(),
    )
    told: list[JobReport | RecordedEvent] = []

    def say(text: str) -> None:
        assert "2 calls are in progress already; this is tried again every 0.01 s" in text
        from_thread.run_sync(refused.set)

    with ControlClient(path) as others, ControlClient(path) as client:
        following = SteadyClient(client, "j", say=say, is_left=lambda _: True)
        async with serving(job_service, path):
            held = [others.watch("other", follow=True) for _ in range(2)]
            for each in held:
                await to_thread.run_sync(each.__next__)
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(to_thread.run_sync, lambda: told.extend(following.watch(on_note=say)))
                tasks.start_soon(to_thread.run_sync, lambda: following.stop(reason="r", signal=15))
                with anyio.fail_after(20):
                    await refused.wait()
                assert (told, job_service.calls) == ([], [])
                for each in held:
                    await to_thread.run_sync(each.close)
    assert job_service.calls == [("stop", "j", "r", 15, None)]
    last = told[-1]
    assert isinstance(last, JobReport)
    assert last.state is JobState.STOPPED


def test_a_stop_that_may_have_arrived_is_not_repeated() -> None:
    client = Full(DeadlineExceededError("cannot ask the supervisor: no answer within 10 s; try again"))
    with pytest.raises(DeadlineExceededError):
        steady(client)[0].stop(reason="r", signal=15)
    assert client.calls == 1


def test_a_full_supervisor_is_given_up_once_nothing_of_the_job_is_left(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reconnecting_client, "LOOK_AGAIN_S", 0.01)
    monkeypatch.setattr(reconnecting_client, "RETURNS_WITHIN_S", 0.1)
    following, said = steady(Full(ExhaustedError("cannot answer: full")), is_left=False)
    with pytest.raises(ExhaustedError, match="cannot answer: full"):
        list(following.watch(on_note=said.append))
    assert said == ["cannot answer: full; this is tried again every 0.01 s"]
