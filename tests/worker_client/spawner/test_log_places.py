"""Something in the place of a log, or on its full disk, costs log bytes but never a rank of a job that has run."""

from __future__ import annotations

import os
import resource
import socket
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from holdfast_wire.spawner_link import Emptied, ForkAhead, KillTree, OutputDropped, SpawnFailed, StreamPlan

from tests.worker_client.spawner.rig import Rig, until, with_env, worker

Script = Callable[..., str]


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    folder = tmp_path / "disk"
    folder.mkdir()
    if subprocess.run(["mount", "-t", "tmpfs", "-o", "size=64k", "none", folder], check=False).returncode:
        pytest.skip("this user may not mount")
    yield folder
    subprocess.run(["umount", "-l", folder], check=True)


def logged(path: Path, *, direct: bool = False) -> StreamPlan:
    return StreamPlan(console=False, file=str(path), direct=direct)


def _pipe(path: Path) -> None:
    os.mkfifo(path)


def _read_pipe(path: Path) -> None:
    os.mkfifo(path)
    os.open(path, os.O_RDONLY | os.O_NONBLOCK)  # left open until the end of the test run, on purpose


def _socket(path: Path) -> None:
    with socket.socket(socket.AF_UNIX) as server:
        server.bind(str(path))


def _link(path: Path) -> None:
    path.symlink_to("/dev/full")


@pytest.mark.parametrize("direct", [False, True], ids=["copied", "redirected"])
@pytest.mark.parametrize("stand", [_pipe, _read_pipe, _socket, _link, Path.mkdir])
def test_what_is_no_file_is_refused_at_once_before_the_job_has_run(
    script: Script, tmp_path: Path, stand: Callable[[Path], None], direct: bool
) -> None:
    stand(tmp_path / "log")
    with Rig(script("pass")) as rig:
        failed = rig.spawn_failing(worker(stdout=logged(tmp_path / "log", direct=direct)))
        assert "stands in the place of a log file" in failed.reason
        assert f"({tmp_path / 'log'}); move it away" in failed.reason
        (end,) = rig.run(worker(stdout=logged(tmp_path / "other", direct=direct)))
        assert end.code == 0


@pytest.mark.parametrize("direct", [False, True], ids=["copied", "redirected"])
def test_a_job_that_has_run_goes_on_without_it_and_says_so(script: Script, tmp_path: Path, direct: bool) -> None:
    _pipe(tmp_path / "log")
    with Rig(script("print('lost\\n', end='')")) as rig:
        rig.run(worker())
        (end,) = rig.run(worker(stdout=logged(tmp_path / "log", direct=direct)), cycle=1)
        assert end.code == 0
        dropped = rig.receive(OutputDropped)
        assert "stands in the place of a log file" in dropped.reason
        assert dropped.dropped_bytes == (0 if direct else len("lost\n"))


def test_a_full_disk_costs_log_bytes_only_in_each_cycle(script: Script, small_disk: Path) -> None:
    with Rig(script("for _ in range(5000): print('x' * 99)")) as rig:
        for cycle in range(3):
            plan = worker(stdout=logged(small_disk / f"cycle_{cycle}" / "log"))
            (end,) = rig.run(plan, cycle=cycle)
            assert end.code == 0
            rig.send(KillTree(cycle))
            rig.receive(Emptied)
            last = rig.pending(OutputDropped)[-1]
            assert last.cycle == cycle
            assert 500_000 - 64 * 1024 <= last.dropped_bytes <= 500_000
            assert "No space left on device; free space on that disk" in last.reason


def test_the_folders_that_a_plan_names_are_made_and_are_the_user_s_alone(script: Script, tmp_path: Path) -> None:
    error = tmp_path / "a" / "b" / "error.json"
    path = script(
        """
        import os, sys
        with open(os.environ["TORCHELASTIC_ERROR_FILE"], "w") as file:
            file.write('{"message": "ValueError: no"}')
        sys.exit(int(os.environ["CODE"]))
        """
    )
    with Rig(path) as rig:
        for code, line in ((1, "ValueError: no"), (0, "")):
            (end,) = rig.run(with_env(0, {"TORCHELASTIC_ERROR_FILE": str(error), "CODE": str(code)}))
            assert end.error == line
            assert end.error_at_unix_s == (error.stat().st_mtime if code else None)
    assert error.parent.stat().st_mode & 0o777 == 0o700


@pytest.mark.parametrize("path", ["/nonexistent\ud800/log", "/nul\0/log", "/dev/null/log", "x" * 300])
def test_a_path_that_can_not_be_is_a_sentence_and_the_spawner_goes_on(script: Script, path: str) -> None:
    with Rig(script("pass")) as rig:
        failed = rig.spawn_failing(worker(stdout=StreamPlan(console=False, file=path)))
        assert failed.reason.startswith("cannot start local rank 0: ")
        (end,) = rig.run(worker())
        assert end.code == 0


def test_an_environment_that_can_not_be_ends_that_worker_alone(script: Script) -> None:
    with Rig(script("pass")) as rig:
        (end,) = rig.run(with_env(0, {"X": "nul\0"}))
        assert end.code == 1
        (end,) = rig.run(worker())
        assert end.code == 0
        rig.end()


def test_starved_of_descriptors_it_refuses_each_worker_and_goes_on(script: Script, tmp_path: Path) -> None:
    """With any number of descriptors left, down to none: one spawner, and no unknown worker."""
    plan = worker(stdout=logged(tmp_path / "log"))
    with Rig(script("pass")) as rig:
        rig.run(worker())
        until(lambda: not rig.children(), what="the end of the first one")
        in_use = len(os.listdir(f"/proc/{rig.process.pid}/fd"))
        before = resource.prlimit(rig.process.pid, resource.RLIMIT_NOFILE)
        for left in range(7):
            resource.prlimit(rig.process.pid, resource.RLIMIT_NOFILE, (in_use + left, before[1]))
            rig.send(ForkAhead(left + 1, 1))
            rig.send(KillTree(99))
            rig.receive(Emptied)
            outcome = rig.outcome(plan, cycle=left + 1)
            if isinstance(outcome, SpawnFailed):
                assert "raise the limit on open files (ulimit -n)" in outcome.reason
            rig.send(KillTree(left + 1))
            rig.receive(Emptied)
        resource.prlimit(rig.process.pid, resource.RLIMIT_NOFILE, before)
        (end,) = rig.run(plan, cycle=50)
        assert end.code == 0
        rig.end()
