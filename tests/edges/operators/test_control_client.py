"""What does a program see if the supervisor is gone, stopped or speaks something else?"""

from __future__ import annotations

import socket
from pathlib import Path

import pytest

from supervisor.edges.operators import control_client
from supervisor.edges.operators.control_client import ControlClient
from supervisor.errors import ExhaustedError, NoSupervisorError


def test_nobody_there(tmp_path: Path) -> None:
    with ControlClient(tmp_path / "control.sock") as client, pytest.raises(NoSupervisorError, match="it has gone"):
        client.jobs()


def test_a_supervisor_that_does_not_answer_costs_a_bounded_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(control_client, "CALL_TIMEOUT_S", 0.3)
    monkeypatch.setattr(control_client, "LIST_TIMEOUT_S", 0.3)
    with socket.socket(socket.AF_UNIX) as silent:
        silent.bind(str(tmp_path / "control.sock"))
        silent.listen()
        with ControlClient(tmp_path / "control.sock") as client:
            for ask in (client.jobs, client.nodes, lambda: list(client.watch("job"))):
                with pytest.raises(ExhaustedError, match=r"no answer within 0\.3 s; try again"):
                    ask()
