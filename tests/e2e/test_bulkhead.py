"""One daemon, a healthy job, and beside it jobs whose environment fails in every way that once ended the daemon.

Each time, the daemon answers, the healthy job continues with the same processes, and the hit job runs or ends with a
reason.
"""

from __future__ import annotations

import contextlib
import os
import resource
import signal
import subprocess
import time
from collections.abc import Generator
from pathlib import Path

import pytest

from supervisor.config.job_spec import Entry, JobSpec
from supervisor.edges.operators.control_client import ControlClient
from supervisor.errors import HoldfastError
from supervisor.ports.reports import RecordedEvent
from tests.e2e.launch import SCRIPTS, wait_until
from tests.soak.crew import Job
from tests.soak.one_daemon import OneDaemon, descriptors
from tests.soak.places import SmallDisk, Unanswering, mounts_of_our_own

pytestmark = pytest.mark.timeout(150)

TWO_CYCLES = str(SCRIPTS / "two_cycles.py")
STEPS = 10
END_S = 60.0
STALL_S = 3.0  # a step takes 0.02 s, but this machine may be small
WORKERS = 600  # twice 3,600 bytes for each: more than 4 MiB
LIMIT_S = 3.0  # of silence, for ranks of Job
BUSY_S = 2.0
GIVEN_UP_S = 40.0  # for a spawner that the kernel holds: no report for 10 s, then the same time until it is given up


