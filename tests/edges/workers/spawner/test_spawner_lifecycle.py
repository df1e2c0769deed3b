"""Real spawners from start to end: a normal one, a killed one, one that can't be started."""

import os
import resource
import signal
import sys
import threading
from collections.abc import AsyncGenerator, Awaitable, Mapping
from contextlib import ExitStack, asynccontextmanager, suppress
from pathlib import Path

import anyio
import msgspec
import psutil
import pytest
from holdfast_wire import spawner_link as link
from holdfast_wire.private_supervisor import LOG_PROCESS_NAME

from supervisor.config import JobSpec
from supervisor.config.job_logs import JobLogs
from supervisor.edges.workers.spawner import dead_spawner_state, spawner_discovery, spawner_process
from supervisor.edges.workers.spawner.lost_spawner_processes import Orphans
from supervisor.edges.workers.spawner.spawner_lifecycle import STUCK_STARTS_MAX, SpawnerLifecycle
from supervisor.ports.edges import Spawner
from tests.edges.workers.worker_side import until
from worker_client.spawner.cycle_log.worker_pipe import waiting_bytes

LIMIT_S = 30
PRINTS = """
import os, time
print("one", flush=True)
while not os.path.exists("go"):
    time.sleep(0.01)
print("two", flush=True)
time.sleep(600)
"""


class Ear:
    """Receives the spawner's messages; `when` acts at the first one of a kind."""

    def __init__(self) -> None:
        self.spawners: list[Spawner] = []
        self.heard: list[link.FromSpawner] = []
        self.ready = anyio.Event()
        self.spawned = anyio.Event()

    def take(self, message: link.FromSpawner) -> None:
        self.heard.append(message)
        if isinstance(message, link.Ready):
            self.ready.set()
        if isinstance(message, link.Spawned):
            self.spawned.set()


@pytest.fixture
def spec(tmp_path: Path) -> JobSpec:
    script = tmp_path / "wait.py"
    script.write_text("import time; time.sleep(600)\n")
    return JobSpec("kept", (str(script),), cwd=str(tmp_path), python=sys.executable)


async def test_one_that_was_told_to_end_is_no_loss(spec: JobSpec) -> None:
    ear = Ear()
    reasons: list[str] = []

    async def keep() -> None:
        lifecycle = SpawnerLifecycle(private=True, output_dir=None)
        reasons.append(await lifecycle.keep(spec, os.environ, on_started=ear.spawners.append, on_message=ear.take))

    with anyio.fail_after(LIMIT_S):
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(keep)
            await ear.ready.wait()
            ear.spawners[0].send(link.End())
    assert reasons == ["the spawner ended because it was asked to"]
    assert isinstance(ear.heard[-1], link.Ended)


async def test_an_interpreter_that_is_no_python_is_refused_before_the_loss_is_told(spec: JobSpec) -> None:
    ear = Ear()
    spec = msgspec.structs.replace(spec, python="/bin/false")
    with anyio.fail_after(LIMIT_S):
        lifecycle = SpawnerLifecycle(private=True, output_dir=None)
        why = await lifecycle.keep(spec, os.environ, on_started=ear.spawners.append, on_message=ear.take)
    (ready,) = ear.heard
    assert isinstance(ready, link.Ready)
    assert ready.refusal.startswith("cannot run with /bin/false: it exited with code 1 instead of starting workers;")
    assert (ready.refusal_code, "exited with code 1" in why) == (78, True)


def lifecycle_in(folder: Path) -> SpawnerLifecycle:
    folder.mkdir(mode=0o700)
    return SpawnerLifecycle(private=False, output_dir=None, return_folder=folder)


@asynccontextmanager
async def kept(lifecycle: SpawnerLifecycle, spec: JobSpec) -> AsyncGenerator[Spawner]:
    """A spawner that is ready; it must have ended within LIMIT_S."""
    ear = Ear()

    async def keep() -> None:
        reason = await lifecycle.keep(spec, os.environ, on_started=ear.spawners.append, on_message=ear.take)
        assert ear.ready.is_set(), reason

    with anyio.fail_after(LIMIT_S):
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(keep)
            await ear.ready.wait()
            yield ear.spawners[0]


