"""A file on a hanging file system costs a bounded time."""

from __future__ import annotations

import threading
import time
from pathlib import Path

import pytest

from supervisor.edges.machine.job_files.untrusted_reads import JobFiles


async def test_an_iteration_is_read(tmp_path: Path):
    (tmp_path / "iteration").write_text("12\n")
    assert await JobFiles().read_iteration(str(tmp_path / "iteration")) == 12


async def test_a_read_that_hangs_is_given_up(monkeypatch: pytest.MonkeyPatch):
    release = threading.Event()

    def hang(path: str) -> int:
        return int(release.wait(60))

    monkeypatch.setattr("supervisor.edges.machine.job_files.checkpoint_file.read_iteration", hang)
    began_s = time.monotonic()
    files = JobFiles(read_timeout_s=0.05)
    try:
        for _ in range(3):
            assert await files.read_iteration("/somewhere") is None
        assert await files.read_iteration("/somewhere/else") is None
        assert time.monotonic() - began_s < 5
        assert {path: threads.stuck for path, threads in files.threads.items()} == {
            "/somewhere": 1,
            "/somewhere/else": 1,
        }, "one thread for each file"
    finally:
        release.set()
