"""`holdfast` on odd ground: a mount namespace whose /tmp, /var/tmp, /dev/shm and state directory a test may spoil."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[2]
HOLDFAST = f"{sys.executable} -m supervisor"
RUN = f"timeout 40 {HOLDFAST} run --job-id ground /mnt/job.py"
STRANGER = 4321  # an unused user id

# Nothing outside is touched: every place that Holdfast may write to is a fresh, private tmpfs. The checkout may be
# below one of them, so it is moved along.
PREPARE = f"""
set -e
mount -t tmpfs -o mode=755 tmpfs /mnt
mkdir /mnt/root /mnt/state
mount --bind {ROOT} /mnt/root
for place in /tmp /var/tmp /dev/shm /run /var/lib; do mount -t tmpfs -o mode=1777 tmpfs $place; done
mkdir -p {ROOT}
mount --move /mnt/root {ROOT}
cat > /mnt/job.py
cd /mnt
set +e
"""
JOB = """
import os
print("rank", os.environ["RANK"], flush=True)
open("/mnt/proof", "a").write("ran\\n")
"""


def missing() -> str:
    """Returns why such a ground is not possible here, "" if it is."""
    if os.geteuid() != 0 or not shutil.which("unshare"):
        return "needs root and unshare (Debian: util-linux)"
    tried = subprocess.run(["unshare", "-m", "mount", "-t", "tmpfs", "tmpfs", "/mnt"], capture_output=True, check=False)
    return "" if tried.returncode == 0 else f"needs mount namespaces: {tried.stderr.decode()}"


@dataclass(frozen=True)
class Done:
    code: int
    out: str
    err: str


def on_ground(script: str, *, job: str = JOB, timeout_s: float = 60.0) -> Done:
    """Runs a shell script there; $RUN launches the job, $HOLDFAST is the command, /mnt/proof shows that it ran."""
    environment = {
        "PATH": os.environ["PATH"],
        "LANG": "C.UTF-8",
        "HOME": "/mnt",
        "HOLDFAST_STATE_DIR": "/mnt/state/holdfast",
        "PYTHONPATH": f"{ROOT}:{ROOT / 'proto'}",
        "RUN": RUN,
        "HOLDFAST": HOLDFAST,
    }
    done = subprocess.run(
        ["unshare", "-m", "sh", "-c", f"{PREPARE}\n{script}"],
        input=job.encode(), env=environment, cwd="/", capture_output=True, timeout=timeout_s, check=False,
    )  # fmt: skip
    return Done(done.returncode, done.stdout.decode(errors="replace"), done.stderr.decode(errors="replace"))
