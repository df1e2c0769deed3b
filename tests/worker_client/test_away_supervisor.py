"""A supervisor that is missing, late, stopped, hostile or gone costs training nothing."""

from __future__ import annotations

import fcntl
import logging
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Generator, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from holdfast_wire.v1 import worker_pb2 as wire

from tests.worker_client.fake_supervisor import FakeSupervisor
from worker_client import RankMonitorClient, RankMonitorClientError, WorkloadAction, WorkloadControlRequest
from worker_client.workload_monitoring import WELCOME_WAIT_S

NewClient = Callable[[], RankMonitorClient]
PROMPT_S = 1.0  # "at once", on a busy machine


@contextmanager
def _at_most(limit_s: float) -> Generator[None]:
    start_s = time.monotonic()
    yield
    assert time.monotonic() - start_s < limit_s


def _use_everything(client: RankMonitorClient) -> None:
    for name in ("step", "mine"):
        client.start_section(name)
        client.end_section(name)
    for _ in range(3):
        client.send_heartbeat()
    client.start_section("left open")
    client.end_all_sections()
    assert client.calculate_and_set_hb_timeouts() is True
    assert client.calculate_and_set_section_timeouts() is False
    client.load_state_dict(client.state_dict())


def test_without_a_supervisor_one_warning_and_nothing_else(
    new_client: NewClient, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
):
    for name in ("HOLDFAST_SOCKET", "FT_RANK_MONITOR_IPC_SOCKET", "FT_LAUNCHER_IPC_SOCKET", "RANK", "WORLD_SIZE"):
        monkeypatch.delenv(name, raising=False)
    client = new_client()
    with _at_most(PROMPT_S):
        client.init_workload_monitoring()
        _use_everything(client)
    with pytest.raises(RankMonitorClientError):
        client.init_workload_monitoring()
    assert client.hb_timeouts is not None
    assert client.section_timeouts is not None
    client.shutdown_workload_monitoring()
    with pytest.raises(RankMonitorClientError, match="not initialized"):
        client.send_heartbeat()
    warnings = [record.getMessage() for record in caplog.records if record.levelno >= logging.WARNING]
    assert warnings == [
        "rank 0: this rank is not monitored: HOLDFAST_SOCKET is not set; start the script with `holdfast run`"
    ]
    assert "holdfast-channel" not in {thread.name for thread in threading.enumerate()}


@pytest.mark.parametrize("socket_is_there", [False, True])
def test_nobody_answers(
    rank_environment: Path, new_client: NewClient, caplog: pytest.LogCaptureFixture, socket_is_there: bool
):
    dead = socket.socket(socket.AF_UNIX)
    if socket_is_there:
        dead.bind(str(rank_environment))
    dead.close()
    client = new_client()
    with _at_most(PROMPT_S):
        client.init_workload_monitoring()
        _use_everything(client)
    warnings = [record.getMessage() for record in caplog.records if record.levelno >= logging.WARNING]
    assert len([text for text in warnings if "cannot be reached" in text]) == 1
    rank_environment.unlink(missing_ok=True)
    served = FakeSupervisor(rank_environment)
    served.wait(lambda: served.connections, "the client that comes by itself")
    served.stop()


def test_a_late_welcome_takes_over_what_is_open(supervisor: FakeSupervisor, new_client: NewClient):
    supervisor.answers = False
    client = new_client()
    with _at_most(WELCOME_WAIT_S + PROMPT_S):
        client.init_workload_monitoring()
    client.start_section("step")
    client.start_section("mine")
    client.start_section("mine")
    client.start_section("setup")
    client.end_section("setup")
    client.send_heartbeat()
    connection = supervisor.client()
    supervisor.welcome(connection)
    supervisor.wait(lambda: (seen := connection.seen()) and seen.heartbeats and seen.open_sections, "progress")
    seen = connection.seen()
    assert seen is not None
    assert set(seen.open_sections) == {"step"}
    assert seen.first_step_seen
    client.end_section("mine")
    client.end_section("mine")
    client.end_section("step")
    with pytest.raises(RankMonitorClientError):
        client.end_section("step")


