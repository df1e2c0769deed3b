"""Does the daemon always answer? If an answer is late, was it because of the machine or the daemon itself?"""

from __future__ import annotations

import threading
import time
from dataclasses import dataclass
from pathlib import Path

from supervisor.edges.operators.control_client import ControlClient
from supervisor.errors import HoldfastError
from tests.soak.one_daemon import OneDaemon

ANSWER_S = 2.0  # without the time that the machine withheld from the daemon
LATE_S = 0.5  # worth a line
ASK_EVERY_S = 0.25


@dataclass(frozen=True)
class Ran:
    """The CPU time that the kernel has given the main thread of a process."""

    ran_s: float
    waited_s: float  # ready to run, without a CPU

    @staticmethod
    def of(pid: int) -> Ran:
        try:
            ran, waited, _ = Path(f"/proc/{pid}/task/{pid}/schedstat").read_text().split()
        except (OSError, ValueError):
            return Ran(0.0, 0.0)
        return Ran(int(ran) / 1e9, int(waited) / 1e9)


class Answers(threading.Thread):
    """Asks the daemon continuously."""

    def __init__(self, daemon: OneDaemon) -> None:
        super().__init__(daemon=True)
        self._socket, self._pid = daemon.sockets / "control.sock", daemon.process.pid
        self._over = threading.Event()
        self.worst_s, self.asked, self.wrong, self.late = 0.0, 0, list[str](), list[str]()

    def run(self) -> None:
        with ControlClient(self._socket) as client:
            while not self._over.is_set():
                paused_s = time.monotonic()
                if self._over.wait(ASK_EVERY_S):
                    break
                late_s = time.monotonic() - paused_s - ASK_EVERY_S  # our own thread did not run in time
                self._ask(client, late_s)

    def _ask(self, client: ControlClient, late_s: float) -> None:
        before, began_s = Ran.of(self._pid), time.monotonic()
        try:
            client.jobs()
        except HoldfastError as error:
            self.wrong.append(f"the daemon did not answer: {error}")
        took_s = time.monotonic() - began_s
        after = Ran.of(self._pid)
        self.asked += 1
        self.worst_s = max(self.worst_s, took_s)
        if took_s < LATE_S:
            return
        withheld_s = after.waited_s - before.waited_s
        text = (
            f"an answer took {took_s:.2f} s: the daemon ran for {after.ran_s - before.ran_s:.2f} s and waited for a "
            f"processor for {after.waited_s - before.waited_s:.2f} s; who asked came {late_s:.2f} s late to it"
        )
        self.late.append(text)
        if took_s - withheld_s > ANSWER_S:
            self.wrong.append(text)

    def end(self) -> None:
        self._over.set()
        self.join(30)
