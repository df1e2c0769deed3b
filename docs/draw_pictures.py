"""Draws docs/pictures: terminals as people see them, of real commands on this machine. `make pictures`, as root.

The pictures show this machine, so no test compares them: look at them after drawing.
"""

from __future__ import annotations

import io
import json
import os
import pty
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.terminal_theme import MONOKAI
from rich.text import Text

from tests.cli.terminal import terminal
from tests.fakes.gpus import Gpus, build
from tests.report.browser import Opened, chromium

HERE = Path(__file__).parent
ROOT = HERE.parent
PICTURES = HERE / "pictures"
COLUMNS = 110
HOLDFAST = Path(sys.executable).with_name("holdfast")

# In its own namespaces, so that nothing is left behind: a small /dev/shm, an unused address.
SICK = """
mount -t tmpfs -o size=64m,mode=1777 tmpfs /dev/shm
mount -t tmpfs -o ro tmpfs /mnt
ulimit -n 1024
NCCL_SOCKET_IFNAME=ib0 HOLDFAST_STATE_DIR=/mnt/holdfast \
    "$HOLDFAST" doctor -- --ft-initial-rank-heartbeat-timeout 5
"""

# What Slurm's configuration is on the node of each picture.
GOOD_SLURM = {
    "KillOnBadExit": "0",
    "KillWait": "30 sec",
    "ProctrackType": "proctrack/cgroup",
    "UnkillableStepTimeout": "180 sec",
}
HASTY_SLURM = {
    "KillOnBadExit": "1",
    "KillWait": "5 sec",
    "ProctrackType": "proctrack/linuxproc",
    "UnkillableStepTimeout": "60 sec",
}

# A typical job: a heartbeat in each step, and a section around it.
SCRIPT = """
import itertools, time
from worker_client import RankMonitorClient
client = RankMonitorClient()
client.init_workload_monitoring()
for step in itertools.count():
    client.start_section("step")
    time.sleep(0.2)
    client.end_section("step")
    client.send_heartbeat()
"""
# Rank 2 falls silent on request.
SILENT = """
import os, time
from worker_client import RankMonitorClient
client = RankMonitorClient()
client.init_workload_monitoring()
while not (os.environ["RANK"] == "2" and os.path.exists("silent")):
    client.start_section("step")
    time.sleep(0.2)
    client.end_section("step")
    client.send_heartbeat()
time.sleep(3600)
"""
WAIT_S = 60.0
TERMINAL_LINES = 22


def shown(command: Sequence[str], environ: dict[str, str]) -> str:
    """Returns what a terminal of COLUMNS columns gets from the command."""
    reader, writer = pty.openpty()
    size = {"COLUMNS": str(COLUMNS), "LINES": "60", "TERM": "xterm-256color"}
    with subprocess.Popen(command, stdin=writer, stdout=writer, stderr=writer, env=environ | size) as process:
        os.close(writer)
        output = b""
        with suppress(OSError):  # the other end has closed
            while piece := os.read(reader, 65536):
                output += piece
        os.close(reader)
        process.wait(60)
    text = output.decode(errors="replace").replace("\r\n", "\n")
    return text.replace(str(ROOT), "/opt/holdfast")  # pictures must not show the checkout's place


def draw(name: str, typed: str, text: str) -> None:
    """Writes an SVG of a terminal in which `typed` was typed."""
    console = Console(record=True, width=COLUMNS, file=io.StringIO(), force_terminal=True, color_system="truecolor")
    console.print(Text.from_ansi(f"$ {typed}\n{text.rstrip()}"))
    svg = console.export_svg(title="holdfast", theme=MONOKAI)
    own = re.sub(r"@font-face \{.*?\}\s*", "", svg, flags=re.DOTALL)  # a picture fetches nothing from anywhere
    (PICTURES / f"{name}.svg").write_text(own.replace("Fira Code", "DejaVu Sans Mono"))


def with_slurm(folder: Path, environ: dict[str, str], settings: dict[str, str]) -> dict[str, str]:
    """Returns the environment of a node where Slurm has these settings."""
    tool = folder / "bin" / "scontrol"
    tool.parent.mkdir(exist_ok=True)
    lines = "\n".join(f"{name} = {value}" for name, value in settings.items())
    tool.write_text(f"#!/bin/sh\ncat <<'END'\n{lines}\nEND\n")
    tool.chmod(0o755)
    return environ | {"PATH": f"{tool.parent}:{environ['PATH']}"}


def checks_of(environ: dict[str, str]) -> list[str]:
    """Returns the verdicts of the checks of the job's node; [] before they are known."""
    asked = subprocess.run(
        [HOLDFAST, "status", "-o", "json"], env=environ, check=False, capture_output=True, text=True, timeout=WAIT_S
    )
    jobs: list[dict[str, Any]] = json.loads(asked.stdout)["jobs"] if asked.returncode == 0 else []
    beats = [rank["heartbeat_age_s"] is not None for job in jobs for rank in job["ranks"]]
    found = [str(check["verdict"]) for job in jobs for node in job["nodes"] for check in node["checks"]]
    return found if beats and all(beats) else []


