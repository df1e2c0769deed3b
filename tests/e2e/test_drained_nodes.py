"""`holdfast drain [--node NODE]` takes a node out of its job, which goes on; the command says how until it is done."""

from __future__ import annotations

import json
import platform
import re
import signal
import subprocess
import time
from collections.abc import Generator
from pathlib import Path

import pytest

from supervisor.core.node.job_leaving import ANSWER_WITH_RANKS_S
from supervisor.core.stop_verdict import SAME_SIGTERM_S
from tests.e2e.launch import wait_until
from tests.e2e.test_many_nodes import HOLDFAST, LIMIT_S, Nodes, listens, nodes
from tests.e2e.test_many_nodes_daemons import Job
from tests.e2e.test_many_nodes_daemons import nodes as daemons
from tests.etcd_server import Etcd, etcd

BY = f"holdfast drain by root on {platform.node()}"
INTERRUPTED = 130
TRY_AGAIN = 75
NO_SUPERVISOR = 69
WAITS = "and a restart waits for it"


@pytest.fixture
def server(tmp_path: Path) -> Generator[Etcd]:
    with etcd(tmp_path / "etcd") as started:
        yield started


class Drain:
    """The command, typed on a node of a job. It asks the supervisor of that node only: others share this machine."""

    def __init__(self, job: Nodes, on: int, *arguments: str) -> None:
        self._said = job.folder / f"drain-{on}-{len(list(job.folder.glob('drain-*')))}"
        with self._said.open("wb") as said:
            self.process = subprocess.Popen(
                [str(HOLDFAST), "drain", "--socket-dir", socket_dir(job, on), *arguments],
                env=job.environment(on), stdout=said, stderr=said,
            )  # fmt: skip

    @property
    def said(self) -> str:
        return self._said.read_text()

    def until_said(self, text: str) -> None:
        wait_until(lambda: text in self.said, timeout_s=LIMIT_S, what=text)

    def done(self) -> str:
        """Returns what it said until it ended well."""
        assert self.process.wait(LIMIT_S) == 0, self.said
        return self.said


def socket_dir(job: Nodes, number: int) -> str:
    """Returns the folder of a `holdfast run`, once commands can ask it."""
    runtime = job.folder / f"node{number}" / "run" / "holdfast-private"
    wait_until(lambda: list(runtime.glob("*.json")), timeout_s=LIMIT_S, what=f"the supervisor of node {number}")
    folder = json.loads(next(iter(runtime.glob("*.json"))).read_text())["dir"]
    wait_until((Path(folder) / "control.sock").exists, timeout_s=LIMIT_S, what=f"the socket of node {number}")
    return folder


def ask(job: Nodes, on: int, *arguments: str) -> str:
    command = [str(HOLDFAST), *arguments, "--socket-dir", socket_dir(job, on)]
    done = subprocess.run(
        command, env=job.environment(on), capture_output=True, text=True, timeout=LIMIT_S, check=False
    )
    return done.stdout + done.stderr


def begin(job: Nodes, *numbers: int, flags: tuple[str, ...] = ()) -> None:
    """Starts the nodes. The first leads, the first two run ranks, the others are spares."""
    for number in numbers:
        job.start(number, "60", flags=flags)
        if number == 1 and not flags:
            wait_until(lambda: listens(job.port), timeout_s=LIMIT_S, what="a leader")
        if number == 2:
            job.until_running(0, 4)
    spares = len(numbers) - 2
    wait_until(lambda: ask(job, 1, "status", job.job_id).count(" spare") >= spares, timeout_s=LIMIT_S, what="spares")


def begin_with_etcd(job: Nodes, server: Etcd, *numbers: int) -> None:
    job.endpoint = server.endpoint
    begin(job, *numbers, flags=("--rdzv-backend", "etcd"))


def end_well(job: Nodes, *left: int, units: int = 0) -> None:
    """Checks that these nodes have left with 0, and the others end the job well, with that much of its budget."""
    assert [job.processes[number - 1].wait(LIMIT_S) for number in left] == [0] * len(left)
    job.let_end()
    assert {process.wait(LIMIT_S) for process in job.processes} == {0}
    said = "".join(job.output(number + 1) for number in range(len(job.processes)))
    assert f"restarts used {units + 1}" not in said
    assert units or "is lost" not in said


