"""The API that scripts use, against a real socket, with and without a shared page."""

from __future__ import annotations

import json
import os
import sys
import threading
import time
from collections.abc import Callable
from types import SimpleNamespace

import pytest
from holdfast_wire.v1 import worker_pb2 as wire

from tests.worker_client.fake_supervisor import TOKEN, Connection, FakeSupervisor, Seen
from worker_client import (
    RankMonitorClient,
    RankMonitorClientError,
    WorkloadAction,
    WorkloadControlRequest,
    all_reduce_max,
)

NewClient = Callable[[], RankMonitorClient]


def _started(supervisor: FakeSupervisor, client: RankMonitorClient) -> Connection:
    client.init_workload_monitoring()
    return supervisor.client()


def _wait_seen(supervisor: FakeSupervisor, connection: Connection, holds: Callable[[Seen], object]) -> Seen:
    def check() -> bool:
        seen = connection.seen()
        return seen is not None and bool(holds(seen))

    supervisor.wait(check, "progress")
    seen = connection.seen()
    assert seen is not None
    return seen


def test_hello_says_who_the_rank_is(supervisor: FakeSupervisor, new_client: NewClient):
    client = new_client()
    client.init_workload_monitoring(num_warmup_iters=7)
    connection = supervisor.client()
    hello = connection.hello
    assert (hello.protocol, hello.token, hello.job_id) == (1, TOKEN, "job-7")
    assert (hello.cycle, hello.rank, hello.local_rank, hello.warm_up_steps) == (2, 3, 1, 7)
    assert abs(hello.monotonic_ns - time.monotonic_ns()) < 60e9
    assert connection.peer_pid == os.getpid()
    assert client.rank_info is not None
    assert (client.rank_info.global_rank, client.rank_info.local_rank, client.rank_info.pid) == (3, 1, os.getpid())


def test_hello_has_the_number_of_the_launcher(
    supervisor: FakeSupervisor, new_client: NewClient, monkeypatch: pytest.MonkeyPatch
):
    """The supervisor refuses any other number, and a script may make a group that numbers its ranks differently."""
    monkeypatch.setattr(all_reduce_max, "global_rank", lambda: 1)
    client = new_client()
    client.init_workload_monitoring()
    assert supervisor.client().hello.rank == 3
    assert client.rank_info is not None
    assert client.rank_info.global_rank == 1


def test_init_takes_the_configuration(supervisor: FakeSupervisor, new_client: NewClient):
    supervisor.limits = wire.Limits(
        initial_heartbeat_s=9, heartbeat_s=4, out_of_section_s=3, sections=[wire.SectionLimit(name="step", limit_s=2)]
    )
    client = new_client()
    assert (client.cfg, client.hb_timeouts, client.section_timeouts, client.rank_info) == (None, None, None, None)
    assert not client.is_initialized
    client.init_workload_monitoring()
    assert client.is_initialized
    assert client.cfg is not None
    assert (client.cfg.initial_rank_heartbeat_timeout, client.cfg.rank_heartbeat_timeout) == (9, 4)
    assert client.cfg.rank_section_timeouts == {"setup": None, "step": 2, "checkpointing": None}
    assert client.cfg.rank_out_of_section_timeout == 3
    assert (client.cfg.safety_factor, client.cfg.num_warmup_iterations) == (5.0, 5)
    assert client.hb_timeouts is not None
    assert (client.hb_timeouts.initial, client.hb_timeouts.subsequent) == (9, 4)
    assert client.hb_timeouts.are_valid
    assert not client.hb_timeouts.were_calculated
    assert client.section_timeouts is not None
    assert client.section_timeouts.section == {"setup": None, "step": 2, "checkpointing": None}
    assert not client.section_timeouts.are_valid
    assert not client.section_timeouts.were_calculated


def test_heartbeats_are_seen(supervisor: FakeSupervisor, new_client: NewClient):
    client = new_client()
    connection = _started(supervisor, client)
    seen = _wait_seen(supervisor, connection, lambda seen: seen.initialised_ns)
    assert seen.heartbeat_ns == 0
    before_ns = time.monotonic_ns()
    for _ in range(3):
        client.send_heartbeat()
    after_ns = time.monotonic_ns()
    seen = _wait_seen(supervisor, connection, lambda seen: seen.heartbeats == 3)
    slack_ns = 0 if connection.page is not None else 2_000_000_000
    assert before_ns <= seen.heartbeat_ns <= after_ns + slack_ns
    assert seen.initialised_ns <= before_ns + slack_ns


