"""A supervisor of ranks that another launcher starts says where it is, and ends if none comes."""

from __future__ import annotations

import tempfile
from pathlib import Path

import anyio
import pytest

from supervisor.config import JobSpec
from supervisor.wiring import adoption
from supervisor.wiring.adoption import serve_adopted


async def test_without_a_rank_it_ends_after_it_has_said_where_it_is(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(adoption, "ADOPTED_IDLE_S", 0.05)
    told: list[tuple[bool, bytes]] = []

    def on_open(worker_socket: Path, token: Path) -> None:
        told.append((worker_socket.is_socket(), token.read_bytes()))

    spec = JobSpec("j", ("t.py",), workers_stop_timeout_s=0.2)  # it waits for this, though no rank is there
    with tempfile.TemporaryDirectory() as folder, anyio.fail_after(60):
        await serve_adopted(spec, tmp_path, Path(folder), on_open)
    ((is_there, token),) = told
    assert is_there
    assert token
