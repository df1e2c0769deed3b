"""What does a job's supervisor inherit from Slurm's prolog, which runs as root, protected from the OOM killer?"""

from __future__ import annotations

import os
import shutil
import subprocess
import tempfile
import time
from pathlib import Path

import pytest

PROLOG = Path(__file__).parents[2] / "deploy" / "slurm" / "prolog.sh"
LIMIT_S = 60.0
USER = 1  # on each machine
# As slurmd. A root without CAP_SYS_RESOURCE can only become less protected than others, which nothing inherits either.
PROTECTED = "(echo -500 > /proc/$$/oom_score_adj) 2> /dev/null || echo 500 > /proc/$$/oom_score_adj"

# In the place of holdfast, as `holdfast daemon --socket-dir DIR`. 2: it is not started again.
DAEMON = """#!/bin/sh
{
    id -u
    cat /proc/self/oom_score_adj
    (echo -1 > /proc/self/oom_score_adj) 2> /dev/null && echo lowered || echo refused
} > "$3/told.new"
mv "$3/told.new" "$3/told"
exit 2
"""


@pytest.mark.skipif(os.geteuid() != 0 or not shutil.which("setpriv"), reason="needs root and setpriv")
def test_a_job_is_not_protected_from_the_oom_killer_and_cannot_protect_itself() -> None:
    with tempfile.TemporaryDirectory(prefix="hf-") as name:
        place = Path(name)
        place.chmod(0o755)
        shutil.copy(PROLOG, place)
        (place / "holdfast").write_text(DAEMON)
        (place / "holdfast").chmod(0o755)
        settings = {"PLACE": place / "jobs", "HOLDFAST": place / "holdfast", "JOBS": "all", "READY_S": "1", "LOG": ""}
        (place / "settings").write_text("".join(f"{key}={value}\n" for key, value in settings.items()))
        slurm = {"SLURM_JOB_ID": "7", "SLURM_JOB_UID": str(USER), "SLURMD_NODENAME": "n0"}
        command = ["sh", "-c", f"{PROTECTED}; exec bash {place}/prolog.sh"]
        assert subprocess.run(command, env=slurm, timeout=LIMIT_S, check=False).returncode == 0
        told, until_s = place / "jobs" / "7" / "told", time.monotonic() + LIMIT_S
        while not told.exists():
            assert time.monotonic() < until_s, "the supervisor was not started"
            time.sleep(0.05)
        assert told.read_text().split() == [str(USER), "0", "refused"]
