"""Do programs learn that a supervisor serves, and what, as from any gRPC server?"""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

from anyio import to_thread

from tests.edges.operators.fake_job_service import FakeJobService, serving

CLIENT = str(Path(__file__).with_name("grpc_client.py"))
LIMIT_S = 60.0


async def test_clients_with_grpcs_own_messages_are_answered(tmp_path: Path) -> None:
    path = tmp_path / "control.sock"
    async with serving(FakeJobService(), path):
        asked = await to_thread.run_sync(_ask, f"unix:{path}")
    told = json.loads(asked)
    assert told["health"] == {"": "SERVING", "holdfast.v1.Supervisor": "SERVING", "other": "NOT_FOUND"}
    assert told["watched"] == "SERVING"
    assert {"holdfast.v1.Supervisor", "grpc.health.v1.Health"} <= set(told["services"])
    assert {"holdfast.v1.Supervisor", "grpc.health.v1.Health"} <= set(told["defined"])
    assert {needed for file in told["files"].values() for needed in file} <= set(told["files"])
    assert told["errors"] == [5, 5]
    sentence, *info = told["refused"]
    assert sentence.startswith("cannot show job other: ")
    assert info == ["NOT_FOUND", "holdfast"]


def _ask(target: str) -> str:
    command = [sys.executable, CLIENT, target]
    return subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True, timeout=LIMIT_S).stdout
