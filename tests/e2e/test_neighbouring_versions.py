"""Row B4: this version and the previous one take over each other's jobs, serve each other's ranks and share jobs."""

from __future__ import annotations

import os
import signal
import sys
import time
from collections.abc import Callable, Generator
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.e2e import version_before
from tests.e2e.daemons import NodeDaemon
from tests.e2e.hangs import MONITORED, told
from tests.e2e.launch import SCRIPTS, Launch, wait_until
from tests.e2e.test_cluster_supervisor_returns import events, pids, shown, start_again, until_shown
from tests.e2e.test_many_nodes import SCRIPT
from tests.e2e.test_many_nodes_daemons import HOLDFAST, LIMIT_S, Job, Node
from tests.etcd_server import etcd

if TYPE_CHECKING:
    from tests.e2e.conftest import Start

pytestmark = pytest.mark.timeout(240)

UPGRADE, DOWNGRADE, FROM_BEFORE_TAGS = "upgrade", "downgrade", "from_before_tags"
BOTH_WAYS = pytest.mark.parametrize("way", [UPGRADE, DOWNGRADE])
ALL_WAYS = pytest.mark.parametrize("way", [UPGRADE, DOWNGRADE, FROM_BEFORE_TAGS])


@pytest.fixture(scope="module")
def before(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Returns the interpreter of the previous version."""
    return version_before.installed(tmp_path_factory.mktemp("before"))


@pytest.fixture(scope="module")
def before_tags(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return version_before.installed(tmp_path_factory.mktemp("before-tags"), version_before.BEFORE_TAGS)


@pytest.fixture
def pythons(request: pytest.FixtureRequest, way: str) -> tuple[str, str]:
    """Returns the interpreters of the first supervisor with its job, and of the second supervisor."""
    other = str(request.getfixturevalue("before_tags" if way == FROM_BEFORE_TAGS else "before"))
    return (sys.executable, other) if way == DOWNGRADE else (other, sys.executable)


@pytest.fixture
def daemon(tmp_path: Path, pythons: tuple[str, str]) -> Generator[NodeDaemon]:
    with NodeDaemon(tmp_path / "daemon", python=pythons[0]) as running:
        yield running


def replace(daemon: NodeDaemon, python: str, meanwhile: Callable[[], object] = lambda: None) -> None:
    """Replaces it as systemctl restart does after an upgrade. `meanwhile` is called while no supervisor is there."""
    assert daemon.process is not None
    daemon.process.send_signal(signal.SIGUSR1)
    assert daemon.process.wait(30) == 0
    meanwhile()
    daemon.python = python
    daemon.start()


def run_under(start: Start, daemon: NodeDaemon, python: str, *arguments: str) -> Launch:
    environment = {"HOLDFAST_SOCKET_DIR": str(daemon.socket_dir)}
    return start("--nproc-per-node", "2", *arguments, environment=environment, python=python)


@ALL_WAYS
def test_b4_the_other_version_goes_on_with_a_job_its_spawner_and_its_ranks(
    start: Start, daemon: NodeDaemon, pythons: tuple[str, str]
) -> None:
    launch = run_under(
        start, daemon, pythons[0], "--max-restarts", "2", "--ft-rank-heartbeat-timeout", "1.5",
        MONITORED, "0:0/init,beat-for=600", "0:1/init,beat,await-file,exit=3", "1:1/init,beat,hang=sleep",
        "2:*/init,beat,exit=0",
    )  # fmt: skip
    launch.wait_for_trace("initialised", count=2)
    replace(daemon, pythons[1])
    (launch.folder / "go").touch()
    assert launch.wait() == 0, launch.explained() + daemon.errors.read_text()
    assert [event["sequence"] for event in launch.events()] == [*range(1, len(launch.events()) + 1)]
    (failed,) = told(launch, "worker_failed")
    assert "failed with exit code 3" in str(failed["reason"])
    (hang,) = told(launch, "hang_detected")
    assert (hang["cycle"], hang["rank"]) == (1, 1)
    assert len(told(launch, "supervisor_returned")) == 1
    assert len(launch.traced("started")) == 6


@ALL_WAYS
def test_b4_a_wrapped_call_goes_on_under_the_other_version(
    start: Start, daemon: NodeDaemon, pythons: tuple[str, str]
) -> None:
    launch = run_under(start, daemon, pythons[0], str(SCRIPTS / "wrapped.py"), "exception-at-go")
    launch.wait_for_trace("fn", count=2)

    def fail() -> None:
        (launch.folder / "go").touch()
        launch.wait_for_trace("fault")

    replace(daemon, pythons[1], fail)
    assert launch.wait() == 0, launch.explained() + daemon.errors.read_text()
    assert sorted((line["iteration"], line["rank"]) for line in launch.traced("fn")) == [(0, 0), (0, 1), (1, 0), (1, 1)]
    assert not told(launch, "restart_decided")


@pytest.mark.soak
def test_b4_a_node_whose_version_is_too_far_is_refused_with_both_named(tmp_path: Path, before_tags: Path) -> None:
    (tmp_path / "train.py").write_text(SCRIPT)
    both = [Node(tmp_path, 1, HOLDFAST), Node(tmp_path, 2, before_tags.with_name("holdfast"))]
    try:
        for node in both:
            wait_until(lambda node=node: node.is_serving, timeout_s=LIMIT_S, what="a daemon")
        job = Job(tmp_path, "job", both, "1:2", "60")
        assert job.processes[1].wait(LIMIT_S) == 1
        assert "it speaks version 1 of the protocol, the leader version 2" in both[1].said(job.job_id)
        job.until_running(0, 2)
        job.let_end()
        assert job.processes[0].wait(LIMIT_S) == 0
    finally:
        for node in both:
            node.end()


@pytest.mark.soak
@BOTH_WAYS
def test_b4_nodes_of_both_versions_share_a_job_while_one_of_them_is_replaced(
    tmp_path: Path, before: Path, way: str
) -> None:
    """The leader or the other node has the previous version. Then its supervisor is replaced by this version's."""
    (tmp_path / "train.py").write_text(SCRIPT)
    older = before.with_name("holdfast")
    leads, follows = (older, HOLDFAST) if way == UPGRADE else (HOLDFAST, older)
    both: list[Node] = []
    try:
        both += [Node(tmp_path, 1, leads), Node(tmp_path, 2, follows)]
        for node in both:
            wait_until(lambda node=node: node.is_serving, timeout_s=LIMIT_S, what="a daemon")
        replaced = both[0] if way == UPGRADE else both[1]
        job = Job(tmp_path, "job", both, "2", "60")
        job.until_running(0, 4)
        running = pids(both[0], job)
        assert shown(both[1], job)["state"] == "running"
        replaced.process.send_signal(signal.SIGUSR1)
        assert replaced.process.wait(30) == 0
        replaced.program = HOLDFAST
        replaced.start_again()
        wait_until(lambda: pids(both[0], job) == running, timeout_s=LIMIT_S, what="the ranks of both nodes")
        replaced.holdfast("restart", job.job_id)
        job.until_running(1, 4)
        job.let_end()
        assert job.exit_codes() == [0, 0], replaced.daemon_said
        seen = events(both[0], job)
        assert [event["sequence"] for event in seen] == list(range(1, len(seen) + 1))
        assert not [each for each in seen if each["kind"] in ("node_lost", "events_missing")]
    finally:
        for node in both:
            node.end()


@pytest.mark.soak
@pytest.mark.parametrize("elects", [False, True], ids=["built-in", "etcd"])
def test_b4_every_supervisor_of_three_nodes_is_killed_and_returns_as_this_version(
    tmp_path: Path, before: Path, elects: bool
) -> None:
    """Nothing restarts. Then a failure is handled by nodes that are all of this version."""
    (tmp_path / "train.py").write_text(SCRIPT)
    all_nodes: list[Node] = []
    with ExitStack() as ends:
        endpoint = ends.enter_context(etcd(tmp_path / "etcd")).endpoint if elects else ""
        try:
            all_nodes += [Node(tmp_path, number, before.with_name("holdfast")) for number in (1, 2, 3)]
            for node in all_nodes:
                wait_until(lambda node=node: node.is_serving, timeout_s=LIMIT_S, what="a daemon")
            job = Job(tmp_path, "job", all_nodes, "3", "60", etcd=endpoint)
            job.until_running(0, 6)
            running = pids(all_nodes[0], job)
            for node in all_nodes:
                node.kill()
                killed_s = time.monotonic()
                node.program = HOLDFAST
                start_again(node, killed_s)
                until_shown(node, job, running, is_said=False)
            assert not list(job.folder.glob("1-*"))
            os.kill(running[4], signal.SIGKILL)
            job.until_running(1, 6)
            assert shown(all_nodes[1], job)["restarts_used"] == 1
            job.let_end()
            assert job.exit_codes() == [0, 0, 0], [node.daemon_said for node in all_nodes]
            assert not list(job.folder.glob("2-*"))
            seen = events(all_nodes[0], job)
            assert [event["sequence"] for event in seen] == list(range(1, len(seen) + 1))
            assert not [each for each in seen if each["kind"] in ("node_lost", "events_missing")]
        finally:
            for node in all_nodes:
                node.end()
