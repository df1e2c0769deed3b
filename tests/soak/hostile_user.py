"""Do the jobs of five users and root's commands endure a user of the same node who attacks all that she can reach?

Checked continuously: root's commands are answered within a bound; no job of another loses a step or a process; the
shared services answer; nothing that others have printed reaches her; no control character reaches root's terminal. At
the end, all jobs end well, the service ends within a bound, and nothing of anybody is left.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections import Counter, defaultdict
from collections.abc import Generator, Sequence
from pathlib import Path
from random import Random
from typing import Any, cast

from tests.e2e import many_users
from tests.e2e.many_users import Service
from tests.soak.neighbours import END_S, MALLORY, OTHERS, SCRIPTS, TRUDY, UIDS, Asks, Place

TAKEN_OVER = Path(__file__).parents[1] / "e2e/scripts/taken_over_service.py"
LIED = "lied"  # the id of a job that only Trudy's supervisor knows
DECEIVE = "deceive"  # the attack of another user, Trudy
MARK = f"SOAK_ATTACK={MALLORY}"  # in the environment of what attacks

ROOT_ANSWER_S = 2.0  # without the time that the machine withheld
LIES_ANSWER_S = 30.0  # of commands that ask her supervisor alone
SERVICE_ANSWER_S = 15.0  # of healthd, whose check takes a moment, and of the attribution service
ATTACK_S = (4.0, 15.0)
BETWEEN_S = (0.5, 4.0)
AT_ONCE_MAX = 3
QUIET_S = 10.0  # measured before the first attack


class Attack:
    """One attack in progress."""

    def __init__(self, place: Place, name: str, seconds: float, targets: Sequence[str], number: int) -> None:
        uid = TRUDY if name == DECEIVE else MALLORY
        self.name = name
        self.haul = place.hauls / f"{number}-{name}"
        self.over_s = time.monotonic() + seconds + 30.0
        before = f"exec >{self.haul} 2>&1; export {MARK} PYTHONPATH={many_users.ROOT}"
        command = (sys.executable, str(SCRIPTS / "attack.py"), name, str(seconds), *targets)
        self.process = place.service.started(uid, *command, before=before)

    def is_over(self) -> bool:
        if time.monotonic() > self.over_s:
            end_attackers()
        return self.process.poll() is not None


class HostileUser:
    """One run."""

    def __init__(self, place: Place, lies: Path, dice: Random, only: Sequence[str]) -> None:
        self.place, self.dice = place, dice
        self.began_s = time.monotonic()
        self.wrong: list[str] = []
        self.done: Counter[str] = Counter()
        self._running: list[Attack] = []
        self._number = 0
        self._judged = 0
        self._next_s = 0.0
        own = place.service.state_dir / "users" / str(MALLORY)
        control = str(place.service.socket_dir / "control.sock")
        jobs = [each.job_id for each in place.neighbours]
        forged = place.hauls / "node"
        self.attacks: dict[str, tuple[str, ...]] = {
            "ptrace_exec": (),
            "stop_supervisor": (control,),
            "kill_supervisor": (),
            "flood_socket": (),
            "connections": (control,),
            "cluster_connections": (place.endpoint, jobs[-1]),
            "join_cluster": (place.endpoint, jobs[-1], str(forged)),
            "health_connections": (str(place.health_socket),),
            "health_requests": (str(place.health_socket),),
            "others_jobs": (control, *jobs),
            "bad_records": (str(own),),
            DECEIVE: (str(lies), str(place.neighbours[0].folder), *jobs),
            "sparse_logs": (place.attribution_url, str(place.shared_logs)),
        }
        if only:
            self.attacks = {name: self.attacks[name] for name in only}

    def say(self, text: str) -> None:
        print(f"{time.monotonic() - self.began_s:8.2f} {text}", flush=True)

    def _wrong(self, text: str) -> None:
        self.say(f"WRONG: {text}")
        self.wrong.append(text)

    def run(self, seconds: float) -> None:
        of_root, of_user = self.place.asks()
        quiet_until_s = time.monotonic() + QUIET_S
        end_s = quiet_until_s + seconds
        quiet: list[dict[str, Any]] = []
        while (now_s := time.monotonic()) < end_s or self._running:
            self._look(of_root, of_user)
            if now_s < quiet_until_s:
                quiet = list(of_root.answers)
            elif now_s < end_s and now_s >= self._next_s and len(self._running) < AT_ONCE_MAX:
                self._strike(end_s - now_s)
            for attack in [each for each in self._running if each.is_over()]:
                self._running.remove(attack)
                self._search(attack.haul)
            time.sleep(0.05)
        self._look(of_root, of_user)
        for each in (of_root, of_user):
            if (said := each.end()).strip():
                self._wrong(f"who asks said: {said[-1000:]}")
        self._table("quiet", quiet)
        self._table("under attack", of_root.answers[len(quiet) :])
        self._table("shared services", of_user.answers)

    def _strike(self, left_s: float) -> None:
        name = self.dice.choice(sorted(set(self.attacks) - {each.name for each in self._running}) or ["connections"])
        if name not in self.attacks:
            return
        lasts_s = min(self.dice.uniform(*ATTACK_S), max(left_s, 1.0))
        self._number += 1
        self.done[name] += 1
        self.say(f"{name} for {lasts_s:.0f} s")
        self._running.append(Attack(self.place, name, lasts_s, self.attacks[name], self._number))
        self._next_s = time.monotonic() + self.dice.uniform(*BETWEEN_S)

    def _look(self, of_root: Asks, of_user: Asks) -> None:
        for each in self.place.neighbours:
            each.look()
            for text in each.wrong:
                self._wrong(text)
            each.wrong.clear()
            for client in each.clients:
                if (code := client.poll()) is not None:
                    self._wrong(f"{each.job_id} ended with {code}: {each.output()[-1500:]}")
                    each.clients.remove(client)
        process = self.place.service.process
        if process is not None and process.poll() is not None and self._judged >= 0:
            self._wrong(f"the service ended with {process.returncode}: {self._errors()}")
            self._judged = -1
        for asks, bound_s in ((of_root, ROOT_ANSWER_S), (of_user, SERVICE_ANSWER_S)):
            for answer in asks.answers:
                if not answer.get("is_judged"):
                    answer["is_judged"] = True
                    self._judge(answer, bound_s)
            if (silent_s := time.monotonic() - asks.asked_at_s) > 60.0:
                self._wrong(f"a question has had no answer for {silent_s:.0f} s: {asks.answers[-1:]}")
                asks.asked_at_s = time.monotonic()

    def _judge(self, answer: dict[str, Any], bound_s: float) -> None:
        what, own_s = " ".join(answer["command"]), answer["took_s"] - answer.get("withheld_s", 0.0)
        if own_s > (LIES_ANSWER_S if LIED in answer["command"] else bound_s):
            self._wrong(f"{what} took {answer['took_s']:.2f} s, {own_s:.2f} s of them with a processor")
        if answer.get("wrong"):
            self._wrong(f"{what}: {answer['wrong']}")
        if "code" not in answer:
            return
        is_about_lies = LIED in answer["command"]
        shown = answer["out"] + answer["err"]
        if odd := {each for each in shown if not each.isprintable() and each != "\n"}:
            self._wrong(f"{what} showed {odd}")
        for each in self.place.neighbours:
            if each.secret in shown and each.name in ("alice", "erin") and is_about_lies:
                self._wrong(f"{what} showed the secret of {each.name}")
        if is_about_lies:
            return  # whether there is such a job is up to her
        if answer["code"] != 0:
            self._wrong(f"{what} ended with {answer['code']}: {answer['err'][-500:]}")
        elif answer["command"] == ["jobs", "-o", "json"]:
            self._check_jobs(cast("list[dict[str, object]]", json.loads(answer["out"])["jobs"]))

    def _check_jobs(self, jobs: list[dict[str, object]]) -> None:
        running = {job["job_id"] for job in jobs if job["state"] == "running"}
        expected = {each.job_id for each in self.place.neighbours[: len(OTHERS)]}
        if missing := expected - running:
            self._wrong(f"root does not see {sorted(missing)} running: {json.dumps(jobs)[:1500]}")

    def _search(self, haul: Path) -> None:
        """Looks for words of others in what she has received."""
        with contextlib.suppress(OSError):
            data = haul.read_bytes()
            for each in self.place.neighbours:
                if each.secret.encode() in data:
                    self._wrong(f"{haul.name} holds the secret of {each.name}")
            haul.unlink()

    def _errors(self) -> str:
        return self.place.service.errors.read_text(errors="replace")[-3000:]

    def _table(self, name: str, answers: Sequence[dict[str, Any]]) -> None:
        by: dict[str, list[dict[str, Any]]] = defaultdict(list)
        for each in answers:
            by[" ".join(each["command"])].append(each)
        for command, found in sorted(by.items()):
            took = sorted(each["took_s"] for each in found)
            own = max(each["took_s"] - each.get("withheld_s", 0.0) for each in found)
            print(
                f"  {name:16} {command:16} {len(took):5} answers: p50 {statistics.median(took):.2f} s, "
                f"p99 {took[min(len(took) - 1, int(len(took) * 0.99))]:.2f} s, slowest {took[-1]:.2f} s, "
                f"slowest without what the machine withheld {own:.2f} s"
            )

    def summary(self) -> None:
        print("  load average", *(f"{each:.1f}" for each in os.getloadavg()), "on", os.cpu_count(), "processors")
        print("  attacks:", ", ".join(f"{name} {count}" for name, count in sorted(self.done.items())))
        for each in self.place.neighbours:
            steps = [each.last[rank].number for rank in sorted(each.last)]
            print(f"  {each.job_id}: steps {steps}, longest time between two {each.gap_max_s:.2f} s")


def end_attackers() -> None:
    """Kills what attacks, and what that has started: never what the service has started for her."""
    for entry in os.listdir("/proc"):
        with contextlib.suppress(OSError, ValueError):
            if MARK.encode() in Path("/proc", entry, "environ").read_bytes().split(b"\0"):
                os.kill(int(entry), signal.SIGKILL)


def left_over() -> Generator[str]:
    """Yields what still runs of all these users."""
    for entry in filter(str.isdigit, os.listdir("/proc")):
        with contextlib.suppress(OSError, ValueError):
            status = Path("/proc", entry, "status").read_text()
            uid = int(status.partition("Uid:\t")[2].split()[0])
            if uid in UIDS and "State:\tZ" not in status:
                command = Path("/proc", entry, "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
                yield f"process {entry} of user id {uid} is left: {command[:200]}"
                os.kill(int(entry), signal.SIGKILL)


def main(arguments: argparse.Namespace) -> list[str]:
    if why := many_users.missing():
        return [f"cannot play a hostile user: {why}"]
    seed = arguments.seed if arguments.seed is not None else time.time_ns() % 1_000_000
    print(f"seed {seed}, {arguments.seconds:.0f} s")
    dice = Random(seed)
    wrong: list[str] = []
    with contextlib.ExitStack() as at_end:
        at_end.callback(lambda: wrong.extend(left_over()))
        lies = at_end.enter_context(_lies())
        service = at_end.enter_context(_service(wrong, lies))
        place = Place(service, dice)
        at_end.callback(place.close)
        at_end.callback(end_attackers)
        place.start()
        run = HostileUser(place, lies, dice, arguments.attack)
        run.run(arguments.seconds)
        end_attackers()
        place.let_end()
        run.summary()
        wrong += run.wrong + place.wrong
        if wrong:
            print(service.errors.read_text(errors="replace")[-4000:])
    return wrong


@contextlib.contextmanager
def _lies() -> Generator[Path]:
    """Yields the file of Trudy's lies, in a folder of hers."""
    with tempfile.TemporaryDirectory(prefix="lies-", dir="/tmp") as folder:
        lies = Path(folder) / "lies.json"
        lies.write_text('{"jobs": []}')
        for each in (lies, lies.parent):
            os.chown(each, TRUDY, TRUDY)
        yield lies


@contextlib.contextmanager
def _service(wrong: list[str], lies: Path) -> Generator[Service]:
    """Yields a service for these users. One that does not end in time is wrong, and is killed."""
    program = (str(TAKEN_OVER), str(TRUDY), str(lies))
    with many_users.service("--users", ",".join(map(str, UIDS)), program=program) as running:
        yield running
        began_s = time.monotonic()
        try:
            running.close()
        except subprocess.TimeoutExpired:
            wrong.append(f"the service did not end within {END_S:.0f} s of SIGTERM")
        print(f"  the service ended {time.monotonic() - began_s:.1f} s after SIGTERM")
