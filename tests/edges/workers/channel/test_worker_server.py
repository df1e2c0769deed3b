"""The worker socket as a rank sees it: hello, page, frames, and the events that the engine gets."""

from __future__ import annotations

import os
import time
from pathlib import Path

import anyio
import pytest
from holdfast_wire import page_layout
from holdfast_wire.framing import WORKER_FRAME_BYTES_MAX, encode
from holdfast_wire.v1 import worker_pb2

from supervisor.core.facts import HangLimits
from supervisor.core.node import node_messages
from supervisor.edges.workers.channel import worker_server
from tests.edges.workers.worker_side import JOB_ID, LIMITS, Served, WorkerSide, hello, open_cycle, serve, until


async def test_a_welcome_has_all_that_a_client_needs_and_the_engine_is_told(tmp_path: Path):
    async with serve(tmp_path) as served:
        rank = served.connect()
        welcome = await rank.join(2, warm_up_steps=7)
        assert (welcome.protocol, welcome.cycle, welcome.rank, welcome.page_shared) == (1, 0, 2, True)
        assert list(welcome.sections) == ["step", "eval"]
        assert welcome.limits.heartbeat_s == 60.0
        assert not welcome.limits.HasField("initial_heartbeat_s")
        assert welcome.limits.sections[0].limit_s == 30.0
        assert not welcome.limits.sections[1].HasField("limit_s")
        assert (welcome.warm_up_steps, welcome.safety_factor) == (7, 5.0)
        await until(lambda: served.of(node_messages.ClientJoined))
        (joined,) = served.of(node_messages.ClientJoined)
        assert (joined.job_id, joined.cycle, joined.local_rank, joined.limits.warm_up_steps) == (JOB_ID, 0, 2, 7)
        assert abs(joined.progress.initialised_at_s - time.monotonic()) < 5
        rank.close()
        await until(lambda: served.of(node_messages.ClientLeft))
        assert served.server.read_progress(JOB_ID, 0, 2) is None


async def test_stamps_in_the_page_are_read_without_a_message(tmp_path: Path):
    async with serve(tmp_path) as served:
        rank = served.connect()
        await rank.join(0)
        await until(lambda: served.posted)
        now_ns = time.monotonic_ns()
        rank.stamp(page_layout.WORD_INITIALISED_NS, now_ns - 5)
        rank.stamp(page_layout.WORD_HEARTBEAT_NS, now_ns - 4)
        rank.stamp(page_layout.WORD_HEARTBEATS, 3)
        rank.stamp(page_layout.WORD_OUT_OF_SECTION_SINCE_NS, now_ns - 3)
        rank.stamp(page_layout.WORD_STEPS_SINCE_FIRST, 9)
        rank.stamp(page_layout.WORD_FIRST_STEP_SEEN, 1)
        rank.open_section(1, now_ns - 2)
        rank.open_section(0, now_ns - 1)
        progress = served.server.read_progress(JOB_ID, 0, 0)
        assert progress is not None
        assert progress.heartbeat_at_s == pytest.approx((now_ns - 4) / 1e9, abs=1e-6)
        assert (progress.heartbeats, progress.steps_since_first, progress.first_step_seen) == (3, 9, True)
        assert [name for name, _ in progress.open_sections] == ["eval", "step"]
        assert progress.read_at_s is not None
        assert len(served.posted) == 1  # the join and nothing since
        # If the client's silence is older than the page's at the time of the welcome, the client asks for a check.
        await rank.send(worker_pb2.WorkerFrame(progress=worker_pb2.Progress(initialised_age_ns=10**9)))
        await until(lambda: served.of(node_messages.ProgressRead))
        assert served.of(node_messages.ProgressRead)[0].progress.heartbeat_at_s == progress.heartbeat_at_s


@pytest.mark.parametrize("why", ["client", "clock"])
async def test_without_a_shared_page_progress_comes_by_frames(tmp_path: Path, why: str):
    off = {"can_share_page": False} if why == "client" else {"monotonic_ns": time.monotonic_ns() + 10**10}
    async with serve(tmp_path) as served:
        rank = served.connect()
        assert not (await rank.join(1, **off)).page_shared
        await until(lambda: served.posted)
        told = worker_pb2.Progress(
            initialised_age_ns=10**9, heartbeat_age_ns=10**8, heartbeats=1, out_of_section_age_ns=5 * 10**8
        )
        await rank.send(worker_pb2.WorkerFrame(progress=told))
        before_s = time.monotonic()
        await until(lambda: (read(served, 1)).heartbeats == 1)
        assert not served.of(node_messages.ProgressRead)  # a heartbeat shortens no deadline
        at_s = read(served, 1).heartbeat_at_s
        assert at_s is not None
        assert before_s - 0.2 < at_s + 0.1 < time.monotonic()
        told.open_sections.add(slot=0, age_ns=10**6)
        await rank.send(worker_pb2.WorkerFrame(progress=told))
        await until(lambda: served.of(node_messages.ProgressRead))
        assert served.of(node_messages.ProgressRead)[0].progress.open_sections[0][0] == "step"
        await rank.send(worker_pb2.WorkerFrame(progress=told))  # still open: no news
        await rank.send(worker_pb2.WorkerFrame(goodbye=worker_pb2.Goodbye()))
        await until(lambda: served.of(node_messages.ClientLeft))
        assert len(served.of(node_messages.ProgressRead)) == 1


