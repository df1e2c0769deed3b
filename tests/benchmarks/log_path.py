"""Rows: the log of a whole job, one file a cycle: what it costs, what it loses, and how soon a line is in it."""

from __future__ import annotations

import os
import re
import shutil
import tempfile
import time
from collections.abc import Mapping
from pathlib import Path

from tests.benchmarks import processes
from tests.benchmarks.bench import START_LIMIT_S, Bench
from tests.benchmarks.cost import beside_workers
from tests.benchmarks.launch import Run
from tests.benchmarks.rows import Group, Row, Statistic, Target, Unit
from tests.benchmarks.subjects import Family, JobOptions, Subject

RANKS = 8
RATE_MB_PER_S = 100
LINE_BYTES = 128  # of flooding.py
SETTLED_S = 1.0  # how long the file has not grown
STAMPS = 60
STAMP_PAUSE_S = 0.05
LOOK_S = 0.001
_STAMP = re.compile(rb"stamp (\d+)\n")
_HOW = "holdfast with --ft-per-cycle-applog-prefix, torchrun with --tee 3, by which each rank writes a file of its own"
_SUBJECTS = ("torchrun", "holdfast")  # the version of the reference that pip installs has no file for all ranks


def measure_flood(bench: Bench) -> list[Row]:
    cpu = Row(
        "log_flood_cpu", Group.COST,
        f"log of a whole job, {RANKS} ranks that print {RATE_MB_PER_S} MB/s each if they can: CPU beside the workers",
        Unit.CORES, Target(at_most=1.0), notes=[f"{_HOW}. Compare it with the rate."],
    )  # fmt: skip
    rate = Row("log_flood_rate", Group.COST, "the same: what the ranks got rid of together", Unit.MB_PER_S)
    per_gb = Row("log_flood_per_gb", Group.COST, "the same: seconds of CPU for each GB", Unit.SECONDS)
    lost = Row("log_flood_lost", Group.COST, "the same: share of the lines that are in no file", Unit.SHARE)
    printed_s = bench.length(4.0, 2.0)

    def once(subject: Subject) -> Mapping[str, float]:
        with tempfile.TemporaryDirectory(prefix="bench-log-") as logs, Path(os.devnull).open("wb") as console:
            options = _options(subject, Path(logs), (str(RATE_MB_PER_S), str(printed_s), "print"), RANKS)
            with Run(subject, "flooding", options, console.fileno()) as run:
                workers = run.await_events("ready", RANKS, cycle=0, limit_s=START_LIMIT_S)
                beside = beside_workers(run, workers)
                before_s, from_s = sum(map(processes.cpu_s, beside)), time.monotonic()
                done = run.await_events("done", RANKS, limit_s=START_LIMIT_S)
                over_s = time.monotonic() - from_s
                _await_rest(Path(logs))
                spent_s = sum(map(processes.cpu_s, beside_workers(run, workers))) - before_s
                kept = _lines(Path(logs))
        printed = sum(int(event.fields["written"]) for event in done)
        took_s = max(float(event.fields["took_s"]) for event in done)
        return {
            cpu.key: spent_s / over_s,
            rate.key: printed / took_s / 1e6,
            per_gb.key: spent_s / printed * 1e9,
            lost.key: max(0.0, 1 - kept * LINE_BYTES / printed),
        }

    if shutil.disk_usage(tempfile.gettempdir()).free < RANKS * RATE_MB_PER_S * 1e6 * printed_s * 2:
        cpu.notes.append("Not measured: too little room for the log files.")
        return [cpu]
    bench.fill([cpu, rate, per_gb, lost], bench.counts(2, 1, only=_SUBJECTS), once)
    return [cpu, rate, per_gb, lost]


def measure_delay(bench: Bench) -> list[Row]:
    delay = Row(
        "log_delay", Group.SPEED, "a line is printed → it is in the log file: the slowest of 60", Unit.SECONDS,
        Target(at_most=0.2), Statistic.WORST, notes=[f"{_HOW}. The file is looked at each millisecond."],
    )  # fmt: skip

    def once(subject: Subject) -> Mapping[str, float]:
        delays: list[float] = []
        with tempfile.TemporaryDirectory(prefix="bench-log-") as logs:
            options = _options(subject, Path(logs), (str(STAMPS), str(STAMP_PAUSE_S)), 1)
            with Run(subject, "stamping", options) as run:
                run.await_events("ready", 1, cycle=0, limit_s=START_LIMIT_S)
                deadline_s = time.monotonic() + STAMPS * STAMP_PAUSE_S + 10
                while len(delays) < STAMPS and time.monotonic() < deadline_s:
                    found = [int(stamp) for path in _files(Path(logs)) for stamp in _STAMP.findall(path.read_bytes())]
                    delays += [(time.monotonic_ns() - at_ns) / 1e9 for at_ns in found[len(delays) :]]
                    time.sleep(LOOK_S)
        return {delay.key: max(delays) if len(delays) == STAMPS else float("inf")}

    bench.fill([delay], bench.counts(3, 1, only=_SUBJECTS), once)
    return [delay]


def _options(subject: Subject, logs: Path, arguments: tuple[str, ...], ranks: int) -> JobOptions:
    flags = () if subject.family is Family.TORCHRUN else ("--ft-per-cycle-applog-prefix", str(logs / "train.log"))
    return JobOptions(
        world_size=ranks,
        max_restarts=1,
        tee_into=logs if subject.family is Family.TORCHRUN else None,
        flags=flags,
        arguments=arguments,
    )


def _files(folder: Path) -> list[Path]:
    """Returns torchrun's file of each rank, or the cycles' files."""
    return [*folder.rglob("stdout.log"), *folder.glob("train_cycle*.log")]


def _lines(folder: Path) -> int:
    count = 0
    for path in _files(folder):
        with path.open("rb") as file:
            while data := file.read(1 << 20):
                count += data.count(b"\n")
    return count


def _await_rest(folder: Path) -> None:
    """Waits until the printed lines are in the files, as far as they ever will be."""
    size, since_s = -1, time.monotonic()
    while time.monotonic() < since_s + SETTLED_S:
        now = sum(path.stat().st_size for path in _files(folder))
        if now != size:
            size, since_s = now, time.monotonic()
        time.sleep(LOOK_S * 20)
