"""Does this rank's lease hold: by the page, by question and answer, and while nobody answers?"""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Callable

import pytest

from tests.worker_client.fake_supervisor import FakeSupervisor
from worker_client import lease_check
from worker_client.rank_monitor_client import RankMonitorClient
from worker_client.workload_monitoring import Monitoring, current

AT_ONCE_S = 1.0


def connected(new_client: Callable[[], RankMonitorClient]) -> Monitoring:
    new_client().init_workload_monitoring()
    monitoring = current()
    assert monitoring is not None
    return monitoring


def holds_at_once(monitoring: Monitoring) -> bool:
    began_s = time.monotonic()
    holds = lease_check.holds(monitoring)
    assert time.monotonic() - began_s < AT_ONCE_S
    return holds


def test_an_older_supervisor_is_not_asked_and_takes_no_lease_away(
    supervisor: FakeSupervisor, new_client: Callable[[], RankMonitorClient]
):
    monitoring = connected(new_client)
    assert holds_at_once(monitoring)
    assert not supervisor.client().of("lease_question")


def test_a_lease_without_end_holds_also_while_the_supervisor_is_away(
    supervisor: FakeSupervisor, new_client: Callable[[], RankMonitorClient]
):
    supervisor.lease_s = math.inf
    monitoring = connected(new_client)
    assert holds_at_once(monitoring)
    supervisor.stop()
    assert holds_at_once(monitoring)


def test_a_lease_is_read_from_the_page_without_a_question(
    page_supervisor: FakeSupervisor, new_client: Callable[[], RankMonitorClient]
):
    page_supervisor.lease_s = 60
    monitoring = connected(new_client)
    assert holds_at_once(monitoring)
    assert not page_supervisor.client().of("lease_question")
    page_supervisor.stop()
    assert holds_at_once(monitoring), "it holds to its end"


def test_without_a_page_each_check_asks(frames_supervisor: FakeSupervisor, new_client: Callable[[], RankMonitorClient]):
    frames_supervisor.lease_s = 60
    monitoring = connected(new_client)
    assert holds_at_once(monitoring)
    assert holds_at_once(monitoring)
    assert len(frames_supervisor.client().of("lease_question")) == 2


def test_a_lease_that_has_ended_is_waited_for_and_may_come_back(
    supervisor: FakeSupervisor, new_client: Callable[[], RankMonitorClient]
):
    supervisor.lease_s = -1
    monitoring = connected(new_client)
    found: list[bool] = []
    waiting = threading.Thread(target=lambda: found.append(lease_check.holds(monitoring)))
    waiting.start()
    supervisor.wait(lambda: supervisor.client().of("lease_question"), "the question")
    assert waiting.is_alive()
    supervisor.extend_lease(4)
    waiting.join(AT_ONCE_S)
    assert found == [True]


def test_a_lease_that_stays_ended_is_lost(
    supervisor: FakeSupervisor, new_client: Callable[[], RankMonitorClient], monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(lease_check, "WAIT_S", 0.2)
    supervisor.lease_s = -1
    monitoring = connected(new_client)
    assert not lease_check.holds(monitoring)
    supervisor.stop()
    assert not lease_check.holds(monitoring)


def test_a_question_is_asked_again_after_a_lost_connection(
    supervisor: FakeSupervisor, new_client: Callable[[], RankMonitorClient]
):
    supervisor.lease_s = -1
    monitoring = connected(new_client)
    found: list[bool] = []
    waiting = threading.Thread(target=lambda: found.append(lease_check.holds(monitoring)))
    waiting.start()
    supervisor.wait(lambda: supervisor.client().of("lease_question"), "the question")
    supervisor.drop_connections()
    supervisor.client(1)
    supervisor.extend_lease(4)
    waiting.join(2 * AT_ONCE_S)
    assert found == [True]