def test_from_another_node_a_node_with_ranks_is_replaced_by_the_spare(tmp_path: Path) -> None:
    with nodes(tmp_path, "2:3") as job:
        begin(job, 1, 2, 3)
        command = [str(HOLDFAST), "drain"]
        plain = subprocess.run(command, env=job.environment(2), capture_output=True, text=True, check=False)
        assert plain.returncode == NO_SUPERVISOR
        instead = f"takes this node out of it, holdfast stop {job.job_id} ends it on all nodes"
        assert "cannot drain this node: no holdfast daemon runs here" in plain.stderr
        assert re.search(rf"holdfast drain --node 127\.0\.0\.\d {instead}", plain.stderr), plain.stderr
        said = Drain(job, 3, "--node", "127.0.0.2", "--reason", "new fan").done()
        reason = f"{BY}: new fan"
        assert said.splitlines()[:1] == [
            f"holdfast: node 127.0.0.2 is to leave job {job.job_id}: {reason}",
        ]
        leaves = f"node 127.0.0.2 leaves the job ({reason}); restarting at once, which uses no restart of the budget"
        assert f"job {job.job_id}: {leaves}\n" in said
        assert f"node 127.0.0.2 has left job {job.job_id}, which goes on without it\n" in said
        assert said.endswith("node 127.0.0.2 has left its job; no holdfast daemon keeps new ones away from it\n")
        job.until_running(1, 4)
        assert f"node 127.0.0.2 has left the job ({reason}); the job goes on without it" in job.output(2)
        end_well(job, 2)


def test_from_its_own_node_and_the_node_may_come_again(tmp_path: Path) -> None:
    with daemons(tmp_path, 3) as (first, second, third):
        job = Job(tmp_path, "shared", [first, second, third], "2:3", "60")
        job.until_running(0, 4)
        wait_until(lambda: " spare" in first.holdfast("status", job.job_id), timeout_s=LIMIT_S, what="the spare")
        drain = second.ask("drain")
        assert job.processes[1].wait(LIMIT_S) == 0
        assert drain.wait(LIMIT_S) == 0
        job.until_running(1, 4)
        said = second.commands[-1].read_text()
        assert f"node {platform.node()} (supervisor {second.process.pid}) takes no new jobs: {BY}\n" in said
        assert f"node 127.0.0.2 is to leave job {job.job_id}: {BY}\n" in said
        assert f"job {job.job_id}: node 127.0.0.2 has left the job ({BY}); the job goes on without it\n" in said
        assert "this node has no jobs and takes none: its service may stop" in said
        arguments = (*job.meet, "--local-addr", second.address, *job.script)
        assert second.run(job.job_id, *arguments).wait(LIMIT_S) == TRY_AGAIN
        second.holdfast("uncordon", platform.node())
        again = second.run(job.job_id, *arguments)
        wait_until(lambda: " spare" in first.holdfast("status", job.job_id), timeout_s=LIMIT_S, what="it comes again")
        job.let_end()
        assert [*job.exit_codes(), again.wait(LIMIT_S)] == [0, 0, 0, 0]


def test_from_another_daemon_it_stays_cordoned_and_jobs_of_its_own_are_named(tmp_path: Path) -> None:
    with daemons(tmp_path, 3) as (first, second, third):
        job = Job(tmp_path, "shared", [first, second, third], "2:3", "60")
        (tmp_path / "alone").mkdir()
        alone = second.run("alone", str(tmp_path / "train.py"), str(tmp_path / "alone"), "60")
        job.until_running(0, 4)
        wait_until(lambda: list((tmp_path / "alone").glob("0-*")), timeout_s=LIMIT_S, what="the job of one node")
        wait_until(lambda: " spare" in third.holdfast("status", job.job_id), timeout_s=LIMIT_S, what="the spare")
        drain = third.ask("drain", "--node", second.address)
        assert drain.wait(LIMIT_S) == TRY_AGAIN
        job.until_running(1, 4)
        said = third.commands[-1].read_text()
        assert f"node {second.address} has left job {job.job_id}, which goes on without it\n" in said
        assert f"cannot wait for job alone of node {second.address}, in which this node has no part; type" in said
        assert (second.home / "state" / "cordoned").read_text().strip() == BY
        assert not (third.home / "state" / "cordoned").exists()
        assert alone.poll() is None
        (tmp_path / "alone" / "end").touch()
        job.let_end()
        assert [*job.exit_codes(), alone.wait(LIMIT_S)] == [0, 0, 0, 0]


