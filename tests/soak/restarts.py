"""Does the 2,000th restart of a job cost what its first one did, in time and in what is kept?"""

from __future__ import annotations

import argparse
import subprocess
import tempfile
import time
from pathlib import Path

from tests.soak.one_daemon import OneDaemon, children, descriptors, files_under, resident_kib

# Each cycle makes progress, so that no restart is delayed.
SCRIPT = """
import os, sys
if os.environ["RANK"] == "0":
    cycle = int(os.environ["TORCHELASTIC_RESTART_COUNT"])
    with open("iteration.new", "w") as file:
        file.write(str(cycle + 1))
    os.replace("iteration.new", "iteration")
    with open("cycles", "a") as file:
        file.write(".")
    sys.exit(1)
import signal
signal.pause()
"""

KINDS = ("supervisor KiB", "spawner KiB", "supervisor descriptors", "spawner descriptors", "files", "files in tmp")
WARM_SHARE = 0.25  # of the restarts; allocators and caches have grown to their size by then
GROWTH_MAX = {
    "supervisor KiB": 2048,
    "spawner KiB": 1024,
    "supervisor descriptors": 4,
    "spawner descriptors": 4,
    "files": 8,
    "files in tmp": 4,
}
SLOWER_MAX = 1.5  # times the time that a restart took at first


def main(arguments: argparse.Namespace) -> list[str]:
    """Prints a table; returns what is wrong."""
    with tempfile.TemporaryDirectory(prefix="soak-") as folder:
        return _soak(Path(folder), arguments.restarts, arguments.ranks, arguments.seconds)


def _soak(folder: Path, restarts: int, ranks: int, seconds: float) -> list[str]:
    (folder / "script.py").write_text(SCRIPT)
    daemon = OneDaemon(folder)
    rows: list[tuple[int, float, list[int]]] = []
    began_s = time.monotonic()
    try:
        job_id = f"again-{daemon.cookie[:6]}"
        client = daemon.run(
            job_id, "--nproc-per-node", str(ranks), "--max-restarts", str(restarts), "--workers-stop-timeout", "2",
            "--ft-checkpoint-iteration-file", str(folder / "iteration"), str(folder / "script.py"),
        )  # fmt: skip
        step = max(1, restarts // 20)
        print(f"{'restarts':>8} {'/s':>6} " + " ".join(f"{kind:>{max(len(kind), 8)}}" for kind in KINDS), flush=True)
        while client.poll() is None and time.monotonic() - began_s < seconds:
            done = _cycles(folder)
            if done < len(rows) * step + 1:
                time.sleep(0.02)
                continue
            now_s = time.monotonic()
            rows.append((done, now_s, _measured(daemon)))
            rate = _rate(rows, len(rows) - 1)
            values = " ".join(f"{value:>{max(len(kind), 8)}}" for kind, value in zip(KINDS, rows[-1][2], strict=True))
            print(f"{done:>8} {rate:>6.1f} {values}", flush=True)
        try:
            code = client.wait(30) if _cycles(folder) > restarts else client.poll()
        except subprocess.TimeoutExpired:
            code = None
        done = _cycles(folder)
        wrong = [] if done == restarts + 1 else [f"{done - 1} of {restarts} restarts came in {seconds:.0f} s"]
        if done == restarts + 1 and code != 1:
            wrong.append(f"the job ended with {code}, not with 1: {(folder / f'{job_id}.txt').read_text()[-500:]}")
        wrong += _judged(rows)
    finally:
        daemon.close()
    return wrong + daemon.leftovers(within_s=10)


def _cycles(folder: Path) -> int:
    try:
        return (folder / "cycles").stat().st_size
    except FileNotFoundError:
        return 0


def _measured(daemon: OneDaemon) -> list[int]:
    pid = daemon.process.pid
    spawner = next(iter(children(pid)), 0)
    files = files_under(daemon.state) + files_under(daemon.sockets)
    kept = [resident_kib(pid), resident_kib(spawner), descriptors(pid), descriptors(spawner)]
    return [*kept, files, files_under(daemon.temp)]


def _rate(rows: list[tuple[int, float, list[int]]], at: int) -> float:
    if at == 0:
        return 0.0
    (before, before_s, _), (now, now_s, _) = rows[at - 1], rows[at]
    return (now - before) / (now_s - before_s)


def _judged(rows: list[tuple[int, float, list[int]]]) -> list[str]:
    if len(rows) < 8:
        return ["too few measurements to judge"]
    wrong: list[str] = []
    warm, last = rows[int(WARM_SHARE * len(rows))], rows[-1]
    between = last[0] - warm[0]
    for kind, before, after in zip(KINDS, warm[2], last[2], strict=True):
        if after - before > GROWTH_MAX[kind]:
            each = (after - before) / between
            wrong.append(f"{kind}: {before} became {after} over {between} restarts ({each:.2f} a restart)")
    rates = sorted(_rate(rows, at) for at in range(1, 1 + len(rows) // 4))
    late = sorted(_rate(rows, at) for at in range(3 * len(rows) // 4, len(rows)))
    first, final = rates[len(rates) // 2], late[len(late) // 2]
    if final * SLOWER_MAX < first:
        wrong.append(f"restarts a second: {first:.1f} became {final:.1f}")
    return wrong
