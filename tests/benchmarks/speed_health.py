"""Rows: what do the checks of a healthy node add to a restart, and what does a check of hanging storage delay?"""

from __future__ import annotations

import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Generator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path

from tests.benchmarks.bench import Bench
from tests.benchmarks.launch import Run, RunFailedError
from tests.benchmarks.rows import Group, Row, Target, Unit
from tests.benchmarks.speed_restart import restart_s
from tests.benchmarks.subjects import JobOptions, Subject
from tests.soak.places import served_alone

SERVICE_LIMIT_S = 30.0
CHECK = "#!/bin/sh\necho '{\"fail_count\": 0}'\n"


def measure_health(bench: Bench) -> list[Row]:
    healthy = Row(
        "restart_checked",
        Group.SPEED,
        "checks on a healthy node (health service, mounts, 3 paths): what they add to a restart",
        Unit.SECONDS,
        Target(at_most=0.02),
        notes=["Each sample is the difference of two restarts, one after the other, with the checks and without."],
    )
    hung = Row(
        "restart_hung_check",
        Group.SPEED,
        "a look at storage that not even SIGKILL ends: what it delays a restart",
        Unit.SECONDS,
        Target(at_most=0.02),
        notes=["The look has hung since the job began; one that begins to hang with the restart delays it by 0.5 s."],
    )

    bench.fill([healthy], bench.counts(9, only=("holdfast",)), lambda subject: {healthy.key: _added_s(subject, _well)})
    with tempfile.TemporaryDirectory() as name, served_alone(Path(name, "files")) as files:
        if files is None:
            return [healthy]  # It needs root, mount namespaces and /dev/fuse.
    bench.fill([hung], bench.counts(5, only=("holdfast",)), lambda subject: {hung.key: _added_s(subject, _silent)})
    return [healthy, hung]


def _added_s(subject: Subject, serve: Callable[[Path], AbstractContextManager[tuple[str, ...]]]) -> float:
    """Returns the seconds added. `serve` starts what the checks look at, in its own folder; the run's end stops it."""
    without_s = _restart_s(subject, ())
    with tempfile.TemporaryDirectory() as name, serve(Path(name)) as flags:
        return _restart_s(subject, flags) - without_s


def _restart_s(subject: Subject, flags: tuple[str, ...]) -> float:
    with Run(subject, "restart", JobOptions(flags=flags)) as run:
        return restart_s(run, ready="ready", recovered="first_line")


@contextmanager
def _silent(folder: Path) -> Generator[tuple[str, ...]]:
    with served_alone(folder / "silent") as files:
        if files is None:
            raise RunFailedError("no file system can be served here")
        files.swallow()
        yield ("--ft-storage-health-check-path", str(files.folder))


@contextmanager
def _well(folder: Path) -> Generator[tuple[str, ...]]:
    """Serves a health service that finds nothing wrong, and storage that answers."""
    check, config, socket = folder / "check.sh", folder / "nvhcd.yaml", folder / "nvhcd.sock"
    check.write_text(CHECK)
    check.chmod(0o755)
    config.write_text(f"healthcheck_path: {check}\nsocket_path: {socket}\n")
    command = [sys.executable, "-m", "supervisor", "healthd", "--config", str(config)]
    with subprocess.Popen(command, stderr=subprocess.DEVNULL) as process:
        until_s = time.monotonic() + SERVICE_LIMIT_S
        while not socket.exists():
            if process.poll() is not None or time.monotonic() > until_s:
                process.kill()
                raise RunFailedError("the health service has not come up")
            time.sleep(0.01)
        yield (
            "--ft-node-health-check-endpoint", str(socket), "--ft-enable-dist-storage-healthcheck", "true",
            "--ft-storage-health-check-path", f"{folder},{config},/dev/null",
        )  # fmt: skip
        process.terminate()