def test_a_node_without_a_job_is_only_cordoned_and_an_unknown_one_is_refused(tmp_path: Path) -> None:
    with daemons(tmp_path, 1) as (only,):
        assert only.ask("drain", "--node", "n9").wait(LIMIT_S) == 1
        refusal = (
            f"holdfast: cannot drain node n9: it is not among the nodes known here; choose one of {platform.node()}\n"
        )
        assert only.commands[-1].read_text() == refusal
        assert only.ask("drain", "--node", platform.node()).wait(LIMIT_S) == 0
        assert only.ask("drain").wait(LIMIT_S) == 0
        assert "this node has no jobs and takes none" in only.commands[-1].read_text()
        assert "cordoned" in only.holdfast("nodes")


def test_a_spare_leaves_and_nothing_restarts(tmp_path: Path) -> None:
    with nodes(tmp_path, "2:3") as job:
        begin(job, 1, 2, 3)
        unknown = Drain(job, 2, "--node", "127.0.0.9")
        assert unknown.process.wait(LIMIT_S) == 1
        why, names = "it is not among the nodes known here", "127.0.0.1, 127.0.0.2, 127.0.0.3"
        assert unknown.said == f"holdfast: cannot drain node 127.0.0.9: {why}; choose one of {names}\n"
        Drain(job, 2, "--node", "127.0.0.3").done()
        end_well(job, 3)
        assert not list(tmp_path.glob("1-*"))


def test_without_a_spare_it_says_why_and_leaves_once_a_spare_is_there_and_it_is_asked_again(tmp_path: Path) -> None:
    with nodes(tmp_path, "2:3") as job:
        begin(job, 1, 2)
        refused = Drain(job, 1, "--node", "127.0.0.2")
        why = (
            f"cannot take node 127.0.0.2 out of job {job.job_id}: 1 other node is there, and a cycle needs 2; start a "
        )
        refused.until_said(why)
        refused.process.send_signal(signal.SIGINT)
        assert refused.process.wait(LIMIT_S) == INTERRUPTED
        assert "node 127.0.0.2 stays cordoned" in refused.said
        assert "holdfast uncordon 127.0.0.2 lets it take jobs again" in refused.said
        assert "leaves job" not in refused.said.splitlines()[-1], "it was refused"
        assert "cordoned" in ask(job, 1, "nodes")
        assert not list(tmp_path.glob("1-*"))
        begin(job, 3)
        Drain(job, 2).done()
        job.until_running(1, 4)
        end_well(job, 2)


def test_the_node_with_which_the_job_would_end_stays(tmp_path: Path) -> None:
    with nodes(tmp_path, "2:3") as job:
        begin(job, 1, 2, 3)
        drain = Drain(job, 2, "--node", "127.0.0.1")
        drain.until_said(f"cannot take node 127.0.0.1 out of job {job.job_id}: it leads the job, which ends with it")
        end_well(job)
        drain.done()
        assert f"job {job.job_id} has ended: all ranks" in drain.said


def test_two_nodes_that_leave_at_once_are_both_replaced(tmp_path: Path) -> None:
    with nodes(tmp_path, "2:4") as job:
        begin(job, 1, 2, 3, 4)
        drains = [Drain(job, 1, "--node", f"127.0.0.{number}") for number in (2, 3)]
        assert all("has left job" in drain.done() for drain in drains)
        gone = Drain(job, 1, "--node", "127.0.0.3")
        assert gone.process.wait(LIMIT_S) == 1
        assert gone.said.startswith("holdfast: cannot drain node 127.0.0.3: it has left the job; holdfast nodes shows")
        end_well(job, 2, 3)


