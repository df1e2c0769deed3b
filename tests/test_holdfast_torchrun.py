"""Does torchrun find the backend, without cost if it uses another one, and what if the backend can't be loaded?"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

import holdfast_command
import holdfast_torchrun
from tests.programs.torchrun.installed import ROOT, entry_point

REGISTERED = """
import sys
from importlib.metadata import entry_points
from torch.distributed.elastic.rendezvous import RendezvousParameters, rendezvous_handler_registry
loaded = sorted(name for name in sys.modules if name.partition(".")[0] in ("supervisor", "anyio", "holdfast_wire"))
handler = rendezvous_handler_registry.create_handler(RendezvousParameters("holdfast", "", "job", 1, 1))
print(loaded, handler.get_backend(), handler.get_run_id())
"""


def test_torch_finds_it_by_the_entry_point_and_loads_nothing_before_it_is_used(tmp_path: Path):
    kept = {name: os.environ[name] for name in ("HOME", "PATH", "LANG") if name in os.environ}
    environment = {**kept, "PYTHONPATH": f"{entry_point(tmp_path)}:{ROOT}:{ROOT / 'proto'}"}
    command = [sys.executable, "-W", "error", "-c", REGISTERED]
    done = subprocess.run(
        command, env=environment, cwd=tmp_path, capture_output=True, text=True, timeout=110, check=False
    )
    assert done.stdout == "[] holdfast job\n", done.stderr


def test_an_installation_without_the_extra_is_told_which_one_it_needs(monkeypatch: pytest.MonkeyPatch):
    def absent(package: str) -> None:
        raise ModuleNotFoundError(f"No module named '{package}'", name="anyio")

    monkeypatch.setattr(holdfast_command, "load_own", absent)
    with pytest.raises(RuntimeError) as raised:
        holdfast_torchrun.create(None)  # pyright: ignore[reportArgumentType]
    assert str(raised.value) == (
        f"cannot use --rdzv-backend=holdfast: module anyio is not installed for {sys.executable}; holdfast-torch is "
        "needed with its extra [supervisor]: in a clone, pip install '.[supervisor]'"
    )