async def test_what_it_kept_stays_until_the_end_of_the_job_is_recorded(spec: JobSpec, tmp_path: Path) -> None:
    folder = tmp_path / "spawners"
    lifecycle = lifecycle_in(folder)
    async with kept(lifecycle, spec) as spawner:
        spawner.keep({"state": "all of it"}, (link.End(),), lambda: None)
    (place,) = spawner_discovery.find_files(folder)
    left = dead_spawner_state.read(place)
    assert left is not None
    assert left.texts["state"] == "all of it"
    lifecycle.end_run(spec.job_id)()
    assert spawner_discovery.find_files(folder) == []


async def test_what_a_lost_spawner_kept_is_removed_once_the_next_one_keeps_the_job(
    spec: JobSpec, tmp_path: Path
) -> None:
    """It may be a process that can't be killed, for which the next supervisor would wait."""
    folder = tmp_path / "spawners"
    lifecycle = lifecycle_in(folder)
    async with kept(lifecycle, spec) as spawner:
        spawner.kill("it is stuck")
    (first,) = spawner_discovery.find_files(folder)
    async with kept(lifecycle, spec) as spawner:
        (second,) = {*spawner_discovery.find_files(folder)} - {first}
        spawner.keep({"state": "all of it"}, (), lambda: None)
        await until(second.keep_path.exists)
        spawner.keep({"state": "and more"}, (), lambda: None)
        assert spawner_discovery.find_files(folder) == [second]
        spawner.kill("it is stuck, too")


async def test_what_a_lost_spawner_kept_stays_as_long_as_the_next_one_loads(spec: JobSpec, tmp_path: Path) -> None:
    """If both were lost then, nobody would know how the job ended. One that is stopped reads as little."""
    lifecycle = lifecycle_in(tmp_path / "spawners")
    async with kept(lifecycle, spec) as spawner:
        spawner.keep({"state": "all of it"}, (), lambda: None)
        (first,) = spawner_discovery.find_files(tmp_path / "spawners")
        await until(first.keep_path.exists)
        spawner.kill("it is stuck")
    is_kept = anyio.Event()

    def started(spawner: Spawner) -> None:
        os.kill(spawner.pid, signal.SIGSTOP)
        spawner.keep({"state": "and more"}, (), is_kept.set)
        assert is_kept.is_set()
        assert first.keep_path.exists()
        spawner.kill("it is stuck, too")

    with anyio.fail_after(LIMIT_S):
        await lifecycle.keep(spec, os.environ, on_started=started, on_message=lambda _: None)
    assert is_kept.is_set()
    left = dead_spawner_state.read(first)
    assert left is not None
    assert left.texts["state"] == "all of it"
    lifecycle.end_run(spec.job_id)()
    assert spawner_discovery.find_files(tmp_path / "spawners") == []


async def test_what_a_killed_spawner_leaves_after_the_end_was_recorded_is_removed_too(
    spec: JobSpec, tmp_path: Path
) -> None:
    """An abandoned job ends at once, and its spawner is killed in the same turn: that one exits later."""
    folder = tmp_path / "spawners"
    lifecycle = lifecycle_in(folder)
    async with kept(lifecycle, spec) as spawner:
        spawner.kill("the job was abandoned")
        lifecycle.end_run(spec.job_id)()
    assert spawner_discovery.find_files(folder) == []


async def test_what_the_next_run_of_the_id_keeps_stays_though_the_end_of_the_first_is_recorded_late(
    spec: JobSpec, tmp_path: Path
) -> None:
    folder = tmp_path / "spawners"
    lifecycle = lifecycle_in(folder)
    async with kept(lifecycle, spec) as spawner:
        spawner.kill("it is stuck")
    (first,) = spawner_discovery.find_files(folder)
    first_is_recorded = lifecycle.end_run(spec.job_id)
    async with kept(lifecycle, spec) as spawner:
        first_is_recorded()
        spawner.kill("it is stuck")
    (second,) = spawner_discovery.find_files(folder)
    assert second != first


