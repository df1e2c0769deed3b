"""Runs one launcher on each of several nodes, namespaces of this machine, as one program.

Called as `on_nodes.py NODES SPARES command…`. In the command, {endpoint}, {node} (from 0) and {token} are replaced.
SIGUSR1 starts the spares; once they have loaded torch, the event `spare_ready` is recorded. SIGUSR2 records the event
`power_lost` and cuts the power of the last node that is not a spare. Ends with the first exit code that is not 0.
"""

from __future__ import annotations

import os
import secrets
import signal
import sys
import time
from pathlib import Path

ROOT = Path(__file__).parent.parent.parent
sys.path.insert(0, str(ROOT))

from tests.benchmarks.processes import descendants  # noqa: E402  (run as a script, from anywhere)
from tests.cluster.lab import Lab, Started, lab_of  # noqa: E402

PORT = 29400
LOOK_EVERY_S = 0.002
TORCH = "libtorch_cpu"


class Launchers:
    def __init__(self, lab: Lab, nodes: int, spares: int, command: list[str]) -> None:
        self.lab = lab
        self.command = command
        self.runs: dict[int, Started] = {}
        self.waiting = list(range(nodes + 1, nodes + spares + 1))
        self.loading: set[int] = set()
        self.victim = nodes
        self.token = Path("token")
        self.token.touch(mode=0o600)
        self.token.write_text(secrets.token_hex(32))
        for number in range(1, nodes + 1):
            self.start(number)

    def start(self, number: int) -> None:
        home = Path(f"node{number}").absolute()
        home.mkdir(mode=0o700)
        places: dict[str, str] = dict.fromkeys(
            ("HOLDFAST_CLAIM_DIR", "XDG_RUNTIME_DIR", "XDG_STATE_HOME", "TMPDIR"), str(home)
        )
        if number > 1:  # The bench asks the first node's supervisor for events afterwards.
            places["HOLDFAST_STATE_DIR"] = str(home)
        words = {
            "endpoint": f"{self.lab.nodes[1].address}:{PORT}",
            "node": str(number - 1),
            "token": str(self.token.absolute()),
        }
        command = [word.format(**words) if "{" in word else word for word in self.command]
        self.runs[number] = self.lab.nodes[number].start(
            *command, environment={**os.environ, **places}, output=sys.stdout.buffer
        )

    def start_spares(self) -> None:
        self.loading |= set(self.waiting)
        for number in self.waiting:
            self.start(number)
        self.waiting.clear()

    def lose_power(self) -> None:
        with open(os.environ["BENCH_FAULTS"], "ab") as faults:  # see workloads/recording.py
            faults.write(b"f")
        record("power_lost")
        self.lab.nodes[self.victim].lose_power()
        del self.runs[self.victim]

    def look(self) -> None:
        if self.loading and all(self._has_torch(number) for number in self.loading):
            self.loading.clear()
            record("spare_ready")

    def _has_torch(self, number: int) -> bool:
        launcher = self.runs[number].pid  # torchrun has torch itself
        for pid in [*descendants(self.lab.nodes[number].init_pid), launcher, *descendants(launcher)]:
            try:
                if TORCH in Path(f"/proc/{pid}/maps").read_text():
                    return True
            except OSError:
                continue  # The process has ended meanwhile.
        return False


def record(name: str) -> None:
    """Records an event as workloads do, without a rank."""
    with open(os.environ["BENCH_EVENTS"], "w") as pipe:
        pipe.write(f"{name} -1 -1 {os.getpid()} {time.monotonic_ns()}\n")


def main() -> int:
    nodes, spares, *command = sys.argv[1:]
    wanted: list[int] = []
    for number in (signal.SIGUSR1, signal.SIGUSR2):
        signal.signal(number, lambda signalled, _: wanted.append(signalled))
    signal.signal(signal.SIGTERM, lambda number, _: sys.exit(128 + number))
    with lab_of(int(nodes) + int(spares)) as lab:
        launchers = Launchers(lab, int(nodes), int(spares), command)
        while any(run.poll() is None for run in launchers.runs.values()):
            while wanted:
                launchers.start_spares() if wanted.pop(0) == signal.SIGUSR1 else launchers.lose_power()
            launchers.look()
            time.sleep(LOOK_EVERY_S)
        return next((code for run in launchers.runs.values() if (code := run.wait(1))), 0)


if __name__ == "__main__":
    sys.exit(main())
