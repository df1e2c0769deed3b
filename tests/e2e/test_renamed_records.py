"""Row B4: the classes of kept records are renamed and moved, and the next supervisor goes on with a live job."""

from __future__ import annotations

import re
import shutil
import signal
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from tests.e2e.daemons import NodeDaemon
from tests.e2e.hangs import MONITORED, told

if TYPE_CHECKING:
    from tests.e2e.conftest import Start

ROOT = Path(__file__).parents[2]
CLASSES = {"Watching": "Observing", "StateSnapshot": "StateAtATurnsEnd"}
MODULES = {"job_phases": "phases_in_a_life"}
HISTORY = "earlier_record_tags.py"  # says how records were once called


def renamed_copy(folder: Path) -> Path:
    """Returns an interpreter with a copy of this tree, in which records are called, and live, differently."""
    tree = folder / "tree"
    for name in ("supervisor", "worker_client", "proto"):
        shutil.copytree(ROOT / name, tree / name, ignore=shutil.ignore_patterns("__pycache__"))
    for path in (tree / "supervisor").rglob("*.py"):
        if path.name == HISTORY:
            continue
        text = path.read_text()
        for old, new in (CLASSES | MODULES).items():
            text = re.sub(rf"\b{old}\b", new, text)
        path.with_stem(MODULES.get(path.stem, path.stem)).write_text(text)
        if path.stem in MODULES:
            path.unlink()
    python = folder / "python"
    python.write_text(f'#!/bin/sh\nPYTHONPATH={tree}:{tree}/proto exec {sys.executable} "$@"\n')
    python.chmod(0o755)
    return python


def test_b4_a_supervisor_whose_records_have_other_names_goes_on_with_a_job(start: Start, tmp_path: Path) -> None:
    python = renamed_copy(tmp_path)
    with NodeDaemon(tmp_path / "daemon") as daemon:
        launch = start(
            "--nproc-per-node", "2", "--max-restarts", "2", "--ft-rank-heartbeat-timeout", "20",
            MONITORED, "0:0/init,beat-for=600", "0:1/init,beat,await-file,exit=3", "1:*/init,beat,exit=0",
            environment={"HOLDFAST_SOCKET_DIR": str(daemon.socket_dir)},
        )  # fmt: skip
        launch.wait_for_trace("initialised", count=2)
        assert daemon.process is not None
        daemon.process.send_signal(signal.SIGKILL)
        daemon.process.wait(30)
        daemon.python = str(python)
        daemon.start()
        assert not told(launch, "restart_decided")
        (launch.folder / "go").touch()
        assert launch.wait() == 0, launch.explained() + daemon.errors.read_text()
        (failed,) = told(launch, "worker_failed")
        assert "failed with exit code 3" in str(failed["reason"])
        assert len(told(launch, "supervisor_returned")) == 1
        assert len(launch.traced("started")) == 4
