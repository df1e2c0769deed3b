"""Do five jobs under one daemon survive while their parts are killed, stopped, filled up and blocked?

Checked continuously: the daemon answers within a bound; a job that is not hit continues with the same processes and
never stalls; no counter goes backwards; a job never has two groups that count. A job that is hit counts on or ends with
a reason within a bound, and is then restarted. At the end nothing is left.
"""

from __future__ import annotations

import argparse
import subprocess
import tempfile
import time
from collections import Counter
from collections.abc import Generator
from dataclasses import dataclass, field
from pathlib import Path
from random import Random

from tests.soak import faults
from tests.soak.answers import Answers
from tests.soak.crew import Checkpoint, Job
from tests.soak.faults import Fault, Undo
from tests.soak.one_daemon import OneDaemon
from tests.soak.places import SmallDisk, Unanswering, mounted_under, own_mounts

STALL_S = 6.0  # for a job that is not hit; a step takes 0.02 s, but this machine may be small
RECOVER_S = 60.0  # for a job that is hit, from the end of the fault
UNDONE_AFTER_S = (0.3, 8.0)
LONG_S = 45.0  # beyond every deadline of a spawner
QUIET_S = (1.0, 5.0)  # between two faults of one job
STEPS_AFTER = 25  # after this many on every rank, it has recovered
USEFUL_GAP_S = 0.5  # a job whose slowest rank has counted within this time is useful
GONE_S = 15.0  # from the end of a job to the end of its last process
START_S = 60.0
END_S = 60.0
STOP_S = 20.0
AGAIN = "started again"
LONG = "silent_fails_for_long_and_worker_killed"
STARTS_MAX = 5  # in a row


@dataclass
class Hit:
    """A fault in a job, until the job has recovered or ended."""

    kind: str
    at_s: float
    steps: tuple[int, ...]
    undo: Undo
    undo_at_s: float
    is_undone: bool = False


@dataclass
class Target:
    """A job and its possible faults."""

    job: Job
    kinds: dict[str, Fault]
    next_s: float
    round: list[str]  # remaining kinds: each once, then again in another order
    hit: Hit | None = None
    starts: int = 0  # consecutive ones that did not count
    calm: dict[int, Checkpoint] = field(default_factory=dict[int, Checkpoint])  # its processes since the last recovery
    stood_still_s: float = 0.0  # the maximum while it was not hit
    useful_s: float = 0.0
    seen_s: float = 0.0
    looked_at_s: float = 0.0

    def look(self, now_s: float) -> None:
        self.job.look()
        silent_s = self.job.silent_s()
        if self.looked_at_s:
            self.seen_s += now_s - self.looked_at_s
            self.useful_s += now_s - self.looked_at_s if silent_s < USEFUL_GAP_S else 0.0
        self.looked_at_s = now_s
        if self.hit is None:
            self.stood_still_s = max(self.stood_still_s, silent_s)