async def test_a_hello_that_has_waited_for_long_still_gets_a_page(tmp_path: Path):
    """This process may have been stopped; the kernel says that both sides have one clock."""
    async with serve(tmp_path) as served:
        rank = served.connect()
        assert (await rank.join(1, monotonic_ns=time.monotonic_ns() - 10**10)).page_shared


async def test_a_frame_that_still_waits_counts_before_a_rank_is_judged(tmp_path: Path):
    """The loop may be late: no await lies between the rank's frame and the check."""
    async with serve(tmp_path) as served:
        rank = served.connect()
        await rank.join(1, can_share_page=False)
        await until(lambda: served.posted)
        told = worker_pb2.Progress(initialised_age_ns=10**9, heartbeat_age_ns=10**8, heartbeats=7)
        await rank.send(worker_pb2.WorkerFrame(progress=told))
        assert read(served, 1).heartbeats == 7


def read(served: Served, local_rank: int, *, cycle: int = 0):
    progress = served.server.read_progress(JOB_ID, cycle, local_rank)
    assert progress is not None
    return progress


async def test_requests_are_posted_and_accepted(tmp_path: Path):
    async with serve(tmp_path) as served:
        rank = served.connect()
        await rank.join(0)
        control = worker_pb2.WorkloadControl(
            action=worker_pb2.WorkloadControl.EXCLUDE_THIS_NODE, description="bad GPU", request_id=41
        )
        await rank.send(worker_pb2.WorkerFrame(workload_control=control))
        answer = await rank.receive()
        assert answer is not None
        assert answer.accepted.request_id == 41
        limits = worker_pb2.Limits(heartbeat_s=4.5, sections=[worker_pb2.SectionLimit(name="step", limit_s=2.0)])
        await rank.send(worker_pb2.WorkerFrame(limits_calculated=worker_pb2.LimitsCalculated(limits=limits)))
        await until(lambda: served.of(node_messages.LimitsCalculated))
        (asked,) = served.of(node_messages.ControlRequested)
        assert (asked.action, asked.description) == ("exclude_this_node", "bad GPU")
        (calculated,) = served.of(node_messages.LimitsCalculated)
        assert calculated.limits == HangLimits(heartbeat_s=4.5, sections=(("step", 2.0),), warm_up_steps=5)


# Field 99; a request with action 9; an arrival at barrier 9.
NEWER = (b"\x9a\x06\x03new", b"\x22\x04\x08\x09\x18\x07", b"\xa2\x01\x06\x08\x01\x18\x09\x20\x00")


async def send_newer(rank: WorkerSide, *payloads: bytes) -> None:
    for payload in payloads:
        await rank.send_bytes(encode(payload, frame_bytes_max=WORKER_FRAME_BYTES_MAX))


async def test_what_only_a_newer_client_says_is_skipped_and_told_once(tmp_path: Path, caplog: pytest.LogCaptureFixture):
    async with serve(tmp_path) as served:
        rank = served.connect()
        await rank.join(1)
        await send_newer(rank, *NEWER * 50)
        control = worker_pb2.WorkloadControl(action=worker_pb2.WorkloadControl.CONTINUE, request_id=7)
        await rank.send(worker_pb2.WorkerFrame(workload_control=control))
        answer = await rank.receive()
        assert answer is not None
        assert answer.accepted.request_id == 7
        assert [type(each) for each in served.posted] == [node_messages.ClientJoined, node_messages.ControlRequested]
        (told,) = caplog.messages
        assert told.startswith(f"skipped a message of local rank 1 of job {JOB_ID}: ")
        assert "if its client is newer, upgrade this supervisor" in told
        assert served.server.counters.malformed == 0


async def test_a_client_that_comes_again_and_again_with_newer_words_does_not_fill_the_log(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
):
    async with serve(tmp_path) as served:
        for number in range(2 * worker_server.TOLD_FIRST):
            rank = served.connect()
            await rank.join(1)
            await send_newer(rank, NEWER[0])
            await until(lambda number=number: served.server.counters.unknown == number + 1)
    assert len(caplog.messages) == worker_server.TOLD_FIRST


async def test_words_of_a_newer_client_before_its_hello_end_the_connection(tmp_path: Path):
    async with serve(tmp_path) as served:
        rank = served.connect()
        await send_newer(rank, NEWER[0])
        await rank.is_dropped()
        assert served.server.counters.malformed == 1


