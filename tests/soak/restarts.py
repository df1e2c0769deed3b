"""Does the 2,000th restart of a job cost the same as the first, in time and in kept data?"""

from __future__ import annotations

import argparse
import itertools
import statistics
import subprocess
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

from supervisor.edges.machine.logs.log_retention import LOOK_AGAIN_S
from tests.e2e.launch import wait_until
from tests.soak.one_daemon import OneDaemon, children, cpu_s, descriptors, files_under, proportional_kib, resident_kib

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

WARM_RESTARTS = 500  # by then the memory of a job's newest events is full, and allocators have reached their size
GROWTH_MAX_KIB = 0.5  # per restart
DESCRIPTORS_MORE_MAX = 1
ROWS_MIN = 8  # needed for a verdict
SLOWER_MAX = 0.8  # the rate at the end as a share of the first
DEARER_MAX = 1.1  # and a restart's CPU time: if that is not higher, the machine had less time
LOGS_MAX = ("--log-gib-max", "0.00005")  # so little that every check of the logs removes what it may
LOGS_LOOK_S = 1.5 * LOOK_AGAIN_S
FILES_KEPT = 60  # of the daemon, and of the remaining cycles


@dataclass
class Row:
    """The result of one measurement."""

    restarts: int
    at_s: float
    rss_kib: tuple[int, int]  # of the supervisor and of the spawner, here and below
    pss_kib: tuple[int, int]
    descriptors: tuple[int, int]
    cpu_s: tuple[float, float]
    files: int
    files_in_tmp: int


HEAD = (
    "restarts     /s     rss KiB         pss KiB     descriptors  ms CPU a restart  files  tmp   (supervisor, spawner)"
)


def main(arguments: argparse.Namespace) -> list[str]:
    """Prints a table; returns the failures."""
    with tempfile.TemporaryDirectory(prefix="soak-") as folder:
        return _soak(Path(folder), arguments)


