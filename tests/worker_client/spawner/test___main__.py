"""Does a spawner that executes its workers start without any of the client's modules?"""

from __future__ import annotations

import os
from pathlib import Path

from holdfast_wire.spawner_link import Ready

from tests.worker_client.spawner.conftest import Script
from tests.worker_client.spawner.rig import Rig, worker


def test_it_starts_beside_modules_of_the_same_names(script: Script, tmp_path: Path) -> None:
    """It is isolated: neither the folder it starts in nor PYTHONPATH hides its own modules."""
    for name in ("json", "worker_client", "holdfast_wire", "socket"):
        (tmp_path / f"{name}.py").write_text("raise SystemExit('the wrong one')")
    env = {**os.environ, "PYTHONPATH": str(tmp_path)}
    with Rig(script("print('ran')"), method="exec", env=env, cwd=tmp_path) as rig:
        ready = rig.receive(Ready)
        assert (ready.method, ready.method_reason) == ("exec", "workers are executed: spawn method exec was asked for")
        assert rig.run(worker())[0].code == 0
        assert rig.end()[0] == "ran\n"


def test_it_loads_neither_torch_nor_protobuf(script: Script) -> None:
    with Rig("true", entry="command") as rig:
        rig.receive(Ready)
        maps = Path(f"/proc/{rig.process.pid}/maps").read_text()
        assert "torch" not in maps
        assert "google" not in maps
        assert "_upb" not in maps