def wait_for(verdicts: set[str], environ: dict[str, str]) -> None:
    until_s = time.monotonic() + WAIT_S
    while set(checks_of(environ)) != verdicts:
        if time.monotonic() > until_s:
            sys.exit(f"cannot draw status: no check is {', '.join(verdicts)} within {WAIT_S:g} s")
        time.sleep(0.2)


def draw_status(folder: Path, environ: dict[str, str]) -> None:
    """Draws the status of a job with a healthy node, and again after one of its GPUs (simulated) has failed."""
    (folder / "train.py").write_text(SCRIPT)
    gpus = Gpus(folder, build(folder), count=2)
    environ = environ | gpus.environment
    command = [
        HOLDFAST, "run", "--job-id", "train", "--nproc-per-node", "2", "--max-restarts", "3",
        "--ft-storage-health-check-path", "/tmp,/var/lib", "train.py",
    ]  # fmt: skip
    with subprocess.Popen(command, env=environ, cwd=folder, stderr=subprocess.DEVNULL) as job:
        try:
            wait_for({"healthy"}, environ)
            draw("status-healthy", "holdfast status train", shown([str(HOLDFAST), "status", "train"], environ))
            gpus[1].action = 1
            wait_for({"healthy", "unhealthy"}, environ)
            draw("status-sick", "holdfast status train", shown([str(HOLDFAST), "status", "train"], environ))
        finally:
            job.terminate()
            job.wait(WAIT_S)


def draw_live_view(folder: Path, environ: dict[str, str]) -> None:
    """Draws `holdfast top` with two jobs, then one of them, whose rank 2 is silent."""
    (folder / "train.py").write_text(SILENT)
    options = ["--max-restarts", "3", "--ft-rank-heartbeat-timeout", "30", "train.py"]
    jobs = [
        [HOLDFAST, "run", "--job-id", "eval", "--nproc-per-node", "2", *options],
        [HOLDFAST, "run", "--job-id", "train", "--nproc-per-node", "8", *options],
    ]
    with ExitStack() as started:
        for command in jobs:
            job = started.enter_context(subprocess.Popen(command, env=environ, cwd=folder, stderr=subprocess.DEVNULL))
            started.callback(job.terminate)
        top = (str(HOLDFAST), "top", "-d", "0.5")
        with terminal(folder, COLUMNS, TERMINAL_LINES, *top, environment=environ) as opened:
            opened.shows("10/10 ranks", "/30s")
            draw("top-jobs", "holdfast top", opened.colours())
            (folder / "silent").touch()
            opened.press("Enter")
            opened.shows("by rank")
            opened.press("s")
            opened.shows("17s/30s")
            draw("top-ranks", "holdfast top", opened.colours())
        draw_web(environ)


def draw_web(environ: dict[str, str]) -> None:
    """The page of `holdfast web` while rank 2 is silent, with its ranks."""
    command = [HOLDFAST, "web", "--listen", "127.0.0.1:0"]
    with subprocess.Popen(command, env=environ, stdout=subprocess.PIPE, text=True) as web:
        try:
            assert web.stdout is not None
            with chromium() as browser:
                opened = Opened(browser, web.stdout.readline().strip(), width=1100)
                opened.page.get_by_text("Ranks (8)").click()
                opened.page.locator("tr.urgent").wait_for()
                box = opened.page.locator("article").nth(1).bounding_box()  # Below it are other jobs of this machine.
                assert box is not None
                height = box["y"] + box["height"] + 8
                opened.page.screenshot(
                    path=PICTURES / "web.png", clip={"x": 0, "y": 0, "width": 1100, "height": height}
                )
                opened.close()
        finally:
            web.terminate()
            web.wait(WAIT_S)


def main() -> None:
    PICTURES.mkdir(exist_ok=True)
    with tempfile.TemporaryDirectory(prefix="pictures-") as folder:
        environ = {
            "PATH": os.environ["PATH"],
            "HOME": folder,
            "LANG": "C.UTF-8",
            "HOLDFAST": str(HOLDFAST),
            "HOLDFAST_STATE_DIR": f"{folder}/state",
        }
        healthy = with_slurm(Path(folder), environ, GOOD_SLURM)
        draw("doctor-healthy", "holdfast doctor", shown([str(HOLDFAST), "doctor"], healthy))
        unshare = shutil.which("unshare")
        if unshare is None:
            sys.exit("cannot draw a sick node: unshare is not installed; apt-get install util-linux")
        typed = "holdfast doctor -- --ft-initial-rank-heartbeat-timeout 5"
        draw_status(Path(folder), environ)
        draw_live_view(Path(folder), environ)
        sick = with_slurm(Path(folder), environ, HASTY_SLURM)
        draw("doctor-sick", typed, shown([unshare, "--mount", "sh", "-c", SICK], sick))


if __name__ == "__main__":
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    main()
