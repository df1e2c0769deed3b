"""Supervisors that have ended while their jobs run on are waited for side by side."""

from __future__ import annotations

import threading
from argparse import Namespace
from pathlib import Path

import pytest

from supervisor.cli.supervisor_discovery import Answering, Supervisors
from supervisor.edges.operators.control_client import ControlClient
from supervisor.errors import NoSupervisorError

LIMIT_S = 60.0


def test_the_next_ones_are_awaited_and_asked_at_the_same_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    supervisors = Supervisors(Namespace(socket_dir=str(tmp_path), state_dir=str(tmp_path)), waits=True)
    both, asked = threading.Barrier(2), list[Path]()

    def come_back(_: Supervisors, path: Path) -> bool:
        both.wait(LIMIT_S)  # breaks if one is awaited after the other
        return path.parent.name != "gone"

    def ask(each: Answering, limit_s: float) -> str:
        asked.append(each.client.socket_path)
        if asked.count(each.client.socket_path) == 1:
            raise NoSupervisorError("cannot ask it: it has ended; try again")
        return each.client.socket_path.parent.name

    monkeypatch.setattr(Supervisors, "_comes_back", come_back)
    with (
        ControlClient(tmp_path / "new" / "control.sock") as new,
        ControlClient(tmp_path / "gone" / "control.sock") as gone,
    ):
        supervisors.answering = [Answering(each, is_private=False, uid=-1) for each in (gone, new)]
        answers, later = supervisors.ask_each(ask), supervisors.ask_each(ask)
    assert [answer for _, answer in answers] == ["new"]
    assert [answer for _, answer in later] == ["new"], "nobody waits for the other one again"