class Chaos:
    """One run."""

    def __init__(self, folder: Path, seed: int) -> None:
        self.dice = Random(seed)
        self.began_s = time.monotonic()
        self.wrong: list[str] = []
        self.done: Counter[str] = Counter()
        self.recovered: Counter[str] = Counter()
        self.ended: Counter[str] = Counter()
        self.worst_s: dict[str, float] = {}
        self.daemon = OneDaemon(folder)
        self.disk: SmallDisk | None = None
        self.silent: Unanswering | None = None
        self.targets: list[Target] = []
        self.lost: list[Job] = []  # they can neither be made to count nor ended

    def start(self, folder: Path, *, with_mounts: bool) -> None:
        if with_mounts:
            self.disk = SmallDisk(folder / "small-disk")
            self.silent = Unanswering(folder / "unanswering")
        for job, kinds in self._crew():
            self.targets.append(Target(job, kinds, 0.0, []))

    def _crew(self) -> Generator[tuple[Job, dict[str, Fault]]]:
        workers = {name: getattr(faults, name) for name in ("worker_killed", "worker_stopped")}
        workers |= {"worker_stopped_a_moment": faults.worker_stopped_a_moment}
        spawners = {
            name: getattr(faults, name)
            for name in (
                "spawner_killed", "spawner_stopped_a_moment", "spawner_stopped_and_worker_killed", "store_host_killed",
                "store_host_stopped_and_worker_killed",
            )
        }  # fmt: skip
        yield Job(self.daemon, "calm"), {}
        yield Job(self.daemon, "plain"), workers | spawners
        yield Job(self.daemon, "wrapped", how="wrapped", ranks=3), workers | spawners
        if self.disk is not None and self.silent is not None:
            for name, place in (("disk", self.disk), ("silent", self.silent)):
                kinds = {
                    f"{name}_fails": faults.failing(place, and_worker=False),
                    f"{name}_fails_and_worker_killed": faults.failing(place, and_worker=True),
                }
                if place is self.silent:
                    kinds[LONG] = faults.failing(place, and_worker=True)
                yield Job(self.daemon, name, log_dir=place.folder), kinds

    def say(self, text: str) -> None:
        print(f"{time.monotonic() - self.began_s:8.2f} {text}", flush=True)

    def run(self, seconds: float) -> None:
        self._await_start()
        answers = Answers(self.daemon)
        answers.start()
        end_s = time.monotonic() + seconds
        while time.monotonic() < end_s or any(target.hit for target in self.targets):
            for target in list(self.targets):
                self._turn(target, is_over=time.monotonic() >= end_s)
            if self.daemon.process.poll() is not None:
                self.wrong.append(f"the daemon ended with {self.daemon.process.returncode}")
                break
            time.sleep(0.02)
        answers.end()
        self.wrong += answers.wrong[:20]
        for late in answers.late[:20]:
            self.say(late)
        self.say(f"the daemon was asked {answers.asked} times; its slowest answer took {answers.worst_s:.2f} s")

    def _await_start(self) -> None:
        deadline_s = time.monotonic() + START_S
        while any(min(target.job.steps()) < STEPS_AFTER for target in self.targets):
            late = [target.job for target in self.targets if min(target.job.steps()) < STEPS_AFTER]
            assert time.monotonic() < deadline_s, [f"{job.name} does not count: {job.printed()}" for job in late]
            for target in self.targets:
                target.job.look()
            time.sleep(0.05)
        for target in self.targets:
            target.calm = dict(target.job.steps_seen)
            target.next_s = time.monotonic() + self.dice.uniform(*QUIET_S)
            target.job.gap_max_s = 0.0

    def _turn(self, target: Target, *, is_over: bool) -> None:
        now_s = time.monotonic()
        target.look(now_s)
        if target.hit is None:
            self._check_calm(target)
            if target.hit is None and target.kinds and now_s >= target.next_s and not is_over:
                self._strike(target)
            return
        hit = target.hit
        if not hit.is_undone and now_s >= hit.undo_at_s:
            hit.undo()
            hit.is_undone = True
        self._check_hit(target, hit)

    def _strike(self, target: Target) -> None:
        now_s = time.monotonic()
        if not target.round:
            target.round = self.dice.sample(sorted(target.kinds), len(target.kinds))
        kind = target.round.pop()
        undo = target.kinds[kind](target.job, self.dice)
        if undo is None:
            target.round.insert(0, kind)
            target.next_s = now_s + 0.5
            return
        self.done[kind] += 1
        self.say(f"{target.job.name}: {kind}")
        lasts_s = LONG_S if kind == LONG else self.dice.uniform(*UNDONE_AFTER_S)
        target.hit = Hit(kind, now_s, target.job.steps(), undo, now_s + lasts_s)

    def _check_calm(self, target: Target) -> None:
        job = target.job
        if (code := job.client.poll()) is not None:
            self._wrong(f"{job.name} was not hit and ended with {code}: {self._reason(job)}")
            self._start_again(target)
        elif job.silent_s() > STALL_S:
            self._wrong(f"{job.name} was not hit and did not count for {STALL_S} s")
            target.hit = Hit("nothing", time.monotonic(), job.steps(), lambda: None, 0.0)
        elif not job.is_the_same_group(target.calm):
            self._wrong(f"{job.name} was not hit and its processes changed: {self._reason(job)}")
            target.calm = dict(job.steps_seen)

    def _check_hit(self, target: Target, hit: Hit) -> None:
        job, took_s = target.job, time.monotonic() - hit.at_s
        if job.client.poll() is not None:
            reason = self._reason(job)
            self.say(f"{job.name}: ended {took_s:.2f} s after {hit.kind}: {reason}")
            if not reason:
                self._wrong(f"{job.name} ended after {hit.kind} without a reason")
            self.ended[hit.kind] += 1
            if not hit.is_undone:
                hit.undo()
            if left := job.left(within_s=GONE_S):
                self._wrong(f"{job.name} ended after {hit.kind} and left {left}")
            self._start_again(target)
        elif hit.is_undone and min(a - b for a, b in zip(job.steps(), hit.steps, strict=True)) >= STEPS_AFTER:
            if job.silent_s() < 1.0:
                self.recovered[hit.kind] += 1
                self.worst_s[hit.kind] = max(self.worst_s.get(hit.kind, 0.0), took_s)
                self._calm_again(target)
        elif time.monotonic() - max(hit.at_s, hit.undo_at_s) > RECOVER_S:
            self._wrong(f"{job.name} neither counted on nor ended within {RECOVER_S:.0f} s after {hit.kind}")
            hit.undo()
            self._end_by_force(target)

    def _end_by_force(self, target: Target) -> None:
        """Ends the job so that the run continues: first as an operator would, then by force."""
        job = target.job
        self.daemon.command("stop", job.job_id, "--socket-dir", str(self.daemon.sockets))
        if not self._has_ended(job):
            self._wrong(f"{job.name} did not end by holdfast stop: {self._reason(job)}")
            faults.spawner_killed(job, self.dice)
            if not self._has_ended(job):
                self._wrong(f"{job.name} did not end by the death of its spawner: {self._reason(job)}")
                job.client.kill()
                self._give_up(target)
                return
        self._start_again(target)

    def _has_ended(self, job: Job) -> bool:
        try:
            job.client.wait(STOP_S)
        except subprocess.TimeoutExpired:
            return False
        return True

    def _give_up(self, target: Target) -> None:
        self.say(f"{target.job.name} is left alone from now on")
        self.targets.remove(target)
        self.lost.append(target.job)

    def _start_again(self, target: Target) -> None:
        """Restarts it, and waits as for one that was hit."""
        job = target.job
        since_counting = 0 if target.hit is None or target.hit.kind != AGAIN else target.starts + 1
        target.starts = since_counting
        if since_counting > STARTS_MAX:
            self._wrong(f"{job.name} cannot be started again: {job.printed()}")
            self._give_up(target)
            return
        job.start_again()
        target.hit = Hit(AGAIN, time.monotonic(), job.steps(), lambda: None, 0.0, is_undone=True)

    def _calm_again(self, target: Target) -> None:
        target.hit = None
        target.job.gap_max_s = 0.0
        target.calm = dict(target.job.steps_seen)
        target.next_s = time.monotonic() + self.dice.uniform(*QUIET_S)

    def _wrong(self, text: str) -> None:
        self.say(f"WRONG: {text}")
        self.wrong.append(text)

    def _reason(self, job: Job) -> str:
        try:
            status = self.daemon.status(job.job_id)
        except AssertionError as error:
            return f"no status: {error}"
        return f"{status.get('state')}: {status.get('reason')}"

    def close(self) -> None:
        """Stops the jobs and the daemon, repairs the places, and counts what is left."""
        for target in self.targets:
            if target.hit is not None and not target.hit.is_undone:
                target.hit.undo()
            self.wrong += target.job.overlaps() + target.job.wrong
            (target.job.folder / "stop").touch()
        for target in self.targets:
            deadline_s = time.monotonic() + END_S
            while target.job.client.poll() is None and time.monotonic() < deadline_s:
                time.sleep(0.05)
            if target.job.client.poll() != 0:
                code = target.job.client.poll()
                self.wrong.append(f"{target.job.name} should have ended well: {code}, {self._reason(target.job)}")
        self.daemon.close()
        self.wrong += self.daemon.leftovers(within_s=10)
        for place in (self.disk, self.silent):
            if place is not None:
                place.close()
        self.wrong += mounted_under(self.daemon.folder)

    def summary(self) -> None:
        self.say("fault, how often, recovered, ended with a reason, slowest recovery")
        for kind in sorted(set(self.done) | set(self.ended)):
            slowest = f"{self.worst_s[kind]:.1f} s" if kind in self.worst_s else "-"
            print(f"  {kind:40} {self.done[kind]:4} {self.recovered[kind]:4} {self.ended[kind]:4} {slowest:>8}")
        for target in self.targets:
            print(
                f"  {target.job.name}: steps {target.job.steps()}, started {target.job.runs} times, useful "
                f"{100 * target.useful_s / max(target.seen_s, 1e-9):.1f} % of {target.seen_s:.0f} s, stood still for "
                f"{target.stood_still_s:.2f} s at most while it was not hit"
            )


def main(arguments: argparse.Namespace) -> list[str]:
    with_mounts = own_mounts()
    seed = arguments.seed if arguments.seed is not None else time.time_ns() % 1_000_000
    print(f"seed {seed}, {arguments.seconds:.0f} s" + ("" if with_mounts else "; not root: no disk and no file system"))
    with tempfile.TemporaryDirectory(prefix="soak-", ignore_cleanup_errors=True) as folder:
        chaos = Chaos(Path(folder), seed)
        try:
            chaos.start(Path(folder), with_mounts=with_mounts)
            chaos.run(arguments.seconds)
        finally:
            chaos.close()
        chaos.summary()
        if chaos.wrong:
            print((Path(folder) / "daemon.txt").read_text()[-4000:])
    return chaos.wrong
