"""Does a wrapped call share its rank's connection, and what does it leave behind? A real socket."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from pathlib import Path

import pytest
from holdfast_wire.v1 import worker_pb2 as wire

from tests.worker_client.fake_supervisor import FakeSupervisor
from worker_client import workload_monitoring
from worker_client.call_protocol import CallSettings, Entered
from worker_client.endpoint import Endpoint, from_environment
from worker_client.inprocess.coordinating import connection as module
from worker_client.inprocess.coordinating.connection import Connection, Receiver
from worker_client.inprocess.coordinating.coordination import Coordination
from worker_client.inprocess.exception import InternalError
from worker_client.inprocess.state import State
from worker_client.inprocess.watching.main_thread_watch import MainThreadWatch
from worker_client.rank_monitor_client import RankMonitorClient

CALL = 4
SOON = timedelta(seconds=20)


def no_store() -> object:
    raise AssertionError("a supervisor is given: nobody has to be found")


class Call:
    """What a wrapped call makes, in its order."""

    def __init__(self, environment: Mapping[str, str] = os.environ) -> None:
        self.pids: list[int] = []
        self.connection = Connection(environment, no_store, rank=3, soft_timeout_s=60.0)
        settings = CallSettings(*[timedelta(seconds=1)] * 7)
        self.watch = MainThreadWatch(self.connection.watch_changed)
        self.coordination = Coordination(CALL, State(3, 4), settings, self.connection.say)
        self.receiver: Receiver | None = None

    def receive(self) -> None:
        self.receiver = Receiver(self.connection, self.coordination, self.watch, self.pids.append)

    def close(self) -> None:
        if self.receiver is not None:
            self.receiver.close()
        self.connection.close()


@pytest.fixture
def call(rank_environment: Path) -> Iterator[Callable[..., Call]]:
    made: list[Call] = []

    def make(environment: Mapping[str, str] = os.environ) -> Call:
        made.append(Call(environment))
        return made[-1]

    yield make
    for each in made:
        each.close()
    assert workload_monitoring.current() is None


def test_what_a_call_says_and_hears_goes_through_it(supervisor: FakeSupervisor, call: Callable[..., Call]):
    mine = call()
    mine.receive()
    connection = supervisor.client()
    assert mine.pids == [os.getpid()], "of the process that serves it"
    with ThreadPoolExecutor(1) as main:
        entering = main.submit(mine.coordination.enter, SOON)
        supervisor.wait(lambda: connection.of("call_enter"), "the rank's arrival")
        connection.send(wire.SupervisorFrame(entered=wire.Entered(call=CALL)))
        assert entering.result(SOON.total_seconds()) == Entered(CALL, 0, (), ())
    mine.close()
    supervisor.wait(lambda: connection.is_closed, "the end")
    assert connection.of("goodbye")


def test_a_client_of_the_script_keeps_the_connection_after_the_call(
    supervisor: FakeSupervisor, call: Callable[..., Call], new_client: Callable[[], RankMonitorClient]
):
    client = new_client()
    client.init_workload_monitoring()
    mine = call()
    mine.receive()
    mine.close()
    client.send_heartbeat()
    connection = supervisor.client()
    supervisor.wait(lambda: (seen := connection.seen()) and seen.heartbeats == 1, "the heartbeat")
    assert len(supervisor.connections) == 1
    assert not connection.of("goodbye")


def test_the_page_is_no_longer_watched_after_the_call(page_supervisor: FakeSupervisor, call: Callable[..., Call]):
    mine = call()
    mine.receive()
    connection = page_supervisor.client()
    words = connection.page
    assert words is not None
    mine.watch.on()
    assert list(mine.watch.words) == list(words), "the call writes into the connection's page"
    mine.close()
    before = list(words)
    mine.watch.on()
    assert list(words) == before


@pytest.mark.parametrize(
    ("variables", "local_rank"),
    [
        ({"LOCAL_RANK": "1", "SLURM_LOCALID": "2"}, 1),
        ({"SLURM_LOCALID": "2"}, 2),
        ({"LOCAL_RANK": "first", "SLURM_LOCALID": "2"}, 2),
        ({}, 3),
    ],
)
def test_the_local_rank_is_the_launcher_s(
    page_supervisor: FakeSupervisor, call: Callable[..., Call], variables: dict[str, str], local_rank: int
):
    mine = call({name: value for name, value in os.environ.items() if name != "LOCAL_RANK"} | variables)
    mine.receive()
    assert page_supervisor.client().hello.local_rank == local_rank


def test_a_rank_that_can_hear_nobody_says_so(
    page_supervisor: FakeSupervisor, call: Callable[..., Call], monkeypatch: pytest.MonkeyPatch
):
    def no_thread(_self: object) -> None:
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr("worker_client.channel.Channel.start", no_thread)
    with pytest.raises(InternalError, match="there is no connection to a supervisor"):
        call().receive()


class Successor:
    """Where a private supervisor's successor is looked for."""

    def __init__(self, folder: Path, _environment: Mapping[str, str]) -> None:
        self.folder = folder
        self.is_closed = threading.Event()

    def find(self, _is_needed: Callable[[], bool]) -> None:
        return None

    def close(self) -> None:
        self.is_closed.set()


def test_only_a_private_supervisor_is_replaced_by_a_rank(
    page_supervisor: FakeSupervisor, call: Callable[..., Call], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
):
    served = from_environment(os.environ)
    assert isinstance(served, Endpoint)

    def find_or_start(_environment: Mapping[str, str], _open_store: object) -> Endpoint:
        return served

    def job_folder(_environment: Mapping[str, str]) -> Path:
        return tmp_path

    for name, replacement in (
        ("find_or_start", find_or_start), ("PrivateSuccessor", Successor), ("job_folder", job_folder)
    ):  # fmt: skip
        monkeypatch.setattr(module, name, replacement)
    given = call()
    given.receive()
    receiver = given.receiver
    assert given.connection.successor is None
    assert receiver is not None
    assert receiver.find(served) is served
    given.close()

    private = call({name: value for name, value in os.environ.items() if name != "HOLDFAST_SOCKET"})
    private.receive()
    successor = private.connection.successor
    assert isinstance(successor, Successor)
    assert successor.folder == tmp_path
    assert private.receiver is not None
    assert private.receiver.find(served) is None, "the successor decides"
    private.close()
    assert successor.is_closed.is_set()