class Node:
    """The daemon, the healthy job, and the places that fail."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.sockets = SmallDisk(folder / "run", mode="700")
        self.disk = SmallDisk(folder / "disk")
        self.silent = Unanswering(folder / "silent")
        self.daemon = OneDaemon(folder)
        self.beside = Job(self.daemon, "beside")
        self.count = 0
        self.counts_on()

    def counts_on(self) -> None:
        """Waits until the healthy job has done that many more steps on each rank."""
        self.beside.look()
        before = self.beside.steps()

        def has_counted() -> bool:
            self.beside.look()
            return min(after - b for after, b in zip(self.beside.steps(), before, strict=True)) >= STEPS

        wait_until(has_counted, timeout_s=30, what="steps of the job beside")

    @contextlib.contextmanager
    def unhurt(self) -> Generator[None]:
        self.beside.look()
        calm = dict(self.beside.steps_seen)
        yield
        self.counts_on()
        assert self.beside.is_the_same_group(calm), self.daemon.status(self.beside.job_id)
        assert self.beside.overlaps() + self.beside.wrong == []
        assert self.daemon.process.poll() is None, (self.folder / "daemon.txt").read_text()
        assert "Traceback" not in (self.folder / "daemon.txt").read_text()

    def start(self, *arguments: str) -> Hit:
        self.count += 1
        return Hit(self, f"hit-{self.count}-{self.daemon.cookie[:6]}", *arguments)

    def two_cycles(self, *arguments: str) -> Hit:
        """Starts a job that stays in cycle 0 until `go_on` is called."""
        folder = self.folder / f"cycles{self.count}"
        folder.mkdir()
        os.mkfifo(folder / "go")
        hit = self.start("--max-restarts", "1", *arguments, TWO_CYCLES, str(folder))
        hit.folder = folder
        wait_until((folder / "began-0").exists, timeout_s=30, what="cycle 0")
        return hit

    def close(self) -> None:
        self.silent.mend()
        (self.beside.folder / "stop").touch()
        with contextlib.suppress(subprocess.TimeoutExpired):
            self.beside.client.wait(20)
        self.daemon.close()
        left = self.daemon.leftovers(within_s=20)
        for place in (self.sockets, self.disk, self.silent):
            place.close()
        assert left == []


class Hit:
    """A job whose environment fails."""

    def __init__(self, node: Node, job_id: str, *arguments: str) -> None:
        self.job_id, self.folder, self._node = job_id, node.folder, node
        self._client = node.daemon.run(job_id, *arguments)

    def go_on(self) -> None:
        with (self.folder / "go").open("w"):
            pass

    def end(self) -> tuple[int, str]:
        """Returns the exit code and the output, which never contains a traceback."""
        code = self._client.wait(END_S)
        text = (self._node.folder / f"{self.job_id}.txt").read_text(errors="replace")
        assert "Traceback" not in text
        return code, text

    def must_end_well(self) -> str:
        code, text = self.end()
        assert code == 0, text
        return text

    def must_end_with(self, words: str) -> str:
        """Returns the sentence."""
        code, text = self.end()
        assert code != 0
        assert words in text
        return text

    def log_folder(self, under: Path) -> Path:
        (run,) = (under / self.job_id).iterdir()
        return run


@pytest.fixture(scope="module")
def node(tmp_path_factory: pytest.TempPathFactory) -> Generator[Node]:
    with mounts_of_our_own() as can_mount:
        if not can_mount or not os.access("/dev/fuse", os.R_OK | os.W_OK):
            pytest.skip("needs root and mount namespaces")
        begun = Node(tmp_path_factory.mktemp("bulkhead"))
        try:
            yield begun
        finally:
            begun.close()


@contextlib.contextmanager
def failing(place: SmallDisk | Unanswering) -> Generator[None]:
    place.fail()
    try:
        yield
    finally:
        place.mend()


@contextlib.contextmanager
def few_descriptors(pid: int, *, more: int) -> Generator[None]:
    before = resource.prlimit(pid, resource.RLIMIT_NOFILE)
    resource.prlimit(pid, resource.RLIMIT_NOFILE, (descriptors(pid) + more, before[1]))
    try:
        yield
    finally:
        resource.prlimit(pid, resource.RLIMIT_NOFILE, before)


# --- logs ----------------------------------------------------------------------------------------------------------


def test_a_log_folder_below_a_file(node: Node) -> None:
    (node.folder / "file").touch()
    with node.unhurt():
        hit = node.start("--log-dir", str(node.folder / "file" / "x"), "-t", "3", "--no-python", "true")
        hit.must_end_with("Not a directory")


@pytest.mark.parametrize(("log_dir", "words"), [("logs\udc80", "not valid UTF-8"), ("x" * 300, "300 bytes")])
def test_a_log_folder_that_no_file_system_could_hold_over_grpc(node: Node, log_dir: str, words: str) -> None:
    spec = JobSpec("odd", ("true",), entry=Entry.COMMAND, cwd=str(node.folder), log_dir=log_dir)
    with (
        node.unhurt(),
        ControlClient(node.daemon.sockets / "control.sock") as client,
        pytest.raises(HoldfastError, match=words),
    ):
        client.submit(spec, {"PATH": os.environ["PATH"]})


def test_a_log_disk_that_is_full_at_a_restart(node: Node) -> None:
    with node.unhurt():
        hit = node.two_cycles("--log-dir", str(node.disk.folder / "logs"), "-t", "3")
        with failing(node.disk):
            hit.go_on()
            hit.must_end_well()


def test_a_fifo_in_place_of_a_log_at_a_restart(node: Node) -> None:
    logs = node.folder / "fifo-logs"
    with node.unhurt():
        hit = node.two_cycles("--log-dir", str(logs), "-t", "3")
        place = hit.log_folder(logs) / "cycle_1" / "rank_0"
        place.mkdir(parents=True)
        os.mkfifo(place / "stdout.log")
        hit.go_on()
        hit.must_end_well()


@pytest.mark.soak
def test_a_log_folder_that_never_answers_delays_no_verdict_of_another_job(node: Node) -> None:
    """Nor does its own job hang: after the deadlines its spawner is given up, and the job's end says where it waits."""
    with node.unhurt():
        silent = node.two_cycles("--max-restarts", "0", "--log-dir", str(node.silent.folder / "logs"), "-t", "3")
        other = Job(node.daemon, "other")
        wait_until(lambda: other.look() or min(other.steps()) > STEPS, timeout_s=30, what="steps of the other job")
        with failing(node.silent):
            began_s = time.monotonic()
            silent.go_on()
            os.kill(other.pid(1), signal.SIGSTOP)
            stopped_at_s = time.time()
            hang = the_event(node, other.job_id, "hang_detected")
            wait_until(lambda: other.look() or other.steps_seen[0].cycle == 1, timeout_s=20, what="cycle 1")
            assert -BUSY_S < hang.at_ns / 1e9 - stopped_at_s - LIMIT_S < BUSY_S
            # A new spawner starts, though the supervisor's readers hold a log on that disk open.
            os.kill(next(iter(spawners_of(other.job_id)), other.spawner()), signal.SIGKILL)
            wait_until(lambda: other.look() or other.steps_seen[0].cycle >= 2, timeout_s=20, what="its next cycle")
            code, text = silent.end()
            took_s = time.monotonic() - began_s
        assert took_s < GIVEN_UP_S
        assert (code, "waits in the kernel (state D)" in text) == (1, True), text
        (other.folder / "stop").touch()
        assert other.client.wait(END_S) == 0, other.printed()