def _soak(folder: Path, arguments: argparse.Namespace) -> list[str]:
    (folder / "script.py").write_text(SCRIPT)
    restarts, ranks, seconds = arguments.restarts, arguments.ranks, arguments.seconds
    daemon = OneDaemon(folder, *LOGS_MAX)
    rows: list[Row] = []
    began_s = time.monotonic()
    try:
        job_id = f"again-{daemon.cookie[:6]}"
        client = daemon.run(
            job_id, "--nproc-per-node", str(ranks), "--max-restarts", str(restarts), "--workers-stop-timeout", "2",
            "--ft-checkpoint-iteration-file", str(folder / "iteration"), str(folder / "script.py"),
        )  # fmt: skip
        if arguments.watchers == 0:
            wait_until(lambda: _cycles(folder) > 0, timeout_s=60, what="the first cycle")
            client.kill()  # the job belongs to the daemon
        for _ in range(1, arguments.watchers):
            daemon.follow_logs(job_id)
        step = max(1, min(50, restarts // 20))
        print(HEAD, flush=True)
        while _cycles(folder) <= restarts and daemon.process.poll() is None and time.monotonic() - began_s < seconds:
            if arguments.watchers and client.poll() is not None:
                break
            done = _cycles(folder)
            if done < len(rows) * step + 1:
                time.sleep(0.02)
                continue
            rows.append(_measured(daemon, done))
            if len(rows) % 4 == 1:
                print(_line(rows), flush=True)
        wrong = _judged_end(daemon, folder, job_id, client, arguments)
        wrong += judged(rows, ranks)
    finally:
        daemon.close()
    return wrong + daemon.leftovers(within_s=10)


def _judged_end(
    daemon: OneDaemon, folder: Path, job_id: str, client: subprocess.Popen[bytes], arguments: argparse.Namespace
) -> list[str]:
    done, restarts = _cycles(folder), arguments.restarts
    if done != restarts + 1:
        return [f"{done - 1} of {restarts} restarts came in {arguments.seconds:.0f} s"]
    if not arguments.watchers:
        wait_until(lambda: daemon.status(job_id)["state"] == "failed", timeout_s=30, what="the job's end")
        return []
    try:
        code = client.wait(30)
    except subprocess.TimeoutExpired:
        code = None
    return (
        [] if code == 1 else [f"the job ended with {code}, not with 1: {(folder / f'{job_id}.txt').read_text()[-500:]}"]
    )


def _cycles(folder: Path) -> int:
    try:
        return (folder / "cycles").stat().st_size
    except FileNotFoundError:
        return 0


def _measured(daemon: OneDaemon, done: int) -> Row:
    pid = daemon.process.pid
    spawner = next(iter(children(pid)), 0)
    return Row(
        done,
        time.monotonic(),
        (resident_kib(pid), resident_kib(spawner)),
        (proportional_kib(pid), proportional_kib(spawner)),
        (descriptors(pid), descriptors(spawner)),
        (cpu_s(pid), cpu_s(spawner)),
        files_under(daemon.state) + files_under(daemon.sockets),
        files_under(daemon.temp),
    )


def _line(rows: list[Row]) -> str:
    row, before = rows[-1], rows[max(0, len(rows) - 5)]
    number = max(1, row.restarts - before.restarts)
    rate = (row.restarts - before.restarts) / ((row.at_s - before.at_s) or 1.0)
    cpu = tuple(1000 * (now - then) / number for now, then in zip(row.cpu_s, before.cpu_s, strict=True))
    kept = (*row.rss_kib, *row.pss_kib, *row.descriptors)
    words = [f"{row.restarts:>8} {rate:>6.1f} ", *(f"{each:>7}" for each in kept)]
    return " ".join([*words, *(f"{each:>7.1f}" for each in cpu), f"{row.files:>6} {row.files_in_tmp:>4}"])


def judged(rows: list[Row], ranks: int) -> list[str]:
    """Returns what grows with the restarts, and whether they became slower."""
    warm = _since_first_look([row for row in rows if row.restarts >= min(WARM_RESTARTS, rows[-1].restarts // 2)])
    if len(warm) < ROWS_MIN:
        return ["too few measurements to judge"]
    quarter = len(warm) // 4
    early, late = warm[:quarter], warm[-quarter:]
    between = late[0].restarts - early[0].restarts
    wrong: list[str] = []
    for at, who in enumerate(("supervisor", "spawner")):
        before, after = (statistics.median(row.rss_kib[at] for row in part) for part in (early, late))
        is_warm = early[0].restarts >= WARM_RESTARTS  # in a short run everything still grows to its size
        if is_warm and after - before > GROWTH_MAX_KIB * between:
            wrong.append(f"{who}: {before} KiB became {after} ({(after - before) / between:.2f} KiB a restart)")
        before, after = (max(row.descriptors[at] for row in part) for part in (warm[: len(warm) // 2], late))
        if after - before > DESCRIPTORS_MORE_MAX:
            wrong.append(f"{who}: {before} descriptors became {after}")
    if late[-1].files_in_tmp > early[0].files_in_tmp:
        wrong.append(f"files in the temporary folder: {early[0].files_in_tmp} became {late[-1].files_in_tmp}")
    return wrong + _judged_files(rows, ranks) + _judged_rate(rows)


def _since_first_look(warm: list[Row]) -> list[Row]:
    """Skips the rows before the first check of the logs, which takes its memory once."""
    looks = (at for at, (before, row) in enumerate(itertools.pairwise(warm), 1) if row.files < before.files)
    since = warm[next(looks, 0) :]
    return since if len(since) >= ROWS_MIN else warm


def _judged_files(rows: list[Row], ranks: int) -> list[str]:
    """Between two checks of the logs, each restart leaves its own."""
    for row in rows:
        recent = row.restarts - min(each.restarts for each in rows if each.at_s >= row.at_s - LOGS_LOOK_S)
        if row.files > 2 * ranks * recent + FILES_KEPT:
            return [f"{row.files} files after {row.restarts} restarts, of which {recent} are new"]
    return []


def _judged_rate(rows: list[Row]) -> list[str]:
    share = max(1, min(200, rows[-1].restarts // 4))
    first_end = next(row for row in rows if row.restarts - rows[0].restarts >= share)
    last_begin = next(row for row in reversed(rows) if rows[-1].restarts - row.restarts >= share)
    (first, first_cpu_s), (last, last_cpu_s) = _pace(rows[0], first_end), _pace(last_begin, rows[-1])
    told = (
        f"restarts a second: {first:.1f}, at the end {last:.1f}; "
        f"CPU time of each: {1000 * first_cpu_s:.1f} ms, at the end {1000 * last_cpu_s:.1f} ms"
    )
    print(told)
    return [told] if last < SLOWER_MAX * first and last_cpu_s > DEARER_MAX * first_cpu_s else []


def _pace(begin: Row, end: Row) -> tuple[float, float]:
    """Returns the restarts per second, and the CPU time of one."""
    restarts = end.restarts - begin.restarts
    return restarts / (end.at_s - begin.at_s), (sum(end.cpu_s) - sum(begin.cpu_s)) / restarts
