"""Whose jobs run beside a hostile user's, and do their ranks' ledgers show each step?

Four users have a job under the service of the node, a fifth one has a job on two nodes of her own; all share healthd
and an attribution service. Scripts ask these and the service all the time.
"""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
import threading
import time
from dataclasses import dataclass, field
from pathlib import Path
from random import Random
from typing import Any

from tests.e2e import many_users
from tests.e2e.many_users import Service
from tests.etcd_server import free_ports

OTHERS = ("alice", "bob", "carol", "dave")  # each with a job under the service
# The user ids are of this run alone: whatever has one of them at the end was started here, and is killed.
MALLORY = 3_000_000 + os.getpid() * 8  # the hostile one
FIRST_UID = MALLORY + 1  # of the others
ERIN = FIRST_UID + len(OTHERS)  # her job has two nodes, and an endpoint on the loopback address
TRUDY = ERIN + 1  # hostile, too: a program that says what a file of lies says is in the place of her supervisor
UIDS = range(MALLORY, TRUDY + 1)
SCRIPTS = Path(__file__).parent / "scripts"
HOLDFAST = (sys.executable, "-m", "supervisor")
STALL_S = 6.0  # between two steps of a rank; a step takes 0.05 s, but this machine may be small
START_S = 120.0
END_S = 60.0


@dataclass
class Step:
    cycle: str
    pid: str
    number: int
    at_s: float


@dataclass
class Neighbour:
    """The job of another user, and the ledgers of its ranks."""

    name: str
    uid: int
    job_id: str
    folder: Path
    ranks: int
    secret: str
    clients: list[subprocess.Popen[str]] = field(default_factory=list[subprocess.Popen[str]])
    last: dict[int, Step] = field(default_factory=dict[int, Step])
    read_to: dict[int, int] = field(default_factory=dict[int, int])
    gap_max_s: float = 0.0
    wrong: list[str] = field(default_factory=list[str])

    def look(self) -> None:
        """Reads the ledgers on. A process other than the first one, a missing step or a late one is wrong."""
        for rank in range(self.ranks):
            with contextlib.suppress(OSError), (self.folder / f"{rank}.ledger").open("rb") as file:
                file.seek(self.read_to.get(rank, 0))
                *lines, rest = file.read().split(b"\n")
                self.read_to[rank] = file.tell() - len(rest)
                for line in lines:
                    self._take(rank, line.decode().split())
        for rank, step in self.last.items():
            self._note_gap(rank, time.monotonic() - step.at_s)

    def _take(self, rank: int, words: list[str]) -> None:
        step = Step(words[0], words[1], int(words[2]), float(words[3]))
        known = self.last.get(rank)
        self.last[rank] = step
        if known is None:
            return
        if (step.cycle, step.pid) != (known.cycle, known.pid):
            self.wrong.append(f"rank {rank} of {self.job_id} was started again: {known} then {step}")
        elif step.number != known.number + 1:
            self.wrong.append(f"rank {rank} of {self.job_id} went from step {known.number} to {step.number}")
        self._note_gap(rank, step.at_s - known.at_s)

    def _note_gap(self, rank: int, gap_s: float) -> None:
        if gap_s > STALL_S >= self.gap_max_s:
            self.wrong.append(f"rank {rank} of {self.job_id} did not step for {gap_s:.1f} s")
        self.gap_max_s = max(self.gap_max_s, gap_s)

    def output(self) -> str:
        return "\n".join(path.read_text(errors="replace")[-2000:] for path in sorted(self.folder.glob("output*")))