def test_sections_nest_overlap_and_close_in_any_order(supervisor: FakeSupervisor, new_client: NewClient):
    client = new_client()
    connection = _started(supervisor, client)
    client.start_section("setup")
    client.start_section("step")
    client.start_section("checkpointing")
    seen = _wait_seen(supervisor, connection, lambda seen: len(seen.open_sections) == 3)
    assert sorted(seen.open_sections, key=seen.open_sections.__getitem__) == ["setup", "step", "checkpointing"]
    client.end_section("setup")
    client.end_section("checkpointing")
    seen = _wait_seen(supervisor, connection, lambda seen: set(seen.open_sections) == {"step"})
    before_ns = time.monotonic_ns()
    client.end_section("step")
    seen = _wait_seen(supervisor, connection, lambda seen: not seen.open_sections)
    assert seen.out_of_section_since_ns >= before_ns


def test_a_section_opened_twice_or_closed_unopened_is_an_error(supervisor: FakeSupervisor, new_client: NewClient):
    client = new_client()
    _started(supervisor, client)
    with pytest.raises(RankMonitorClientError, match="cannot end section 'step': it is not open"):
        client.end_section("step")
    client.start_section("step")
    with pytest.raises(RankMonitorClientError, match="cannot start section 'step': it is open already"):
        client.start_section("step")
    client.end_section("step")
    with pytest.raises(RankMonitorClientError):
        client.end_section("step")


def test_names_that_are_not_monitored_are_never_an_error(supervisor: FakeSupervisor, new_client: NewClient):
    client = new_client()
    connection = _started(supervisor, client)
    client.end_section("mine")
    client.start_section("mine")
    client.start_section("mine")
    client.start_section("step")
    assert set(_wait_seen(supervisor, connection, lambda seen: seen.open_sections).open_sections) == {"step"}


def test_end_all_sections_closes_them(supervisor: FakeSupervisor, new_client: NewClient):
    client = new_client()
    connection = _started(supervisor, client)
    client.end_all_sections()
    client.start_section("setup")
    client.start_section("step")
    _wait_seen(supervisor, connection, lambda seen: len(seen.open_sections) == 2)
    client.end_all_sections()
    _wait_seen(supervisor, connection, lambda seen: not seen.open_sections)
    client.start_section("step")
    client.end_section("step")


def test_steps_are_counted_from_the_first_of_this_cycle(supervisor: FakeSupervisor, new_client: NewClient):
    client = new_client()
    connection = _started(supervisor, client)
    seen = _wait_seen(supervisor, connection, lambda seen: seen.initialised_ns)
    assert not seen.first_step_seen
    for count in range(3):
        client.start_section("step")
        seen = _wait_seen(
            supervisor, connection, lambda seen, count=count: seen.first_step_seen and seen.steps_since_first == count
        )
        client.end_section("step")


@pytest.mark.parametrize("attribute", ["curr_iteration", "iteration"])
def test_megatrons_counter_is_used_where_it_runs(
    supervisor: FakeSupervisor, new_client: NewClient, monkeypatch: pytest.MonkeyPatch, attribute: str
):
    arguments = SimpleNamespace(iteration=1)
    setattr(arguments, attribute, 500)
    monkeypatch.setitem(sys.modules, "megatron.training.global_vars", SimpleNamespace(_GLOBAL_ARGS=arguments))  # pyright: ignore[reportArgumentType]
    client = new_client()
    connection = _started(supervisor, client)
    client.start_section("step")
    _wait_seen(supervisor, connection, lambda seen: seen.first_step_seen and seen.steps_since_first == 0)
    client.end_section("step")
    setattr(arguments, attribute, 520)
    client.start_section("step")
    _wait_seen(supervisor, connection, lambda seen: seen.steps_since_first == 20)


def test_misuse_of_the_life_cycle(supervisor: FakeSupervisor, new_client: NewClient):
    client = new_client()
    calls: list[Callable[[], object]] = [
        client.send_heartbeat,
        lambda: client.start_section("step"),
        lambda: client.end_section("step"),
        client.end_all_sections,
        client.calculate_and_set_hb_timeouts,
        client.calculate_and_set_section_timeouts,
    ]
    for round_number in range(2):
        for call in calls:
            with pytest.raises(RankMonitorClientError, match="not initialized"):
                call()
        client.init_workload_monitoring()
        with pytest.raises(RankMonitorClientError, match="initialised already"):
            client.init_workload_monitoring()
        client.send_heartbeat()
        client.shutdown_workload_monitoring()
        client.shutdown_workload_monitoring()
        assert len(supervisor.client(round_number).of("hello")) == 1
    for wrong, why in ((-1, "-1 warm-up iterations"), (5.0, r"5\.0 warm-up iterations: it is not a whole number")):
        with pytest.raises(RankMonitorClientError, match=why):
            client.init_workload_monitoring(wrong)  # pyright: ignore[reportArgumentType]


