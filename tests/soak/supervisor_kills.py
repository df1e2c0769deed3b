"""Is anything lost of a node's jobs if their supervisor is killed repeatedly at random moments?

Each job has ranks that fail at known cycles with known exit codes, fall silent, or leave a wrapped call by an
exception; they count aloud. At the end, the journal must contain each worker once: its start, its end, its exit code or
its hang; no event number or line of output may be missing or doubled, and no restart counted twice.
"""

from __future__ import annotations

import argparse
import contextlib
import itertools
import json
import os
import random
import re
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path

from tests.benchmarks.figures import percentile
from tests.e2e.daemons import NodeDaemon
from tests.e2e.launch import Launch, processes_with, wait_until
from tests.soak import kill_verdicts

SCRIPTS = Path(__file__).parent / "scripts"
RANKS = 2
WRAPPED_SHARE = 0.3  # of the jobs
SILENT_S = "1"  # a rank that is silent for longer hangs
ENDS_WITHIN_S = 300.0  # on a machine so busy that each start of a supervisor takes ten seconds
AWAY_MAX_S = 0.5  # between a kill and the next start
LIVES_MAX_S = 1.2  # for one supervisor, from its start


@dataclass
class Kills:
    """The kills of a run, and their times."""

    kills: int = 0
    while_starting: int = 0
    ready_s: list[float] = field(default_factory=list[float])
    launched_at_s: dict[int, float] = field(default_factory=dict[int, float])  # by pid, Unix time
    adopted_s: list[float] = field(default_factory=list[float])  # from a start until the job has a supervisor again
    jobs: int = 0
    wrong: list[str] = field(default_factory=list[str])


def main(arguments: argparse.Namespace) -> list[str]:
    seed = arguments.seed if arguments.seed is not None else random.randrange(2**32)
    print(f"seed {seed}")
    load = os.getloadavg()
    chance, much = random.Random(seed), {"kills_max": arguments.kills, "cycles": arguments.cycles}
    if arguments.nodes > 1:
        from tests.soak import node_kills  # Late: it uses this module.

        kills = node_kills.run(chance, nodes=arguments.nodes, elects=arguments.etcd, seconds=arguments.seconds, **much)
    else:
        kills = run(chance, seconds=arguments.seconds, **much)
    print(f"{kills.kills} kills, {kills.while_starting} of them of a supervisor that was starting; {kills.jobs} jobs")
    print(f"load of {os.cpu_count()} processors: {load[1]:.1f} before, {os.getloadavg()[1]:.1f} at the end")
    print(f"from the start of a supervisor until it has the job again: {distribution(kills.adopted_s)}")
    print(f"until people can ask it: {distribution(kills.ready_s)}")
    return kills.wrong


def distribution(samples: Sequence[float]) -> str:
    if not samples:
        return "no sample"
    shares = ", ".join(f"p{share} {percentile(samples, share):.2f} s" for share in (50, 90, 99))
    return f"{shares}, slowest {max(samples):.2f} s ({len(samples)} samples)"


def run(chance: random.Random, *, seconds: float, kills_max: int, cycles: int) -> Kills:
    """Runs jobs one after another, with kills all the while."""
    kills = Kills()
    until_s = time.monotonic() + seconds
    with tempfile.TemporaryDirectory(prefix="supervisor-kills-") as name:
        folder = Path(name)
        with NodeDaemon(folder / "daemon") as daemon:
            for number in itertools.count():
                if kills.wrong or kills.kills >= kills_max or time.monotonic() > until_s:
                    return kills
                place = folder / f"job{number}"
                place.mkdir()
                kills.jobs += 1
                kills.wrong += _one_job(place, daemon, chance, kills, cycles)
    raise AssertionError("count() never ends")


def _one_job(place: Path, daemon: NodeDaemon, chance: random.Random, kills: Kills, cycles: int) -> list[str]:
    wrapped = chance.random() < WRAPPED_SHARE
    script = SCRIPTS / ("wrapped_as_planned.py" if wrapped else "failing_as_planned.py")
    silence = () if wrapped else ("--ft-rank-heartbeat-timeout", SILENT_S)
    launch = Launch(
        ["--nproc-per-node", str(RANKS), "--max-restarts", str(cycles), *silence, str(script)],
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
    wrong = _judged(launch, cycles, wrapped=wrapped)
    kills.adopted_s += _adopted_s(launch, kills.launched_at_s)
    wrong += [f"process {pid} is left" for pid in _left(launch)]
    if wrong:
        wrong.append(f"{launch.stderr_text()}\n{daemon.errors.read_text()[-3000:]}")
        wrong.append("\n".join(json.dumps(event) for event in launch.events()))
    return wrong


def _kill_one(daemon: NodeDaemon, chance: random.Random, kills: Kills, launch: Launch) -> None:
    """Kills the supervisor at any point of its life, including its start, and starts the next one."""
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
    at_s = time.time()
    if chance.random() < 0.3:
        daemon.launch()  # the next kill may hit it anywhere in its start
    else:
        daemon.start()
        kills.ready_s.append(daemon.ready_s)
    kills.launched_at_s[daemon.process.pid] = at_s


def _adopted_s(launch: Launch, launched_at_s: dict[int, float]) -> list[float]:
    """As the job's own history has it."""
    found: list[float] = []
    for event in launch.events():
        pid = re.search(r"this supervisor \(pid (\d+)\)", str(event["reason"]))
        if event["kind"] == "supervisor_returned" and pid is not None:
            at_s = datetime.fromisoformat(str(event["at"])).timestamp()
            found.append(at_s - launched_at_s[int(pid[1])])
    return found


def _left(launch: Launch) -> list[int]:
    until_s = time.monotonic() + 10.0
    while (left := processes_with(launch.cookie)) and time.monotonic() < until_s:
        time.sleep(0.02)
    return left


def _judged(launch: Launch, cycles: int, *, wrapped: bool) -> list[str]:
    judge = kill_verdicts.wrapped_as_planned if wrapped else kill_verdicts.failing_as_planned
    wrong = judge(launch.events(), launch.traced(None if wrapped else "started"), cycles=cycles, ranks=RANKS)
    if launch.process.returncode != 0:
        wrong.append(f"the job ended with exit code {launch.process.returncode}")
    logged = launch.holdfast("logs", launch.job_id).stdout
    for where, text in {"logs": logged, "terminal": launch.stdout_text()}.items():
        wrong += kill_verdicts.output(text, where=where, cycles=cycles, ranks=RANKS)
    return wrong
