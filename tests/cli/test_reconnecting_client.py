"""A supervisor goes and comes back while a command follows a job: is everything shown once?"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterator

import pytest

from supervisor.cli.reconnecting_client import SteadyClient
from supervisor.core.facts import JobState
from supervisor.edges.operators.log_follower import LogChoice, LogPiece
from supervisor.errors import NoSupervisorError, NotFoundError
from supervisor.ports.reports import JobReport, RecordedEvent

GONE = NoSupervisorError("cannot ask the supervisor: it has gone")


class Client:
    """Has five events and one line of output; leaves in the middle, this many times."""

    def __init__(self, leaves: int, *, knows_the_job: bool = True, comes_back: bool = True) -> None:
        self.leaves = leaves
        self.knows_the_job = knows_the_job
        self.comes_back = comes_back
        self.stops = 0

    def watch(
        self, job_id: str, *, after_sequence: int, follow: bool, on_note: Callable[[str], None], this_node: bool
    ) -> Generator[JobReport | RecordedEvent]:
        yield JobReport(job_id, JobState.RUNNING, 1)
        for number in range(after_sequence + 1, 6):
            yield RecordedEvent(job_id, number, 0, "k", "r")
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


def steady(client: Client, *, is_left: bool = True) -> tuple[SteadyClient, list[str]]:
    said: list[str] = []
    return SteadyClient(client, "j", say=said.append, is_left=lambda _: is_left), said  # pyright: ignore[reportArgumentType]


@pytest.mark.parametrize("leaves", [0, 1, 3])
def test_each_event_and_each_byte_is_told_once(leaves: int) -> None:
    client, said = steady(Client(leaves))
    events = [each.sequence for each in client.watch(on_note=said.append) if isinstance(each, RecordedEvent)]
    assert events == [1, 2, 3, 4, 5]
    client, said = steady(Client(leaves))
    assert b"".join(piece.data for piece in client.logs(LogChoice(), on_note=said.append)) == b"abcdef"


def test_a_stop_reaches_the_supervisor_that_comes() -> None:
    client = Client(1)
    steady(client)[0].stop(reason="r", signal=15)
    assert client.stops == 1


@pytest.mark.parametrize("client", [Client(1, comes_back=False), Client(1, knows_the_job=False)])
def test_it_gives_up_once_nothing_of_the_job_is_left_or_known(client: Client) -> None:
    following, said = steady(client, is_left=False)
    with pytest.raises(NoSupervisorError, match="it has gone"):
        list(following.watch(on_note=said.append))


def test_the_last_lines_alone_can_t_be_gone_on_with() -> None:
    following, said = steady(Client(1))
    with pytest.raises(NoSupervisorError):
        list(following.logs(LogChoice(tail_lines=1), on_note=said.append))
