"""Does the simulator find anything with seeds that were never played? It counts them in docs/architecture/seeds.csv."""

from __future__ import annotations

import argparse
import csv
import re
import subprocess
import time
from dataclasses import dataclass
from pathlib import Path

from tests.deploy.sources import ROOT
from tests.sim.playing import Played, play_range

LEDGER = ROOT / "docs/architecture/seeds.csv"
PLAYED = ("supervisor/core", "tests/sim")  # what a seed's events depend on
BLOCK = 5_000  # seeds between two looks at the clock; each is kept as it is done
MIXES = {
    "plain": {},
    "leaving": {"leaving": True},
    "lost-data": {"loses_data": True},
    "wrapped": {"wrapped": True},
}


@dataclass(frozen=True, slots=True)
class Row:
    """A range of seeds that was played once."""

    mix: str
    first: int
    seeds: int
    commit: str
    failed: str  # the seeds that failed, with spaces between


def read(ledger: Path) -> list[Row]:
    with ledger.open(newline="") as lines:
        return [
            Row(each["mix"], int(each["first"]), int(each["seeds"]), each["commit"], each["failed"])
            for each in csv.DictReader(lines)
        ]


def joined(rows: list[Row], row: Row) -> list[Row]:
    """Returns the rows with one more. It lengthens the last one if it goes on there with the same commit."""
    last = rows[-1] if rows else None
    if last and (last.mix, last.commit, last.first + last.seeds) == (row.mix, row.commit, row.first):
        failed = " ".join(filter(None, (last.failed, row.failed)))
        return [*rows[:-1], Row(last.mix, last.first, last.seeds + row.seeds, last.commit, failed)]
    return [*rows, row]


def write(ledger: Path, rows: list[Row]) -> None:
    with ledger.open("w", newline="") as lines:
        table = csv.writer(lines, lineterminator="\n")
        table.writerow(Row.__slots__)
        table.writerows((each.mix, each.first, each.seeds, each.commit, each.failed) for each in rows)


def main(arguments: argparse.Namespace) -> list[str]:
    """Plays the seeds after all that were played, until its time is over; returns those that failed."""
    if changed := _git("status", "--porcelain", "--", *PLAYED):
        return [f"cannot count seeds: what they play is not committed; commit it first:\n{changed}"]
    commit = _git("log", "-1", "--format=%h", "--abbrev=8", "--", *PLAYED)
    ends_s = time.monotonic() + arguments.seconds
    failures: list[str] = []
    while time.monotonic() < ends_s:
        rows = read(LEDGER)
        first = max((each.first + each.seeds for each in rows), default=0)
        played = Played()
        for part in play_range(first, BLOCK, processes=arguments.processes, **MIXES[arguments.mix]):
            played += part
        seeds = [found[1] for each in played.failures if (found := re.match(r"seed (\d+) ", each))]
        rows = joined(rows, Row(arguments.mix, first, played.runs, commit, " ".join(seeds)))
        write(LEDGER, rows)
        failures += played.failures
        now = sum(each.seeds for each in rows if each.commit == commit)
        print(f"{sum(each.seeds for each in rows):,} seeds in all, {now:,} with the core as it is", flush=True)
    return failures


def _git(*words: str) -> str:
    return subprocess.run(["git", "-C", str(ROOT), *words], capture_output=True, text=True, check=True).stdout.strip()
