"""Several clients in one rank share a connection, which lives as long as the last of them."""

from __future__ import annotations

import gc
import logging
import os
import threading
import time
from collections.abc import Callable
from pathlib import Path

import anyio
import pytest
from holdfast_wire import page_layout

from supervisor.core.node import node_messages
from tests.edges.workers.worker_side import JOB_ID, TOKEN, serve, until
from tests.worker_client.fake_supervisor import FakeSupervisor
from worker_client import (
    RankMonitorClient,
    RankMonitorClientError,
    WorkloadAction,
    WorkloadControlRequest,
    workload_monitoring,
)
from worker_client.endpoint import from_environment

NewClient = Callable[[], RankMonitorClient]


def test_two_clients_share_one_connection(supervisor: FakeSupervisor, new_client: NewClient):
    first, second = new_client(), new_client()
    first.init_workload_monitoring()
    connection = supervisor.client()
    second.init_workload_monitoring()
    first.send_heartbeat()
    second.send_heartbeat()
    supervisor.wait(lambda: (seen := connection.seen()) and seen.heartbeats == 2, "both heartbeats")
    assert first.hb_timeouts == second.hb_timeouts
    first.shutdown_workload_monitoring()
    first.shutdown_workload_monitoring()
    assert not first.is_initialized
    second.send_heartbeat()
    supervisor.wait(lambda: (seen := connection.seen()) and seen.heartbeats == 3, "the second's heartbeat")
    assert not connection.of("goodbye")
    second.shutdown_workload_monitoring()
    supervisor.wait(lambda: connection.is_closed, "the end")
    assert len(connection.of("goodbye")) == 1
    assert len(supervisor.connections) == 1


def test_a_client_after_the_last_one_connects_anew(supervisor: FakeSupervisor, new_client: NewClient):
    for number in range(2):
        clients = [new_client(), new_client()]
        for client in clients:
            client.init_workload_monitoring()
        connection = supervisor.client(number)
        for client in clients:
            client.shutdown_workload_monitoring()
        supervisor.wait(lambda connection=connection: connection.is_closed, "the end")
    assert workload_monitoring.current() is None
    assert len(supervisor.connections) == 2


def test_clients_that_start_at_once_share_one_connection(supervisor: FakeSupervisor, new_client: NewClient):
    clients = [new_client() for _ in range(8)]
    threads = [threading.Thread(target=client.init_workload_monitoring) for client in clients]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(20)
    for client in clients:
        client.send_heartbeat()
    connection = supervisor.client()
    supervisor.wait(lambda: (seen := connection.seen()) and seen.heartbeats == 8, "all heartbeats")
    assert len(supervisor.connections) == 1


def test_limits_that_one_client_learns_hold_for_all(supervisor: FakeSupervisor, new_client: NewClient):
    first, second = new_client(), new_client()
    first.init_workload_monitoring()
    second.init_workload_monitoring()
    first.send_heartbeat()
    second.send_heartbeat()
    assert first.calculate_and_set_hb_timeouts()
    state = first.state_dict()
    assert second.state_dict() == state
    first.shutdown_workload_monitoring()
    second.shutdown_workload_monitoring()
    assert first.state_dict() == second.state_dict() == state


def test_a_long_silence_counts_until_monitoring_starts_again(supervisor: FakeSupervisor, new_client: NewClient):
    client = new_client()
    client.init_workload_monitoring()

    def learned_s(pause_s: float) -> float:
        client.send_heartbeat()
        time.sleep(pause_s)
        client.send_heartbeat()
        client.calculate_and_set_hb_timeouts()
        assert client.hb_timeouts is not None
        assert client.hb_timeouts.subsequent is not None
        return client.hb_timeouts.subsequent

    long_s = learned_s(0.5)
    assert learned_s(0.0) == long_s
    client.shutdown_workload_monitoring()
    client.init_workload_monitoring()
    assert learned_s(0.0) < 0.75 * long_s


