"""Do the scripts of the tutorial, and of the how-to for FSDP2, do what their pages say?"""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.e2e.launch import wait_until

ROOT = Path(__file__).parents[2]
HOLDFAST = Path(sys.executable).with_name("holdfast")
RUN = ("run", "--nproc-per-node", "2", "--max-restarts", "3")


class Reader:
    """Follows the tutorial in an empty folder, with slightly less patience."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._environment = {
            "PATH": os.environ["PATH"],
            "HOME": str(folder),
            "HOLDFAST_STATE_DIR": str(folder / "state"),
        }
        self._started: list[subprocess.Popen[str]] = []

    def copy(self, page: str) -> None:
        """Copies the page's script, with shorter steps."""
        found = re.search(r"```python\n(.*?)```", (ROOT / "docs" / page).read_text(), re.DOTALL)
        assert found is not None
        (self.folder / "train.py").write_text(found[1].replace("sleep(0.1)", "sleep(0.03)").replace("< 300", "< 120"))

    def start(self, *arguments: str) -> subprocess.Popen[str]:
        process = subprocess.Popen(
            [HOLDFAST, *arguments], cwd=self.folder, env=self._environment, text=True,
            stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
        )  # fmt: skip
        self._started.append(process)
        return process

    def ask(self, *arguments: str) -> str:
        done = subprocess.run(
            [HOLDFAST, *arguments], cwd=self.folder, env=self._environment, text=True, check=True, capture_output=True,
            timeout=60,
        )  # fmt: skip
        return done.stdout

    def close(self) -> None:
        for process in self._started:
            process.kill()
            process.wait(20)
            if process.stdout is not None:
                process.stdout.close()


@pytest.fixture
def reader(tmp_path: Path) -> Iterator[Reader]:
    made = Reader(tmp_path)
    yield made
    made.close()


def _read_until(process: subprocess.Popen[str], *words: str) -> str:
    assert process.stdout is not None
    said, missing = "", set(words)
    for line in process.stdout:
        said += line
        missing -= {word for word in missing if word in line}
        if not missing:
            return said
    raise AssertionError(f"{missing} never said: {said}")


def test_the_first_run_survives_a_kill(reader: Reader) -> None:
    reader.copy("tutorial/first-run.md")
    job = reader.start(*RUN, "--job-id", "first", "train.py")
    _read_until(job, "rank 0: from step 0", "rank 1: from step 0")
    (status,) = json.loads(reader.ask("status", "first", "-o", "json"))["jobs"]
    os.kill(status["ranks"][1]["pid"], signal.SIGKILL)
    said = _read_until(job, "running again after", "rank 1: from step")
    assert "was killed by SIGKILL" in said
    assert job.wait(60) == 0
    assert "restart_decided" in reader.ask("events", "first")
    assert "rank 1: from step" in reader.ask("logs", "first", "--cycle", "1")


def test_the_second_one_notices_a_hang_and_names_the_rank(reader: Reader) -> None:
    reader.copy("tutorial/heartbeats.md")
    job = reader.start(*RUN, "--job-id", "second", "--ft-rank-heartbeat-timeout", "3", "train.py")
    said = _read_until(job, "running again after")
    assert re.search(r"rank 1 is in <module> \(train.py:\d+\) while rank 0 waits in all_reduce", said)
    assert job.wait(60) == 0


def test_the_third_one_keeps_its_processes(reader: Reader) -> None:
    reader.copy("tutorial/in-process.md")
    job = reader.start(*RUN, "--job-id", "third", "train.py")
    said, _ = job.communicate(timeout=90)
    pids = re.findall(r"rank (\d), pid (\d+): iteration (\d)", said)
    assert job.returncode == 0, said
    assert sorted(iteration for _, _, iteration in pids) == ["0", "0", "1", "1"]
    assert len({pid for _, pid, _ in pids}) == 2
    assert "restarts used" not in said


@pytest.mark.soak
@pytest.mark.timeout(300)
def test_a_sharded_training_ends_as_without_the_kill(reader: Reader) -> None:
    reader.copy("how-to/fsdp2.md")
    flags = ("--ft-rank-heartbeat-timeout", "60", "train.py")
    told: list[str] = []
    for job_id in ("sharded", "undisturbed"):
        job = reader.start(*RUN, "--job-id", job_id, *flags)
        said = _read_until(job, "rank 0: from step 0", "rank 1: from step 0")
        if job_id == "sharded":
            wait_until((reader.folder / "ckpt" / "step-40").exists, timeout_s=60, what="a checkpoint")
            (status,) = json.loads(reader.ask("status", job_id, "-o", "json"))["jobs"]
            os.kill(status["ranks"][1]["pid"], signal.SIGKILL)
        rest, _ = job.communicate(timeout=120)
        assert job.returncode == 0, said + rest
        told.append("".join(re.findall(r"rank 0: loss ([\d.]+)", rest)))
        assert (job_id == "sharded") == bool(re.search(r"rank 1: from step [1-9]", rest))
        shutil.rmtree(reader.folder / "ckpt")
    assert told[0]
    assert told[0] == told[1]