@pytest.mark.parametrize("has_files", [False, True])
async def test_a_late_search_for_what_a_killed_spawner_left_spares_the_next_spawner_of_the_job(
    spec: JobSpec, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, has_files: bool
) -> None:
    """The end of the killed spawner ends the wait for the first search, but not the thread that searches."""
    go_on, is_over = threading.Event(), threading.Event()
    sweep, calls = Orphans.sweep, list[Orphans]()

    def sweep_late(orphans: Orphans, *, others: frozenset[int]) -> tuple[int, ...]:
        calls.append(orphans)
        if len(calls) > 1:
            return sweep(orphans, others=others)
        assert go_on.wait(LIMIT_S)
        try:
            return sweep(orphans, others=others)
        finally:
            is_over.set()

    def started(spawner: Spawner) -> None:
        go_on.set()
        assert is_over.wait(LIMIT_S)
        spawner.send(link.End())

    monkeypatch.setattr(Orphans, "sweep", sweep_late)
    lifecycle = lifecycle_in(tmp_path / "spawners") if has_files else SpawnerLifecycle(private=True, output_dir=None)
    async with kept(lifecycle, spec) as spawner:
        spawner.kill("it is stuck")
    with anyio.fail_after(LIMIT_S):
        reason = await lifecycle.keep(spec, os.environ, on_started=started, on_message=lambda _: None)
    assert reason == "the spawner ended because it was asked to"


async def test_one_that_is_killed_is_a_loss_and_takes_its_workers_with_it(spec: JobSpec) -> None:
    ear = Ear()
    reasons: list[str] = []

    async def keep() -> None:
        lifecycle = SpawnerLifecycle(private=True, output_dir=None)
        reasons.append(await lifecycle.keep(spec, os.environ, on_started=ear.spawners.append, on_message=ear.take))

    with anyio.fail_after(LIMIT_S):
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(keep)
            await ear.ready.wait()
            ear.spawners[0].send(link.Spawn(0, (link.WorkerPlan(local_rank=0, rank=0, env={}),)))
            await ear.spawned.wait()
            os.kill(ear.spawners[0].pid, signal.SIGKILL)
    assert "was killed by signal 9" in reasons[0]
    (worker,) = [message.pid for message in ear.heard if isinstance(message, link.Spawned)]
    with pytest.raises(ProcessLookupError):
        os.kill(worker, 0)


def _unread_bytes(pid: int) -> int:
    """Returns how much waits in the pipes that the process reads."""
    found = 0
    for each in Path(f"/proc/{pid}/fd").iterdir():
        if str(each.readlink()).startswith("pipe:"):
            reader = os.open(each, os.O_RDONLY | os.O_NONBLOCK)
            found += waiting_bytes(reader)
            os.close(reader)
    return found


@pytest.mark.parametrize("is_asked", [False, True])
async def test_what_is_printed_is_in_the_log_of_the_cycle_though_the_spawner_is_killed(
    spec: JobSpec, tmp_path: Path, is_asked: bool
) -> None:
    """A stopped log process stands for one whose disk does not answer."""
    (tmp_path / "wait.py").write_text(PRINTS)
    log = tmp_path / "train_cycle0.log"
    lifecycle = SpawnerLifecycle(private=True, output_dir=None)
    async with kept(lifecycle, spec) as spawner:
        spawner.send(link.Spawn(0, (link.WorkerPlan(0, 0, {}, cycle_log=str(log)),)))
        await until(lambda: log.exists() and log.read_text() == "one\n")
        (writer,) = [each for each in psutil.Process(spawner.pid).children() if each.name() == LOG_PROCESS_NAME]
        writer.suspend()
        await until(lambda: writer.status() == psutil.STATUS_STOPPED)
        (tmp_path / "go").touch()
        await until(lambda: _unread_bytes(writer.pid))
        if is_asked:
            spawner.kill("it is stuck")
        else:
            os.kill(spawner.pid, signal.SIGKILL)
    writer.resume()
    await until(lambda: log.read_text() == "one\ntwo\n")
    await until(lambda: writer.status() == psutil.STATUS_ZOMBIE)
    await _keep(lifecycle, msgspec.structs.replace(spec, python="/bin/false", logs=JobLogs(str(tmp_path / "next"))))
    await until(lambda: not psutil.pid_exists(writer.pid))


async def test_an_interpreter_that_is_not_there_is_said_at_once(spec: JobSpec) -> None:
    lifecycle = SpawnerLifecycle(private=True, output_dir=None)
    missing = JobSpec("kept", spec.command, cwd=spec.cwd, python="/nonexistent/python")
    with anyio.fail_after(LIMIT_S):
        reason = await lifecycle.keep(missing, os.environ, on_started=lambda _: None, on_message=lambda _: None)
    assert "/nonexistent/python" in reason


