"""A file on a file system that hangs costs a bounded time."""

from __future__ import annotations

import threading
import time
from pathlib import Path

import pytest

from supervisor.edges.machine.job_files import JobFiles


async def test_an_iteration_is_read(tmp_path: Path):
    (tmp_path / "iteration").write_text("12\n")
    assert await JobFiles().read_iteration(str(tmp_path / "iteration")) == 12
    (tmp_path / "error.json").write_text('{"message": "boom"}')
    told = JobFiles().read_error(str(tmp_path / "error.json"))
    assert told is not None
    assert told[0] == "boom"


async def test_a_read_that_hangs_is_given_up(monkeypatch: pytest.MonkeyPatch):
    release = threading.Event()

    def hang(path: str) -> int:
        return int(release.wait(60))

    monkeypatch.setattr("supervisor.edges.machine.checkpoint_file.read_iteration", hang)
    began_s = time.monotonic()
    try:
        assert await JobFiles(read_timeout_s=0.05).read_iteration("/somewhere") is None
        assert time.monotonic() - began_s < 5
    finally:
        release.set()