def test_limits_that_the_second_client_brings_hold_for_all(supervisor: FakeSupervisor, new_client: NewClient):
    learner = new_client()
    learner.init_workload_monitoring()
    learner.send_heartbeat()
    learner.send_heartbeat()
    assert learner.calculate_and_set_hb_timeouts()
    learner.shutdown_workload_monitoring()

    first, second = new_client(), new_client()
    first.init_workload_monitoring()
    connection = supervisor.client(1)
    second.load_state_dict(learner.state_dict())
    second.init_workload_monitoring()
    supervisor.wait(lambda: connection.of("limits_calculated"), "the loaded limits")
    assert first.state_dict() == second.state_dict() == learner.state_dict()


def test_a_client_ends_its_own_sections_only(supervisor: FakeSupervisor, new_client: NewClient):
    first, second = new_client(), new_client()
    first.init_workload_monitoring()
    second.init_workload_monitoring()
    connection = supervisor.client()

    def are_open(*names: str) -> None:
        supervisor.wait(lambda: (seen := connection.seen()) and set(seen.open_sections) == set(names), f"only {names}")

    first.start_section("setup")
    second.start_section("checkpointing")
    first.end_all_sections()
    are_open("checkpointing")
    first.start_section("step")
    with pytest.raises(RankMonitorClientError, match="cannot start section 'step': it is open already"):
        second.start_section("step")
    first.shutdown_workload_monitoring()
    are_open("checkpointing")
    second.end_section("checkpointing")
    second.start_section("step")
    are_open("step")
    first.init_workload_monitoring()
    first.start_section("setup")
    second.shutdown_workload_monitoring()
    are_open("setup")
    assert len(supervisor.connections) == 1


def test_a_client_that_is_dropped_counts_as_shut_down(supervisor: FakeSupervisor, new_client: NewClient):
    """As after a caught exception in a function that had its own client."""
    dropped, other = RankMonitorClient(), new_client()
    dropped.init_workload_monitoring()
    other.init_workload_monitoring()
    connection = supervisor.client()
    dropped.start_section("step")
    del dropped
    gc.collect()
    after = new_client()
    after.init_workload_monitoring()
    after.start_section("step")
    after.end_section("step")
    after.shutdown_workload_monitoring()
    assert not connection.of("goodbye")
    other.shutdown_workload_monitoring()
    supervisor.wait(lambda: connection.is_closed, "the end")
    assert len(connection.of("goodbye")) == 1
    assert len(supervisor.connections) == 1


def test_the_last_client_that_is_dropped_ends_the_monitoring(supervisor: FakeSupervisor):
    dropped = RankMonitorClient()
    dropped.init_workload_monitoring()
    connection = supervisor.client()
    del dropped
    gc.collect()
    supervisor.wait(lambda: connection.of("goodbye"), "the goodbye")
    assert workload_monitoring.current() is None