def _keep(lifecycle: SpawnerLifecycle, spec: JobSpec, environment: Mapping[str, str] = os.environ) -> Awaitable[str]:
    return lifecycle.keep(spec, environment, on_started=lambda _: None, on_message=lambda _: None)


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"cwd": "/nonexistent/\ud800"}, "surrogates not allowed"),
        ({"cwd": "x" * 5000}, "File name too long"),
        ({"python": "nul\0"}, "embedded null"),
        ({"command": ("x" * 200_000,)}, "Argument list too long"),
    ],
)
async def test_whatever_is_wrong_with_a_start_is_a_sentence(
    spec: JobSpec, change: dict[str, object], reason: str
) -> None:
    lifecycle = SpawnerLifecycle(private=True, output_dir=None)
    with anyio.fail_after(LIMIT_S):
        told = await _keep(lifecycle, msgspec.structs.replace(spec, **change))
    assert told.startswith("cannot start the spawner of job kept: ")
    assert reason in told


@pytest.mark.parametrize("left", range(3))  # It needs no more of ours than that.
async def test_without_descriptors_left_it_is_the_reason_and_nothing_leaks(spec: JobSpec, left: int) -> None:
    lifecycle = SpawnerLifecycle(private=False, output_dir=Path(spec.cwd) / "output")
    plugs = _plug_gaps()  # the limit is a highest number: free numbers below it would be used
    open_before = len(os.listdir("/proc/self/fd")) - 1  # without the listing's own
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (_highest_fd() + 1 + left, hard))
    try:
        with anyio.fail_after(LIMIT_S):
            told = await _keep(lifecycle, spec)
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    assert "Too many open files" in told
    assert "ulimit -n" in told
    assert len(os.listdir("/proc/self/fd")) - 1 == open_before
    for plug in plugs:
        os.close(plug)


def _plug_gaps() -> list[int]:
    """Opens a descriptor on every free number below the highest open one."""
    highest = _highest_fd()
    plugs: list[int] = []
    while (plug := os.open(os.devnull, os.O_RDONLY)) < highest:
        plugs.append(plug)
    os.close(plug)
    return plugs


def _highest_fd() -> int:
    return max(int(name) for name in os.listdir("/proc/self/fd")[:-1])


async def test_a_pipe_in_the_place_of_its_output_is_refused_and_blocks_nothing(spec: JobSpec) -> None:
    folder = Path(spec.cwd) / "output"
    folder.mkdir(parents=True)
    os.mkfifo(folder / "spawner.stdout.log")
    with anyio.fail_after(LIMIT_S):
        told = await _keep(SpawnerLifecycle(private=False, output_dir=folder), spec)
    assert "spawner.stdout.log" in told


def _living_children() -> set[psutil.Process]:
    """Returns those of this process; one that a killed spawner had, and that has ended, is nobody's to wait for."""
    found: set[psutil.Process] = set()
    for each in psutil.Process().children():
        with suppress(psutil.NoSuchProcess):
            if each.status() != psutil.STATUS_ZOMBIE:
                found.add(each)
    return found


async def test_a_start_that_is_stuck_is_given_up_and_named_and_what_comes_of_it_is_killed(
    spec: JobSpec, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The folder answers late: the loop continues meanwhile, and the process that starts after all is killed."""
    go_on = threading.Event()
    slow_folder = spawner_process._open_output  # pyright: ignore[reportPrivateUsage]

    def open_late(path: Path, files: ExitStack) -> int:
        assert go_on.wait(LIMIT_S)
        return slow_folder(path, files)

    monkeypatch.setattr(spawner_process, "_open_output", open_late)
    lifecycle = SpawnerLifecycle(private=False, output_dir=Path(spec.cwd) / "output", start_timeout_s=0.05)
    before = _living_children()
    with anyio.fail_after(LIMIT_S):
        for _ in range(STUCK_STARTS_MAX):
            told = await _keep(lifecycle, spec)
            assert f"opening its output in {spec.cwd}/output: it has not ended within 0.05 s" in told
        assert "2 earlier calls are stuck" in await _keep(lifecycle, spec)
        assert "within 0.05 s" in await _keep(lifecycle, msgspec.structs.replace(spec, job_id="other")), "a bulkhead"
        go_on.set()
        await until(lambda: not any(threads.stuck for threads in lifecycle.threads.values()))
        await until(lambda: not _living_children() - before)