def test_a_refusal_is_final_or_not(rank_environment: Path, new_client: NewClient, caplog: pytest.LogCaptureFixture):
    served = FakeSupervisor(rank_environment, refusal=wire.Refused(reason="cannot admit you: try later", retry=True))
    client = new_client()
    client.init_workload_monitoring()
    _use_everything(client)
    served.wait(lambda: len(served.connections) >= 2, "another try")
    served.refusal = wire.Refused(reason="cannot admit you: wrong job", retry=False)
    served.wait(lambda: "holdfast-channel" not in {thread.name for thread in threading.enumerate()}, "the end")
    assert "wrong job" in caplog.text
    client.send_heartbeat()
    client.shutdown_workload_monitoring()
    served.stop()


@pytest.fixture
def supervisor_process(rank_environment: Path, request: pytest.FixtureRequest) -> Iterator[subprocess.Popen[str]]:
    command = [sys.executable, "-m", "tests.worker_client.fake_supervisor", str(rank_environment), request.param]
    root = Path(__file__).parents[2]
    process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, cwd=root)
    assert process.stdout is not None
    assert process.stdout.readline() == "ready\n"
    yield process
    process.kill()
    process.communicate()


@pytest.mark.parametrize("supervisor_process", ["page", "frames"], indirect=True)
def test_a_stopped_supervisor_costs_training_nothing(
    supervisor_process: subprocess.Popen[str], new_client: NewClient, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr("worker_client.rank_monitor_client.CONTROL_WAIT_S", 0.2)
    client = new_client()
    client.init_workload_monitoring()
    assert client.cfg is not None
    assert client.cfg.rank_section_timeouts, "not connected"
    supervisor_process.send_signal(signal.SIGSTOP)
    start_s = time.monotonic()
    for _ in range(20_000):
        client.send_heartbeat()
        client.start_section("step")
        client.end_section("step")
    assert time.monotonic() - start_s < 10
    assert client.calculate_and_set_hb_timeouts() is True
    with _at_most(PROMPT_S):
        client.send_workload_control_request(WorkloadControlRequest(WorkloadAction.Continue))
    second = new_client()
    with _at_most(WELCOME_WAIT_S + PROMPT_S):
        second.init_workload_monitoring()
    second.send_heartbeat()
    supervisor_process.send_signal(signal.SIGKILL)
    for _ in range(1000):
        client.send_heartbeat()
    with _at_most(PROMPT_S):
        client.shutdown_workload_monitoring()


def test_a_full_backlog_is_no_wait(rank_environment: Path, new_client: NewClient):
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(rank_environment))
        listener.listen(0)
        waiting = socket.socket(socket.AF_UNIX)
        waiting.connect(str(rank_environment))
        client = new_client()
        with _at_most(PROMPT_S):
            client.init_workload_monitoring()
            _use_everything(client)
            client.shutdown_workload_monitoring()
        waiting.close()


def test_a_flood_of_heartbeats_is_a_trickle_of_frames(frames_supervisor: FakeSupervisor, new_client: NewClient):
    frames_supervisor.limits = wire.Limits(heartbeat_s=1)  # ten frames a second
    client = new_client()
    client.init_workload_monitoring()
    connection = frames_supervisor.client()
    start_s = time.monotonic()
    beats = 0
    while time.monotonic() - start_s < 1:
        for _ in range(1000):
            client.send_heartbeat()
        beats += 1000
    assert beats > 20_000
    frames_supervisor.wait(lambda: (seen := connection.seen()) and seen.heartbeats == beats, "the last beat")
    took_s = time.monotonic() - start_s
    assert connection.progress_frames <= 10 * took_s + 3