def test_an_elected_leader_is_drained_and_another_node_leads(tmp_path: Path, server: Etcd) -> None:
    with nodes(tmp_path, "2:3") as job:
        begin_with_etcd(job, server, 1, 2, 3)
        leader = str(server.record(f"/holdfast/{job.job_id}/leader")["node"])
        Drain(job, 3 if leader != "127.0.0.3" else 2, "--node", leader).done()
        end_well(job, int(leader[-1]))


@pytest.mark.soak
def test_a_drain_while_etcd_is_away_stops_nothing_and_is_done_once_it_is_back(tmp_path: Path, server: Etcd) -> None:
    with nodes(tmp_path, "2:3") as job:
        begin_with_etcd(job, server, 1, 2, 3)
        server.stop()
        drain, again = Drain(job, 2), Drain(job, 2)
        drain.until_said("node 127.0.0.2 is to leave job")
        again.until_said("node 127.0.0.2 is to leave job")
        wait_until(lambda: WAITS in ask(job, 1, "status", job.job_id), timeout_s=LIMIT_S, what="the outage")
        with pytest.raises(subprocess.TimeoutExpired):
            drain.process.wait(12)  # longer than a node waits that is about to be ended
        assert not list(tmp_path.glob("1-*"))
        server.start()
        drain.done()
        again.done()
        end_well(job, 2)


@pytest.mark.soak
def test_a_node_that_is_drained_and_then_ended_leaves_alone(tmp_path: Path, server: Etcd) -> None:
    """Nobody answers the drain. A signal gives that a limit, and the second one ends its ranks at once."""
    with nodes(tmp_path, "2:3") as job:
        begin_with_etcd(job, server, 1, 2, 3)
        leader = str(server.record(f"/holdfast/{job.job_id}/leader")["node"])
        number = 2 if leader != "127.0.0.2" else 1
        server.stop()
        drain = Drain(job, number)
        drain.until_said(f"node 127.0.0.{number} is to leave job")
        wait_until(lambda: WAITS in ask(job, number, "status", job.job_id), timeout_s=LIMIT_S, what="the outage")
        run = job.processes[number - 1]
        run.send_signal(signal.SIGTERM)
        wait_until(lambda: "got SIGTERM" in job.output(number), timeout_s=LIMIT_S, what="the first signal")
        asked_s = time.monotonic()
        wait_until(lambda: time.monotonic() > asked_s + SAME_SIGTERM_S, timeout_s=LIMIT_S, what="another signal")
        run.send_signal(signal.SIGTERM)
        assert run.wait(LIMIT_S) == 0
        assert time.monotonic() - asked_s < ANSWER_WITH_RANKS_S, "it does not wait for an answer any more"
        drain.done()
        server.start()
        job.until_running(1, 4)
        end_well(job, number, units=1)


@pytest.mark.parametrize("is_given_up", [False, True])
def test_a_drain_while_the_leader_is_stopped_waits_for_it(tmp_path: Path, is_given_up: bool) -> None:
    """After 4 s, the other nodes have ended their ranks. They meet the leader by new connections once it goes on."""
    with nodes(tmp_path, "2:3") as job:
        begin(job, 1, 2, 3)
        job.processes[0].send_signal(signal.SIGSTOP)
        drain = Drain(job, 2)
        drain.until_said("node 127.0.0.2 is to leave job")
        if is_given_up:
            (log,) = tmp_path.glob("node2/state/logs/*/*/supervisor.log")
            wait_until(
                lambda: "kind=workers_stopped" in log.read_text(), timeout_s=LIMIT_S, what="the end of its ranks"
            )
        job.processes[0].send_signal(signal.SIGCONT)
        drain.done()
        end_well(job, 2, units=1)  # of the leader, if it stood still for too long


def test_a_drain_whose_node_is_uncordoned_meanwhile_says_so_and_fails(tmp_path: Path) -> None:
    with daemons(tmp_path, 2) as (first, second):
        job = Job(tmp_path, "needed", [first, second], "2", "60")
        job.until_running(0, 4)
        drain = second.ask("drain")
        said = second.commands[-1]
        wait_until(lambda: "waiting for the end of job" in said.read_text(), timeout_s=LIMIT_S, what="the refusal")
        second.holdfast("uncordon")
        job.let_end()
        assert drain.wait(LIMIT_S) == 1
        assert "somebody has uncordoned it meanwhile; it takes jobs; type holdfast drain again" in said.read_text()
