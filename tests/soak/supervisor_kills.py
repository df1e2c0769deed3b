"""Is anything lost of a node's jobs if their supervisor is killed at random moments, again and again?

Each job has ranks that fail at known cycles with known exit codes. At its end the journal must tell of each worker
once: its start, its end, its exit code; no event number may be missing or told twice, no restart be counted twice.
"""

from __future__ import annotations

import argparse
import contextlib
import itertools
import json
import random
import statistics
import tempfile
import time
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path

from tests.e2e.daemons import NodeDaemon
from tests.e2e.launch import Launch, processes_with, wait_until

# A rank ends itself at a cycle, with a code of its own; the others wait to be ended.
SCRIPT = """
import json, os, random, signal, sys, time
rank, cycle, last = (int(os.environ[name]) for name in ("RANK", "TORCHELASTIC_RESTART_COUNT", "LAST_CYCLE"))
with open(os.environ["TRACE"], "a") as file:
    file.write(json.dumps({"what": "started", "rank": rank, "cycle": cycle, "pid": os.getpid()}) + "\\n")
if cycle == last:
    time.sleep(random.uniform(0, 0.3))
    sys.exit(0)
if rank == cycle % int(os.environ["WORLD_SIZE"]):
    time.sleep(random.uniform(0, 0.5))
    os._exit(10 + cycle % 100)
signal.pause()
"""
RANKS = 2
ENDS_WITHIN_S = 90.0
AWAY_MAX_S = 0.5  # between a kill and the next start
LIVES_MAX_S = 1.2  # of one supervisor, from the moment it was started


@dataclass
class Kills:
    """What was done, and what it took."""

    kills: int = 0
    while_starting: int = 0
    ready_s: list[float] = field(default_factory=list[float])
    jobs: int = 0
    wrong: list[str] = field(default_factory=list[str])


def main(arguments: argparse.Namespace) -> list[str]:
    seed = arguments.seed if arguments.seed is not None else random.randrange(2**32)
    print(f"seed {seed}")
    kills = run(random.Random(seed), seconds=arguments.seconds, kills_max=arguments.kills, cycles=arguments.cycles)
    slowest = sorted(kills.ready_s)
    print(f"{kills.kills} kills, {kills.while_starting} of them of a supervisor that was starting; {kills.jobs} jobs")
    if slowest:
        at = slowest[int(len(slowest) * 0.99)]
        print(f"ready again: median {statistics.median(slowest):.2f} s, p99 {at:.2f} s, slowest {slowest[-1]:.2f} s")
    return kills.wrong


def run(chance: random.Random, *, seconds: float, kills_max: int, cycles: int) -> Kills:
    """Jobs, one after the other, and kills all the while."""
    kills = Kills()
    until_s = time.monotonic() + seconds
    with tempfile.TemporaryDirectory(prefix="supervisor-kills-") as name:
        folder = Path(name)
        script = folder / "train.py"
        script.write_text(SCRIPT)
        with NodeDaemon(folder / "daemon") as daemon:
            for number in itertools.count():
                if kills.wrong or kills.kills >= kills_max or time.monotonic() > until_s:
                    return kills
                place = folder / f"job{number}"
                place.mkdir()
                kills.jobs += 1
                kills.wrong += _one_job(place, script, daemon, chance, kills, cycles)
    raise AssertionError("count() never ends")


def _one_job(
    place: Path, script: Path, daemon: NodeDaemon, chance: random.Random, kills: Kills, cycles: int
) -> list[str]:
    launch = Launch(
        ["--nproc-per-node", str(RANKS), "--max-restarts", str(cycles), str(script)],
        place,
        {"HOLDFAST_SOCKET_DIR": str(daemon.socket_dir), "LAST_CYCLE": str(cycles)},
    )
    launch.wait_for_trace("started")
    deadline_s = time.monotonic() + ENDS_WITHIN_S
    while launch.process.poll() is None and time.monotonic() < deadline_s:
        _kill_one(daemon, chance, kills, launch)
    if launch.process.poll() is None:
        found = [f"job in {place} has not ended: {launch.explained()}\n{daemon.errors.read_text()[-3000:]}"]
        with contextlib.suppress(OSError):
            launch.process.kill()
        return found
    wait_until(daemon.is_serving, timeout_s=ENDS_WITHIN_S, what="the supervisor")
    wrong = judged(launch.events(), launch.traced("started"), cycles=cycles, exit_code=launch.process.returncode)
    wrong += [f"process {pid} is left" for pid in _left(launch)]
    if wrong:
        wrong.append(f"{launch.stderr_text()}\n{daemon.errors.read_text()[-3000:]}")
        wrong.append("\n".join(json.dumps(event) for event in launch.events()))
    return wrong


def _kill_one(daemon: NodeDaemon, chance: random.Random, kills: Kills, launch: Launch) -> None:
    """Kills the supervisor somewhere in its life, its start included, and starts the next one."""
    assert daemon.process is not None
    lives_until_s = time.monotonic() + chance.uniform(0, LIVES_MAX_S)
    while time.monotonic() < lives_until_s and launch.process.poll() is None:
        time.sleep(0.01)
    if launch.process.poll() is not None:
        return
    if not daemon.is_serving():
        kills.while_starting += 1
    daemon.kill()
    kills.kills += 1
    if chance.random() < 0.5:
        time.sleep(chance.uniform(0, AWAY_MAX_S))
    if chance.random() < 0.3:
        daemon.launch()  # The next kill may meet it anywhere in its start.
    else:
        daemon.start()
        kills.ready_s.append(daemon.ready_s)


def _left(launch: Launch) -> list[int]:
    until_s = time.monotonic() + 10.0
    while (left := processes_with(launch.cookie)) and time.monotonic() < until_s:
        time.sleep(0.02)
    return left


def judged(
    events: list[dict[str, object]], started: list[dict[str, object]], *, cycles: int, exit_code: int
) -> list[str]:
    """What is wrong with the history of a job that was to fail in each of `cycles` cycles, and to succeed then."""
    wrong: list[str] = []
    numbers = [int(str(event["sequence"])) for event in events]
    if numbers != list(range(1, len(events) + 1)):
        wrong.append(f"event numbers have gaps, or come twice: {numbers}")
    if exit_code != 0:
        wrong.append(f"the job ended with exit code {exit_code}")
    expected = {(cycle, rank) for cycle in range(cycles + 1) for rank in range(RANKS)}
    ran = Counter((int(str(line["cycle"])), int(str(line["rank"]))) for line in started)
    if any(count > 1 for count in ran.values()):
        wrong.append(f"workers were started twice: {[key for key, count in ran.items() if count > 1]}")
    for what, kinds in {"starts": {"worker_started"}, "ends": {"worker_failed", "worker_exited"}}.items():
        told = Counter((event["cycle"], event["rank"]) for event in events if event["kind"] in kinds)
        if told != Counter(expected):
            odd = {key: count for key, count in told.items() if count != 1} | dict.fromkeys(expected - {*told}, 0)
            wrong.append(f"{what} of workers that are not told exactly once: {odd}")
    for cycle in range(cycles):
        code = 10 + cycle % 100
        if not any(
            (event["kind"], event["cycle"], event["rank"]) == ("worker_failed", cycle, cycle % RANKS)
            and f"exit code {code}" in str(event["reason"])
            for event in events
        ):
            wrong.append(f"exit code {code} of cycle {cycle} was lost")
    decided = sum(event["kind"] == "restart_decided" for event in events)
    if decided != cycles:
        wrong.append(f"{decided} restarts were decided instead of {cycles}")
    return wrong
