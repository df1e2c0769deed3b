"""A process forked from the worker sends nothing, and takes nothing from its parent."""

from __future__ import annotations

import os
import subprocess
import sys
import traceback
from collections.abc import Callable

from tests.worker_client.fake_supervisor import FakeSupervisor
from worker_client import RankMonitorClient, RankMonitorClientError

NewClient = Callable[[], RankMonitorClient]


def _in_child(run: Callable[[], None]) -> None:
    """Calls `run` in a fork and asserts that it raised nothing."""
    pid = os.fork()
    if pid == 0:
        code = 1
        try:
            run()
            code = 0
        except BaseException:  # noqa: BLE001 the child must end here, whatever it was
            traceback.print_exc(file=sys.__stderr__)
        finally:
            os._exit(code)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0


def test_a_fork_writes_nothing_and_leaves_the_connection_alone(supervisor: FakeSupervisor, new_client: NewClient):
    client = new_client()
    client.init_workload_monitoring()
    connection = supervisor.client()
    client.send_heartbeat()
    client.start_section("step")
    supervisor.wait(lambda: (seen := connection.seen()) and seen.heartbeats == 1 and seen.open_sections, "progress")
    before = connection.seen()
    assert before is not None

    def child() -> None:
        for _ in range(10):
            client.send_heartbeat()
        client.end_section("step")
        client.start_section("checkpointing")
        client.end_all_sections()
        try:
            client.end_section("step")
        except RankMonitorClientError:
            client.shutdown_workload_monitoring()
        else:
            raise AssertionError("misuse is still told")

    _in_child(child)
    client.send_heartbeat()
    supervisor.wait(lambda: (seen := connection.seen()) and seen.heartbeats == 2, "the parent's beat")
    after = connection.seen()
    assert after is not None
    assert set(after.open_sections) == {"step"}
    assert after.out_of_section_since_ns - before.out_of_section_since_ns < 50_000_000
    assert not connection.is_closed
    assert not connection.of("goodbye")
    client.end_section("step")


# In a separate interpreter: here, gRPC and event loops of other tests open and close descriptors at any moment.
_DESCRIPTORS_OF_A_FORK = """
import os
from worker_client import RankMonitorClient

def held():
    names = {}
    for number in os.listdir("/proc/self/fd"):
        try:
            names[number] = os.readlink("/proc/self/fd/" + number)
        except FileNotFoundError:
            pass  # the listing's own
    return names

before = held()
client = RankMonitorClient()
client.init_workload_monitoring()
assert len(held()) >= len(before) + 2, "a socket and an eventfd"
pid = os.fork()
if pid == 0:
    print(sorted(held().items()) == sorted(before.items()), before, held(), flush=True)
    os._exit(0)
os.waitpid(pid, 0)
client.shutdown_workload_monitoring()
"""


def test_a_fork_holds_no_descriptor_of_the_channel(supervisor: FakeSupervisor):
    """Otherwise the supervisor would not see the rank's end while a data loader lives."""
    program = [sys.executable, "-c", _DESCRIPTORS_OF_A_FORK]
    done = subprocess.run(program, check=True, capture_output=True, text=True, timeout=30)
    supervisor.client()
    assert done.stdout.startswith("True"), done.stdout


def test_a_fork_may_start_a_monitoring_of_its_own(supervisor: FakeSupervisor, new_client: NewClient):
    client = new_client()
    client.init_workload_monitoring()
    supervisor.client()

    def child() -> None:
        client.shutdown_workload_monitoring()
        client.init_workload_monitoring()
        client.send_heartbeat()
        client.shutdown_workload_monitoring()

    _in_child(child)
    second = supervisor.client(1)
    assert second.peer_pid != os.getpid()
    supervisor.wait(lambda: second.of("goodbye"), "the child's goodbye")
    assert not supervisor.client(0).is_closed
