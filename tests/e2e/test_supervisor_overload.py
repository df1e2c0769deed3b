"""A supervisor that was stopped finds thousands of messages: it handles all, ends no rank, and does not grow."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path

import pytest
from holdfast_wire.private_supervisor import ENDPOINT_FILE

from tests.e2e.launch import SCRIPTS

pytestmark = pytest.mark.timeout(120)

RANKS = 72
STOPPED_S = 3.5
GROWTH_MIB_MAX = 64


class Overload:
    """A private supervisor, and one process that speaks for all its ranks."""

    def __init__(self, folder: Path) -> None:
        folder.mkdir(mode=0o700)
        kept = {name: value for name, value in os.environ.items() if not name.startswith(("HOLDFAST", "FT_"))}
        self._environment = kept | {
            "HOLDFAST_STATE_DIR": str(folder.parent / "state"), "XDG_RUNTIME_DIR": str(folder.parent),
        }  # fmt: skip
        ready, told = os.pipe()
        self.errors = folder.parent / "errors"
        with self.errors.open("wb") as errors:
            self.supervisor = subprocess.Popen(
                [
                    sys.executable, "-m", "supervisor", "adopt", "--dir", str(folder), "--ready-fd", str(told),
                    "--local-world-size", str(RANKS), "--job-id", "overload",
                ],
                env=self._environment, pass_fds=(told,), stdin=subprocess.DEVNULL, stdout=errors, stderr=errors,
            )  # fmt: skip
        os.close(told)
        with os.fdopen(ready) as line:
            assert line.readline().strip() == "ready", self.errors.read_text()
        self.ranks = subprocess.Popen(
            [sys.executable, str(SCRIPTS / "many_ranks.py"), str(folder / ENDPOINT_FILE), str(RANKS)],
            env=self._environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
        )  # fmt: skip

    def do(self, step: str) -> dict[str, object]:
        assert self.ranks.stdin is not None
        assert self.ranks.stdout is not None
        self.ranks.stdin.write(f"{step}\n")
        self.ranks.stdin.flush()
        return json.loads(self.ranks.stdout.readline())

    def all_hear(self, kind: str) -> float:
        """Returns how long it took."""
        told = self.do(f"until {kind}")
        assert (told["heard"], told["closed"]) == (RANKS, []), self.errors.read_text()
        return float(str(told["took_s"]))

    def resident_mib(self) -> float:
        pages = int(Path(f"/proc/{self.supervisor.pid}/statm").read_text().split()[1])
        return pages * os.sysconf("SC_PAGESIZE") / 2**20

    def end(self) -> None:
        for process in (self.ranks, self.supervisor):
            with contextlib.suppress(ProcessLookupError):
                process.kill()
            process.wait()
        for pipe in (self.ranks.stdin, self.ranks.stdout):
            assert pipe is not None
            with contextlib.suppress(OSError):
                pipe.close()


@pytest.fixture
def overload(tmp_path: Path) -> Generator[Overload]:
    begun = Overload(tmp_path / "private")
    yield begun
    begun.end()


@contextmanager
def stopped(process: subprocess.Popen[bytes]) -> Generator[None]:
    began_s = time.monotonic()
    process.send_signal(signal.SIGSTOP)
    yield
    time.sleep(max(0.0, began_s + STOPPED_S - time.monotonic()))  # the duration of the fault itself
    process.send_signal(signal.SIGCONT)


@pytest.mark.alone
@pytest.mark.soak
def test_the_words_of_72_ranks_that_burst_at_a_stopped_supervisor_are_all_heard(overload: Overload) -> None:
    overload.all_hear("welcome")
    overload.do("enter")
    overload.all_hear("entered")
    before_mib = overload.resident_mib()
    with stopped(overload.supervisor):
        told = overload.do("burst")
        assert float(str(told["took_s"])) < 1
        overload.do("complete")
    overload.all_hear("committed")
    assert overload.supervisor.poll() is None, overload.errors.read_text()
    assert overload.resident_mib() - before_mib < GROWTH_MIB_MAX
