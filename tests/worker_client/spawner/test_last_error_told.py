"""A real worker fails without @record: its last exception is reported, wherever its stderr goes."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from holdfast_wire.spawner_link import StreamPlan

from tests.worker_client.spawner.rig import Rig, worker

Script = Callable[[str], str]

FAILING = """
import sys
print("x" * 100_000, file=sys.stderr)
raise ValueError("bad batch 7")
"""
CLOSING = """
import os, time, traceback
try:
    1 / 0
except Exception:
    traceback.print_exc()
os.close(2)
time.sleep(0.2)
os._exit(1)
"""


@pytest.mark.parametrize("how", ["kept", "redirected", "shown"])
def test_the_last_exception_is_told(script: Script, tmp_path: Path, how: str) -> None:
    plans = {
        "kept": StreamPlan(console=False, file=str(tmp_path / "log"), file_bytes_max=10_000),
        "redirected": StreamPlan(console=False, file=str(tmp_path / "log"), direct=True),
        "shown": StreamPlan(console=True, prefix="[0]:"),
    }
    with Rig(script(FAILING)) as rig:
        (end,) = rig.run(worker(stderr=plans[how]))
        assert (end.code, end.error, end.error_at_unix_s) == (1, "ValueError: bad batch 7", None)
        rig.end()


def test_it_is_told_though_stderr_has_ended_long_before(script: Script, tmp_path: Path) -> None:
    with Rig(script(CLOSING)) as rig:
        (end,) = rig.run(worker(stderr=StreamPlan(console=False, file=str(tmp_path / "log"))))
        assert end.error == "ZeroDivisionError: division by zero"
        rig.end()


def test_of_a_worker_that_was_killed_no_old_exception_is_told(script: Script, tmp_path: Path) -> None:
    path = script("import os, traceback\ntry: 1 / 0\nexcept Exception: traceback.print_exc()\nos.kill(os.getpid(), 9)")
    with Rig(path) as rig:
        (end,) = rig.run(worker(stderr=StreamPlan(console=False, file=str(tmp_path / "log"))))
        assert (end.signal, end.error) == (9, "")
        rig.end()
