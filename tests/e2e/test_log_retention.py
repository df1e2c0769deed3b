"""Old logs are removed while a job runs, and its own logs are marked until it ends."""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import TYPE_CHECKING

from tests.e2e.launch import wait_until

if TYPE_CHECKING:
    from tests.e2e.conftest import Start


def test_a_run_removes_old_logs_and_keeps_its_own(start: Start, tmp_path: Path) -> None:
    state = tmp_path / "kept"
    logs = state / "logs"
    for days in (1, 2, 3):
        folder = logs / f"old-{days}" / "cycle_0" / "rank_0"
        folder.mkdir(parents=True)
        (folder / "stdout.log").write_text("done\n")
        at_s = time.time() - days * 86400
        for path in (folder / "stdout.log", folder, folder.parent, folder.parent.parent):
            os.utime(path, (at_s, at_s))
    state.chmod(0o700)
    script = tmp_path / "wait.py"
    fifo = tmp_path / "go"
    os.mkfifo(fifo)
    script.write_text("import os\nprint('up', flush=True)\nopen(os.environ['FIFO']).read()\n")
    launch = start(
        "--state-dir", str(state), "--log-jobs-max", "1", str(script), environment={"FIFO": str(fifo)}
    )  # fmt: skip
    launch.wait_for_output("up", count=1)
    wait_until(lambda: not (logs / "old-2").exists(), timeout_s=20, what="the removal")
    assert (logs / "old-1").exists()
    (run,) = (logs / launch.job_id).iterdir()
    assert (run / ".live").exists()
    with fifo.open("w"):
        pass
    assert launch.wait() == 0
    assert not (run / ".live").exists()
    assert (run / "supervisor.log").exists()
    assert not (logs / "old-3").exists()
    assert "warning" not in launch.stderr_text()