def test_shutdown_says_goodbye_and_leaves_nothing_behind(supervisor: FakeSupervisor, new_client: NewClient):
    def own_threads() -> list[str]:
        return [thread.name for thread in threading.enumerate() if thread.name == "holdfast-channel"]

    def open_descriptors() -> set[str]:
        """Leaves out the listing's own, whose number depends on what other threads close meanwhile."""
        return {name for name in os.listdir("/proc/self/fd") if os.path.lexists(f"/proc/self/fd/{name}")}

    client = new_client()
    client.init_workload_monitoring()  # everything that is loaded once is loaded now
    client.shutdown_workload_monitoring()
    supervisor.wait(lambda: supervisor.connections[0].is_closed, "the first end")
    before = open_descriptors()
    client.init_workload_monitoring()
    assert own_threads() == ["holdfast-channel"]
    client.send_heartbeat()
    client.shutdown_workload_monitoring()
    assert own_threads() == []
    connection = supervisor.client(1)
    supervisor.wait(lambda: connection.is_closed, "the second end")
    assert len(connection.of("goodbye")) == 1
    connection.page = None
    supervisor.wait(lambda: open_descriptors() <= before, "closed descriptors")


def test_a_lost_supervisor_is_found_again_and_the_time_without_it_does_not_count(
    supervisor: FakeSupervisor, new_client: NewClient
):
    client = new_client()
    first = _started(supervisor, client)
    client.start_section("setup")
    client.send_heartbeat()
    before = _wait_seen(supervisor, first, lambda seen: seen.heartbeats == 1 and seen.open_sections)
    supervisor.drop_connections()
    second = supervisor.client(1)
    seen = _wait_seen(supervisor, second, lambda seen: seen.initialised_ns and "setup" in seen.open_sections)
    assert seen.initialised_ns > before.initialised_ns
    assert seen.heartbeat_ns > before.heartbeat_ns
    assert seen.open_sections["setup"] > before.open_sections["setup"]
    client.send_heartbeat()
    client.end_section("setup")
    _wait_seen(supervisor, second, lambda seen: seen.heartbeats == 2 and not seen.open_sections)


def test_control_requests_are_accepted(supervisor: FakeSupervisor, new_client: NewClient):
    client = new_client()
    connection = _started(supervisor, client)
    for action in WorkloadAction:
        client.send_workload_control_request(WorkloadControlRequest(action, f"because of {action.name}"))
    told = [
        (frame.workload_control.action, frame.workload_control.description)
        for frame in connection.of("workload_control")
    ]
    assert told == [
        (0, "because of Continue"), (1, "because of ExcludeThisNode"), (2, "because of ShutdownWorkload"),
    ]  # fmt: skip


def test_a_control_request_needs_no_init(supervisor: FakeSupervisor, new_client: NewClient):
    new_client().send_workload_control_request(WorkloadControlRequest(WorkloadAction.ShutdownWorkload, "done"))
    connection = supervisor.client()
    assert connection.of("workload_control")[0].workload_control.description == "done"
    supervisor.wait(lambda: connection.is_closed, "the end")


def test_a_control_request_of_another_client_takes_the_rank_s_connection(
    supervisor: FakeSupervisor, new_client: NewClient
):
    connection = _started(supervisor, new_client())
    new_client().send_workload_control_request(WorkloadControlRequest(WorkloadAction.Continue, "elsewhere"))
    assert [frame.workload_control.description for frame in connection.of("workload_control")] == ["elsewhere"]
    assert len(supervisor.connections) == 1


def test_a_control_request_survives_the_loss_of_the_connection(supervisor: FakeSupervisor, new_client: NewClient):
    client = new_client()
    supervisor.accepts_control = False
    first = _started(supervisor, client)
    request = WorkloadControlRequest(WorkloadAction.ExcludeThisNode, "bad GPU")
    asking = threading.Thread(target=client.send_workload_control_request, args=(request,))
    asking.start()
    supervisor.wait(lambda: first.of("workload_control"), "the request")
    supervisor.accepts_control = True
    supervisor.drop_connections()
    second = supervisor.client(1)
    asking.join(20)
    assert not asking.is_alive()
    assert second.of("workload_control")[0].workload_control.description == "bad GPU"


# --- learned timeouts, one rank -----------------------------------------------------------------------------------