@pytest.mark.parametrize(
    ("changed", "retry", "why"),
    [
        ({"token": b"x" * 32}, False, "token"),
        ({"token": b""}, False, "token"),
        ({"job_id": "other"}, True, "does not run it now"),
        ({"cycle": 3}, False, "is over"),
        ({"cycle": 9}, True, "does not run it now"),
        ({"rank": 2}, False, "not local rank 1"),
        ({"rank": 0}, False, "not local rank 1"),
        ({"protocol": 2}, False, "protocol 2"),
    ],
)
async def test_a_hello_that_does_not_fit_is_refused(tmp_path: Path, changed: dict[str, object], retry: bool, why: str):
    async with serve(tmp_path, cycle=4) as served:
        refusal = await served.connect().refused(hello(1, **{"cycle": 4, **changed}))
        assert refusal.retry == retry
        assert why in refusal.reason
        assert "not local rank 77" in (await served.connect().refused(hello(77, cycle=4))).reason
        assert served.posted == []


async def test_a_pid_that_was_not_spawned_for_the_rank_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(worker_server, "HELD_TIMEOUT_S", 0.1)
    async with serve(tmp_path, expect=False) as served:
        served.server.expect(JOB_ID, 0, 0, os.getppid() if os.getppid() > 1 else 1)
        served.server.expect(JOB_ID, 0, 1, 2**22 - 1)
        refusal = await served.connect().refused(hello(1))
        assert f"pid {2**22 - 1}, not {os.getpid()}" in refusal.reason
        refusal = await served.connect().refused(hello(2))
        assert "no worker was started" in refusal.reason
        assert served.posted == []


async def test_a_hello_before_its_worker_was_announced_is_held(tmp_path: Path):
    async with serve(tmp_path, expect=False) as served:
        rank = served.connect()
        await rank.send(hello(3))
        await until(lambda: served.server._held == 1)  # pyright: ignore[reportPrivateUsage]
        served.server.expect(JOB_ID, 0, 2, 1)  # for another rank
        served.server.expect(JOB_ID, 0, 3, os.getpid())
        frame = await rank.receive()
        assert frame is not None
        assert frame.WhichOneof("body") == "welcome"


async def test_the_newest_valid_hello_speaks_for_the_rank(tmp_path: Path):
    """A dead rank's children keep its socket open: the new one must not wait for them."""
    async with serve(tmp_path) as served:
        old, new = served.connect(), served.connect()
        await old.join(0)
        await new.join(0)
        await old.is_dropped()
        new.stamp(page_layout.WORD_HEARTBEATS, 5)
        assert read(served, 0).heartbeats == 5
        assert len(served.of(node_messages.ClientJoined)) == 2
        assert not served.of(node_messages.ClientLeft)
        await served.connect().refused(hello(0, token=b"no"))
        assert read(served, 0).heartbeats == 5


async def test_a_closed_cycle_drops_its_clients_and_the_next_one_serves(tmp_path: Path):
    async with serve(tmp_path) as served:
        rank = served.connect()
        await rank.join(0)
        await until(lambda: served.posted)
        served.server.set_limits(JOB_ID, 0, LIMITS)
        served.server.close_cycle(JOB_ID, 0)
        served.server.close_cycle(JOB_ID, 0)
        await rank.is_dropped()
        assert served.server.read_progress(JOB_ID, 0, 0) is None
        open_cycle(served, cycle=1, limits=HangLimits(heartbeat_s=1.0))
        served.server.expect(JOB_ID, 1, 0, os.getpid())
        served.server.set_limits(JOB_ID, 1, HangLimits(heartbeat_s=2.0))
        again = served.connect()
        assert (await again.join(0, cycle=1)).limits.heartbeat_s == 2.0
        await until(lambda: len(served.of(node_messages.ClientJoined)) == 2)
        assert not served.of(node_messages.ClientLeft)


async def test_stacks_are_asked_of_the_client(tmp_path: Path):
    async with serve(tmp_path) as served:
        rank = served.connect()
        await rank.join(0)
        assert await served.server.ask_stacks(JOB_ID, 0, 1, timeout_s=5) is None
        assert await served.server.ask_stacks(JOB_ID, 0, 0, timeout_s=0.05) is None
        texts: list[str | None] = []

        async def ask() -> None:
            texts.append(await served.server.ask_stacks(JOB_ID, 0, 0, timeout_s=10))

        async with anyio.create_task_group() as tasks:
            tasks.start_soon(ask)
            tasks.start_soon(ask)
            request = await rank.receive()
            assert request is not None
            request_id = request.stacks_request.request_id
            await rank.send(worker_pb2.WorkerFrame(stacks_answer=worker_pb2.StacksAnswer(request_id=9999, text="no")))
            answer = worker_pb2.StacksAnswer(request_id=request_id, text="Thread 1")
            await rank.send(worker_pb2.WorkerFrame(stacks_answer=answer))
        assert texts == ["Thread 1", "Thread 1"]