class Asks(threading.Thread):
    """Reads what a script that asks all the time has to tell: a line of JSON for each answer."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        super().__init__(daemon=True)
        self.process = process
        self.answers: list[dict[str, Any]] = []
        self.asked_at_s = time.monotonic()
        self.start()

    def run(self) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            told = json.loads(line)
            self.asked_at_s = time.monotonic()
            if "took_s" in told:
                self.answers.append(told)

    def end(self) -> str:
        """Returns what it said on stderr."""
        assert self.process.stdin is not None
        assert self.process.stderr is not None
        self.process.stdin.close()
        with contextlib.suppress(subprocess.TimeoutExpired):
            self.process.wait(END_S)
            return self.process.stderr.read()
        self.process.kill()
        return "it did not end"


class Place:
    """The service, the other users' jobs, the shared services of the node, and those who ask."""

    def __init__(self, service: Service, dice: Random) -> None:
        self.service = service
        self.wrong: list[str] = []
        self.neighbours: list[Neighbour] = []
        self.hauls = service.place / "hauls"
        self.hauls.mkdir(mode=0o777)
        self.hauls.chmod(0o777)
        self.endpoint = f"127.0.0.1:{free_ports(1)[0]}"
        self.health_socket = service.place / "health" / "nvhcd.sock"
        self.attribution_url = f"http://127.0.0.1:{free_ports(1)[0]}"
        self.shared_logs = service.place / "shared-logs"
        self._programs: list[subprocess.Popen[str]] = []
        for number, name in enumerate((*OTHERS, "erin")):
            self.neighbours.append(self._neighbour(name, FIRST_UID + number, f"{dice.getrandbits(64):016x}"))

    def _neighbour(self, name: str, uid: int, word: str) -> Neighbour:
        folder = self.service.place / name
        folder.mkdir(mode=0o700)
        os.chown(folder, uid, uid)
        ranks = 2 if name in ("alice", "erin") else 1
        return Neighbour(name, uid, f"job-of-{name}", folder, ranks, f"secret-of-{name}-{word}")

    def start(self) -> None:
        self._start_services()
        for each in self.neighbours[: len(OTHERS)]:
            self._run(each, "output", "--job-id", each.job_id, "--nproc-per-node", str(each.ranks))
        erin = self.neighbours[-1]
        for number in (1, 2):
            meet = ("--nnodes", "2", "--rdzv-id", erin.job_id, "--rdzv-endpoint", self.endpoint)
            home = erin.folder / f"node{number}"
            before = f"umask 077; mkdir -p {home}/run {home}/state {home}/claims; unset HOLDFAST_SOCKET_DIR; "
            before += (
                f"export XDG_RUNTIME_DIR={home}/run HOLDFAST_STATE_DIR={home}/state HOLDFAST_CLAIM_DIR={home}/claims"
            )
            self._run(erin, f"output{number}", *meet, "--local-addr", f"127.0.0.{number}", before=before)
        deadline_s = time.monotonic() + START_S
        for each in self.neighbours:
            while len(each.last) < each.ranks:
                assert time.monotonic() < deadline_s, f"{each.job_id} does not begin: {each.output()}"
                time.sleep(0.1)
                each.look()

    def _run(self, each: Neighbour, output: str, *flags: str, before: str = ":") -> None:
        script = (str(SCRIPTS / "ledger.py"), str(each.folder), each.secret)
        shell = f"exec >{each.folder}/{output} 2>&1; {before}"
        each.clients.append(self.service.started(each.uid, *HOLDFAST, "run", *flags, *script, before=shell))

    def _start_services(self) -> None:
        """Starts healthd, which all users of the node share, and an attribution service of one of them."""
        self.health_socket.parent.mkdir(mode=0o755)
        script = self.health_socket.with_name("check.sh")
        script.write_text("#!/bin/sh\nsleep 0.1\nprintf '{\"fail_count\": 0}'\n")
        script.chmod(0o755)
        config = self.health_socket.with_name("nvhcd.yaml")
        config.write_text(f"socket_path: {self.health_socket}\nhealthcheck_path: {script}\ntimeout: 10\n")
        self.shared_logs.mkdir()
        self.shared_logs.chmod(0o1777)
        log = self.shared_logs / "of-alice_cycle0.log"
        log.write_text("0: RuntimeError: of alice\n")
        address = self.attribution_url.removeprefix("http://")
        for name, uid, command in (
            ("healthd", 0, ("healthd", "--config", str(config))),
            ("attribution", FIRST_UID, ("attribution", "--app-log-dir", str(self.shared_logs), "--listen", address)),
        ):
            output = self.service.place / f"{name}.txt"
            output.touch()
            os.chown(output, uid, uid)
            self._programs.append(self.service.started(uid, *HOLDFAST, *command, before=f"exec >{output} 2>&1"))
        many_users.until(lambda: self.health_socket.exists() and self._listens(address), "the shared services")

    def _listens(self, address: str) -> bool:
        assert all(each.poll() is None for each in self._programs), "a shared service has ended"
        port = f"{int(address.rpartition(':')[2]):04X}"
        return f"0100007F:{port} 00000000:0000 0A" in Path("/proc/net/tcp").read_text()

    def asks(self) -> tuple[Asks, Asks]:
        """Starts those who ask: root, and an ordinary user."""
        assert self.service.process is not None
        as_root = (sys.executable, str(SCRIPTS / "ask_as_root.py"), str(self.service.process.pid), str(MALLORY))
        of_user = (str(self.health_socket), self.attribution_url, str(self.shared_logs / "of-alice_cycle0.log"))
        as_user = (sys.executable, str(SCRIPTS / "ask_as_user.py"), *of_user)
        path = f"export PYTHONPATH={many_users.ROOT}"
        return (
            Asks(self.service.started(0, *as_root, before=path, stdin=subprocess.PIPE)),
            Asks(self.service.started(FIRST_UID, *as_user, before=path, stdin=subprocess.PIPE)),
        )

    def let_end(self) -> None:
        for each in self.neighbours:
            (each.folder / "stop").touch()
        for each in self.neighbours:
            for client in each.clients:
                try:
                    code = client.wait(END_S)
                except subprocess.TimeoutExpired:
                    code = None
                if code != 0:
                    self.wrong.append(f"{each.job_id} should have ended well: {code}, {each.output()[-1500:]}")
            each.look()
            self.wrong += each.wrong

    def close(self) -> None:
        for each in self._programs:
            each.terminate()
        for process in (*self._programs, *(client for each in self.neighbours for client in each.clients)):
            try:
                process.wait(END_S)
            except subprocess.TimeoutExpired:
                process.kill()