def test_heartbeat_timeouts_are_learned_told_and_kept(supervisor: FakeSupervisor, new_client: NewClient):
    client = new_client()
    connection = _started(supervisor, client)
    assert client.calculate_and_set_hb_timeouts(skip_if_not_ready=True) is False
    with pytest.raises(RankMonitorClientError, match="no rank has sent two heartbeats yet"):
        client.calculate_and_set_hb_timeouts()
    client.send_heartbeat()
    client.send_heartbeat()
    assert client.calculate_and_set_hb_timeouts() is True
    timeouts = client.hb_timeouts
    assert timeouts is not None
    assert timeouts.were_calculated
    assert timeouts.initial is not None
    assert timeouts.subsequent is not None
    assert 0 < timeouts.subsequent < timeouts.initial < 100
    supervisor.wait(lambda: connection.of("limits_calculated"), "limits")
    limits = connection.of("limits_calculated")[0].limits_calculated.limits
    assert (limits.initial_heartbeat_s, limits.heartbeat_s) == (timeouts.initial, timeouts.subsequent)
    assert [section.name for section in limits.sections] == ["setup", "step", "checkpointing"]
    supervisor.drop_connections()
    second = supervisor.client(1)
    supervisor.wait(lambda: second.of("limits_calculated"), "limits after the reconnect")
    assert second.of("limits_calculated")[0].limits_calculated.limits == limits


def test_section_timeouts_of_a_selection(supervisor: FakeSupervisor, new_client: NewClient):
    supervisor.limits = wire.Limits(out_of_section_s=50, sections=[wire.SectionLimit(name="setup", limit_s=40)])
    client = new_client()
    connection = _started(supervisor, client)
    client.start_section("step")
    client.end_section("step")
    with pytest.raises(RankMonitorClientError, match="no rank has measured checkpointing, setup yet"):
        client.calculate_and_set_section_timeouts()
    assert client.calculate_and_set_section_timeouts(skip_if_not_ready=True) is False
    with pytest.raises(RankMonitorClientError, match="mine not monitored"):
        client.calculate_and_set_section_timeouts(["mine"])
    assert client.calculate_and_set_section_timeouts(["step"], calc_out_of_section=False) is True
    timeouts = client.section_timeouts
    assert timeouts is not None
    assert timeouts.calculated_sections == ("step",)
    assert (timeouts.section["setup"], timeouts.out_of_section) == (40, 50)
    supervisor.wait(lambda: connection.of("limits_calculated"), "limits")
    limits = connection.of("limits_calculated")[0].limits_calculated.limits
    assert {section.name: section.HasField("limit_s") for section in limits.sections} == {
        "setup": True, "step": True, "checkpointing": False,
    }  # fmt: skip
    assert client.calculate_and_set_section_timeouts([]) is True
    assert client.section_timeouts is not None
    assert client.section_timeouts.is_out_of_section_calculated


def test_state_goes_through_json_before_and_after_init(supervisor: FakeSupervisor, new_client: NewClient):
    empty: dict[str, object] = {
        "current_timeouts": {
            "heartbeat": {"initial": None, "subsequent": None, "were_calculated": False},
            "section": {
                "section": {}, "out_of_section": None, "calculated_sections": [], "is_out_of_section_calculated": False,
            },
        }
    }  # fmt: skip
    client = new_client()
    assert client.state_dict() == empty
    client.init_workload_monitoring()
    assert client.state_dict() == empty
    client.send_heartbeat()
    client.send_heartbeat()
    client.start_section("step")
    client.end_section("step")
    client.calculate_and_set_hb_timeouts()
    client.calculate_and_set_section_timeouts(["step"])
    state = json.loads(json.dumps(client.state_dict()))
    client.shutdown_workload_monitoring()
    assert client.state_dict() == state

    before, after = new_client(), new_client()
    before.load_state_dict(state)
    assert before.state_dict() == state
    before.init_workload_monitoring()
    for number, each in ((1, before), (2, after)):
        if each is after:
            before.shutdown_workload_monitoring()
            after.init_workload_monitoring()
            after.load_state_dict(state)
        assert each.state_dict() == state
        connection = supervisor.client(number)
        supervisor.wait(lambda connection=connection: connection.of("limits_calculated"), "loaded limits")
        limits = connection.of("limits_calculated")[0].limits_calculated.limits
        assert limits.heartbeat_s == state["current_timeouts"]["heartbeat"]["subsequent"]


def test_a_state_that_is_none_is_refused(new_client: NewClient):
    with pytest.raises(RankMonitorClientError, match="cannot load the client's state: current_timeouts"):
        new_client().load_state_dict({})


def test_a_rank_that_can_start_no_thread_trains_on(
    supervisor: FakeSupervisor, new_client: NewClient, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
):
    def no_thread(_: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    client = new_client()
    with monkeypatch.context() as patch:
        patch.setattr(threading.Thread, "start", no_thread)
        client.init_workload_monitoring()
    client.send_heartbeat()
    client.shutdown_workload_monitoring()
    assert "this rank is not monitored: can't start new thread" in caplog.text