def test_sections_before_the_supervisor_answers_have_owners_too(
    supervisor: FakeSupervisor, new_client: NewClient, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(workload_monitoring, "WELCOME_WAIT_S", 0.0)
    supervisor.answers = False
    first, second = new_client(), new_client()
    first.init_workload_monitoring()
    second.init_workload_monitoring()
    first.start_section("setup")
    second.start_section("step")
    first.shutdown_workload_monitoring()
    connection = supervisor.client()
    supervisor.welcome(connection)
    supervisor.wait(lambda: (seen := connection.seen()) and set(seen.open_sections) == {"step"}, "step alone")


def test_the_clocks_start_with_the_first_client_not_with_the_connection(
    supervisor: FakeSupervisor, new_client: NewClient
):
    """A wrapped call may have opened it long before."""
    held = workload_monitoring.acquire(from_environment(os.environ), rank=3, local_rank=1, begin=False)
    connection = supervisor.client()
    if connection.page is not None:
        assert connection.page[page_layout.WORD_INITIALISED_NS] == 0
    before_ns = time.monotonic_ns()
    first, second = new_client(), new_client()
    first.init_workload_monitoring()
    supervisor.wait(lambda: (seen := connection.seen()) and seen.initialised_ns >= before_ns, "the first init")
    first.send_heartbeat()
    second.init_workload_monitoring()
    second.send_heartbeat()
    supervisor.wait(lambda: (seen := connection.seen()) and seen.heartbeats == 2, "both heartbeats")
    seen = connection.seen()
    assert seen is not None
    if connection.page is not None:
        assert before_ns <= seen.initialised_ns <= seen.heartbeat_ns
    first.shutdown_workload_monitoring()
    second.shutdown_workload_monitoring()
    assert workload_monitoring.current() is held
    assert not connection.of("goodbye")
    held.release()
    supervisor.wait(lambda: connection.of("goodbye"), "the goodbye")


def test_a_second_number_of_warm_up_steps_is_told_to_be_too_late(
    supervisor: FakeSupervisor, new_client: NewClient, caplog: pytest.LogCaptureFixture
):
    new_client().init_workload_monitoring(num_warmup_iters=7)
    with caplog.at_level(logging.WARNING, logger="holdfast"):
        new_client().init_workload_monitoring(num_warmup_iters=7)
        new_client().init_workload_monitoring()
        assert not caplog.records
        new_client().init_workload_monitoring(num_warmup_iters=9)
    assert "num_warmup_iters=9 comes too late" in caplog.text


def test_without_a_supervisor_clients_share_too_and_a_later_one_may_find_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, new_client: NewClient, rank_environment: Path
):
    monkeypatch.delenv("HOLDFAST_SOCKET")
    first, second = new_client(), new_client()
    first.init_workload_monitoring()
    first.send_heartbeat()
    monkeypatch.setenv("HOLDFAST_SOCKET", str(rank_environment))
    supervisor = FakeSupervisor(rank_environment)
    try:
        second.init_workload_monitoring()
        connection = supervisor.client()
        first.send_heartbeat()
        supervisor.wait(lambda: (seen := connection.seen()) and seen.heartbeats == 2, "both heartbeats")
    finally:
        supervisor.stop()


async def test_a_real_supervisor_keeps_the_one_connection(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, new_client: NewClient
):
    token = tmp_path / "token"
    token.write_bytes(TOKEN)
    token.chmod(0o600)
    async with serve(tmp_path) as served:
        environment = {
            "HOLDFAST_SOCKET": str(served.path), "HOLDFAST_JOB_ID": JOB_ID, "HOLDFAST_TOKEN_FILE": str(token),
            "HOLDFAST_CYCLE": "0", "RANK": "1", "LOCAL_RANK": "1", "WORLD_SIZE": "4",
        }  # fmt: skip
        for name, value in environment.items():
            monkeypatch.setenv(name, value)
        callback, own = new_client(), new_client()
        await anyio.to_thread.run_sync(callback.init_workload_monitoring)
        await anyio.to_thread.run_sync(own.init_workload_monitoring)
        callback.send_heartbeat()
        own.start_section("step")
        own.send_heartbeat()
        progress = served.server.read_progress(JOB_ID, 0, 1)
        assert progress is not None
        assert (progress.heartbeats, [name for name, _ in progress.open_sections]) == (2, ["step"])
        request = WorkloadControlRequest(WorkloadAction.Continue, f"from {os.getpid()}")
        await anyio.to_thread.run_sync(new_client().send_workload_control_request, request)
        callback.shutdown_workload_monitoring()
        own.end_section("step")
        own.send_heartbeat()
        progress = served.server.read_progress(JOB_ID, 0, 1)
        assert progress is not None
        assert (progress.heartbeats, progress.open_sections) == (3, ())
        await anyio.to_thread.run_sync(own.shutdown_workload_monitoring)
        await until(lambda: served.of(node_messages.ClientLeft))
        assert len(served.of(node_messages.ClientJoined)) == 1
        assert len(served.of(node_messages.ControlRequested)) == 1