def test_new_limits_come_after_the_progress_that_they_judge(frames_supervisor: FakeSupervisor, new_client: NewClient):
    frames_supervisor.limits = wire.Limits(heartbeat_s=100)  # a frame a second
    client = new_client()
    client.init_workload_monitoring()
    connection = frames_supervisor.client()
    for _ in range(3):
        client.send_heartbeat()
    client.calculate_and_set_hb_timeouts()
    frames_supervisor.wait(lambda: connection.of("limits_calculated"), "limits")
    seen = connection.seen()
    assert seen is not None
    assert seen.heartbeats == 3


def test_an_idle_channel_sleeps(supervisor: FakeSupervisor, new_client: NewClient):
    client = new_client()
    client.init_workload_monitoring()
    connection = supervisor.client()
    client.send_heartbeat()
    supervisor.wait(lambda: (seen := connection.seen()) and seen.heartbeats == 1, "the beat")
    task = next(
        task
        for task in Path("/proc/self/task").iterdir()
        if int(task.name) == next(t.native_id for t in threading.enumerate() if t.name == "holdfast-channel")
    )

    def wakeups() -> str:
        return next(line for line in (task / "status").read_text().splitlines() if line.startswith("voluntary"))

    threading.Event().wait(0.2)  # the trailing frame, if there is one, has gone
    before = wakeups()
    threading.Event().wait(0.5)
    assert wakeups() == before


# --- a peer that is not what it should be --------------------------------------------------------------------------


@pytest.mark.parametrize(
    "garbage",
    [b"\xff\xff\xff\xff", b"\x00\x00\x00\x02\xff\xff", b"\x00\x00\x00\x04\x1a\x02\x08\x01", b"GET / HTTP/1.1\r\n\r\n"],
    ids=["length", "no protobuf", "before welcome", "http"],
)
def test_garbage_ends_the_connection_and_nothing_else(rank_environment: Path, new_client: NewClient, garbage: bytes):
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(rank_environment))
        listener.listen()
        client = new_client()
        starting = threading.Thread(target=client.init_workload_monitoring)
        starting.start()
        for _ in range(2):
            peer, _ = listener.accept()
            peer.recv(65536)
            peer.sendall(garbage)
            assert peer.recv(65536) == b""
            peer.close()
        starting.join()
        _use_everything(client)
        client.shutdown_workload_monitoring()


@pytest.mark.parametrize("flaw", ["not sealed", "layout", "no descriptor"])
def test_a_page_that_cannot_be_used_becomes_frames(
    page_supervisor: FakeSupervisor, new_client: NewClient, flaw: str, monkeypatch: pytest.MonkeyPatch
):
    if flaw == "not sealed":
        page_supervisor.seals = fcntl.F_SEAL_GROW
    elif flaw == "layout":
        page_supervisor.layout_version = 99
    else:
        monkeypatch.setattr(socket, "send_fds", lambda sock, data, fds: sock.send(data[0]))  # pyright: ignore[reportUnknownLambdaType, reportUnknownArgumentType, reportUnknownMemberType]
    client = new_client()
    client.init_workload_monitoring()
    client.send_heartbeat()
    connection = page_supervisor.client(1)
    assert not connection.hello.can_share_page
    page_supervisor.wait(lambda: (seen := connection.seen()) and seen.heartbeats == 1, "the beat by frame")


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can be two users")
def test_a_squatter_gets_no_token(rank_environment: Path, new_client: NewClient, caplog: pytest.LogCaptureFixture):
    script = (
        "import os, socket, sys\n"
        "s = socket.socket(socket.AF_UNIX); s.bind(sys.argv[1]); os.setresuid(4321, 4321, 4321); s.listen()\n"
        "print('ready', flush=True); c, _ = s.accept(); print(c.recv(9999), flush=True)"
    )
    command = [sys.executable, "-c", script, str(rank_environment)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as squatter:
        assert squatter.stdout is not None
        assert squatter.stdout.readline() == "ready\n"
        client = new_client()
        client.init_workload_monitoring()
        assert squatter.stdout.readline() == "b''\n"
        client.shutdown_workload_monitoring()
    assert "the socket is served by uid 4321, not by root or this user" in caplog.text
