"""Until when does a lease hold, on the clock that counts while the machine is suspended?"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import pytest
from holdfast_wire import page_layout
from holdfast_wire.v1 import worker_pb2 as wire

from supervisor.core.fence_times import FENCE_S
from supervisor.edges.machine.clock import Clock
from supervisor.edges.workers.channel.lease_expiry import NS_PER_S, Leases
from tests.edges.workers.worker_side import JOB_ID, hello, open_cycle, serve


@dataclass
class TwoClocks:
    """Clocks of a machine that was suspended for `suspended_s` since it booted."""

    at_s: float = 1000.0
    suspended_s: float = 50.0

    def now_s(self) -> float:
        return self.at_s

    def boot_ns(self) -> int:
        return int((self.at_s + self.suspended_s) * NS_PER_S)

    def unix_ns(self) -> int:
        return 0


def extended(leases: Leases, clock: TwoClocks, *, said_s: float = 0.0) -> float:
    """Extends the lease as a leader does that has answered what was said `said_s` ago; returns how long it holds."""
    leases.extend("job", clock.at_s - said_s + FENCE_S)
    return leases.left_ns("job") / NS_PER_S


def test_a_job_that_nobody_fences_holds_its_lease_without_end():
    leases = Leases(TwoClocks())
    leases.begin("job", is_fenced=False)
    assert leases.is_unbounded("job")
    assert leases.until_ns("job") == page_layout.LEASE_UNBOUNDED


def test_a_fenced_job_has_no_lease_before_its_leader_has_answered_and_keeps_the_one_that_it_has():
    clock = TwoClocks()
    leases = Leases(clock)
    leases.begin("job", is_fenced=True)
    assert leases.left_ns("job") < 0
    assert extended(leases, clock) == pytest.approx(FENCE_S)
    leases.begin("job", is_fenced=True)
    assert leases.left_ns("job") == pytest.approx(FENCE_S * NS_PER_S)
    leases.begin("job", is_fenced=False)  # a later job of that id
    assert leases.is_unbounded("job")


def test_a_fence_that_is_far_away_since_the_node_looks_for_its_leader_extends_no_lease():
    clock = TwoClocks()
    leases = Leases(clock)
    leases.begin("job", is_fenced=True)
    extended(leases, clock)
    clock.at_s += FENCE_S + 0.1
    leases.extend("job", clock.at_s + 600.0)
    assert leases.left_ns("job") < 0


def test_time_in_which_the_machine_was_suspended_counts():
    clock = TwoClocks()
    leases = Leases(clock)
    assert extended(leases, clock) == pytest.approx(FENCE_S)
    clock.suspended_s += 60
    assert leases.left_ns("job") / NS_PER_S == pytest.approx(FENCE_S - 60)
    clock.at_s += 0.1
    assert extended(leases, clock, said_s=0.5) < 0, "what the leader has answered was said before the suspension"
    clock.at_s += FENCE_S + 2
    assert extended(leases, clock) == pytest.approx(FENCE_S)
    clock.at_s += 100
    clock.suspended_s += 60
    assert extended(leases, clock) < 0, "the last look at the clocks was before it"
    clock.at_s += FENCE_S + 2
    assert extended(leases, clock) == pytest.approx(FENCE_S)


async def test_the_page_has_the_lease_from_the_welcome_on_and_each_extension(tmp_path: Path):
    async with serve(tmp_path) as served:
        rank = served.connect()
        await rank.send(hello())
        welcome = await rank.receive()
        assert welcome is not None
        assert (welcome.welcome.answers_lease_questions, welcome.welcome.lease_is_unbounded) == (True, True)
        assert rank.page is not None
        assert rank.page[page_layout.WORD_LEASE_UNTIL_NS] == page_layout.LEASE_UNBOUNDED
        clock = Clock()
        served.server.extend_lease(JOB_ID, clock.now_s() + FENCE_S)
        left_ns = rank.page[page_layout.WORD_LEASE_UNTIL_NS] - clock.boot_ns()
        assert (FENCE_S - 1) * NS_PER_S < left_ns <= FENCE_S * NS_PER_S
        served.server.close_cycle(JOB_ID, 0)
        assert rank.page[page_layout.WORD_LEASE_UNTIL_NS] == page_layout.LEASE_ENDED


async def test_a_question_is_answered_once_the_lease_holds(tmp_path: Path):
    async with serve(tmp_path) as served:
        open_cycle(served, cycle=1, is_fenced=True)
        served.server.extend_lease(JOB_ID, Clock().now_s() - 1)  # it was fenced before this cycle
        rank = served.connect()
        await rank.send(hello(can_share_page=False))
        welcome = await rank.receive()
        assert welcome is not None
        assert not welcome.welcome.lease_is_unbounded
        await rank.send(wire.WorkerFrame(lease_question=wire.LeaseQuestion(request_id=7)))
        await rank.send(wire.WorkerFrame(workload_control=wire.WorkloadControl(request_id=8)))
        other = await rank.receive()
        assert other is not None
        assert other.accepted.request_id == 8
        served.server.extend_lease(JOB_ID, Clock().now_s() + 3)
        answer = await rank.receive()
        assert answer is not None
        assert (answer.lease.request_id, answer.lease.left_ns) == (7, 0)
        await rank.send(wire.WorkerFrame(lease_question=wire.LeaseQuestion(request_id=9)))
        at_once = await rank.receive()
        assert at_once is not None
        assert at_once.lease.request_id == 9
        assert 2 * NS_PER_S < at_once.lease.left_ns <= 3 * NS_PER_S
