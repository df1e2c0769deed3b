"""Another user's call is refused with gRPC's own code and a sentence, and never loads the control API."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from pathlib import Path

import anyio
import pytest

from supervisor.edges.operators.control_gate import Api, ControlGate

STRANGER = 4321
CALL = """
import os, sys, grpc
from pathlib import Path
from supervisor.edges.operators.control_client import ControlClient
from supervisor.errors import HoldfastError
os.setuid(int(sys.argv[2]))
with ControlClient(Path(sys.argv[1])) as client:
    for _ in range(2):
        try:
            client.nodes()
        except HoldfastError as error:
            print(type(error).__name__, error)
"""


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root to be somebody else")
async def test_another_user_is_refused_with_a_sentence_and_the_api_is_not_loaded() -> None:
    loaded: list[None] = []
    said: list[bytes] = []

    def load() -> Api:
        loaded.append(None)
        raise AssertionError

    with tempfile.TemporaryDirectory() as name:
        os.chmod(name, 0o755)
        path = Path(name) / "control.sock"
        async with anyio.create_task_group() as tasks:
            await tasks.start(ControlGate(socket_path=path, load=load).run)
            path.chmod(0o666)  # however he got this far
            command = [sys.executable, "-c", CALL, str(path), str(STRANGER)]
            done = await anyio.run_process(command, stderr=subprocess.STDOUT, check=False)
            said.append(done.stdout)
            tasks.cancel_scope.cancel()
    lines = said[0].decode().splitlines()
    assert (
        lines
        == [
            f"NotPermittedError cannot answer user id {STRANGER}: this supervisor answers root alone; "
            "ask as that user, or use a supervisor of your own"
        ]
        * 2
    )
    assert loaded == []