def the_event(node: Node, job_id: str, kind: str) -> RecordedEvent:
    with ControlClient(node.daemon.sockets / "control.sock") as client:
        for each in client.watch(job_id, follow=True):
            if isinstance(each, RecordedEvent) and each.kind == kind:
                return each
    raise AssertionError(f"{job_id} ended without {kind}")


# --- sockets and tokens --------------------------------------------------------------------------------------------


def test_a_full_folder_of_sockets_and_tokens(node: Node) -> None:
    """At a restart, and at the first start."""
    with node.unhurt():
        hit = node.two_cycles()
        with failing(node.sockets):
            hit.go_on()
            hit.must_end_well()
            node.start("--no-python", "true").must_end_well()


def test_a_tokens_folder_with_a_wrong_mode(node: Node) -> None:
    with node.unhurt():
        hit = node.two_cycles()
        folder = next(node.daemon.sockets.rglob("*.token")).parent.parent
        folder.chmod(0o777)
        hit.go_on()
        hit.must_end_well()


# --- orders and descriptors ----------------------------------------------------------------------------------------


def test_more_workers_with_longer_paths_than_one_message_holds(node: Node) -> None:
    logs = node.folder.joinpath(*["x" * 250] * 14)
    with node.unhurt():
        hit = node.start(
            "--nproc-per-node", str(WORKERS), "--log-dir", str(logs), "-r", "3", "--no-python", "true"
        )  # fmt: skip
        hit.must_end_well()


@pytest.mark.parametrize("more", [0, 2, 5])
def test_no_descriptors_are_left_at_a_submission_and_at_a_restart(node: Node, more: int) -> None:
    with node.unhurt():
        hit = node.two_cycles()
        (spawner,) = spawners_of(hit.job_id)
        with few_descriptors(node.daemon.process.pid, more=more):
            code, text = node.start("--no-python", "true").end()
            assert code == 0 or "cannot" in text
            os.kill(spawner, signal.SIGKILL)
            code, text = hit.end()
            assert code == 0 or "Too many open files" in text, text
        node.start("--no-python", "true").must_end_well()


def spawners_of(job_id: str) -> list[int]:
    found: list[int] = []
    for each in Path("/proc").glob("[0-9]*/comm"):
        with contextlib.suppress(OSError):
            if each.read_text() != "hf-spawner\n":
                continue
            children = each.with_name("task").joinpath(each.parent.name, "children").read_text().split()
            if any(
                f"HOLDFAST_JOB_ID={job_id}".encode() in Path("/proc", pid, "environ").read_bytes() for pid in children
            ):
                found.append(int(each.parent.name))
    return found
