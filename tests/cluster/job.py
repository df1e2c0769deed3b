"""One job on the nodes of a lab: what each of them is told to run, what its ranks did, and whether two groups ran."""

from __future__ import annotations

import itertools
import os
import secrets
import sys
from collections.abc import Generator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from tests.cluster.lab import Lab, Node, Started, lab_of
from tests.e2e.launch import wait_until

HOLDFAST = Path(sys.executable).with_name("holdfast")
SCRIPT = Path(__file__).parent / "scripts" / "stepping.py"
PORT = 29400
LIMIT_S = 60.0
PACE_S = 0.02


@dataclass(frozen=True)
class Stamp:
    """One line that a rank has written."""

    cycle: int
    rank: int
    node: str
    what: str
    at_s: float
    number: int


class ClusterJob:
    """`holdfast run` on each node that is started, with folders of its own, as nodes have."""

    def __init__(
        self, lab: Lab, folder: Path, nnodes: str, *flags: str, ranks: int = 1, pace_s: float = PACE_S
    ) -> None:
        self.lab = lab
        self.folder = folder
        self.flags = ("--nnodes", nnodes, "--nproc-per-node", str(ranks), "--max-restarts", "3", *flags)
        self.pace_s = pace_s
        self.runs: dict[int, Started] = {}
        self.token = folder / "token"
        self.token.touch(mode=0o600)
        self.token.write_text(secrets.token_hex(32))
        (folder / "stamps").mkdir()

    def start(self, number: int, *flags: str, endpoint: str = f"10.77.0.1:{PORT}") -> Started:
        home = self.folder / f"node{number}"
        for place in (home, home / "claims", home / "state", home / "run", home / "tmp"):
            place.mkdir(exist_ok=True, mode=0o700)
        environment = {name: os.environ[name] for name in ("HOME", "PATH", "LANG") if name in os.environ} | {
            "HOLDFAST_CLAIM_DIR": str(home / "claims"),
            "HOLDFAST_STATE_DIR": str(home / "state"),
            "XDG_RUNTIME_DIR": str(home / "run"),
            "TMPDIR": str(home / "tmp"),
            "PYTHONPATH": str(Path(__file__).parents[2]),
        }
        meeting = ("--rdzv-id", "job", "--rdzv-endpoint", endpoint, "--rdzv-conf", f"token_file={self.token}")
        command = (str(HOLDFAST), "run", *self.flags, *meeting, *flags, str(SCRIPT), str(self.folder), str(self.pace_s))
        with (home / "output").open("ab") as output:
            run = self.lab.nodes[number].start(*command, environment=environment, output=output)
        self.runs[number] = run
        return run

    def start_leader(self) -> Started:
        """Returns once the others can join."""
        run = self.start(1)
        self.until(lambda: self.listens(self.lab.nodes[1]), "a leader")
        return run

    def listens(self, node: Node) -> bool:
        table = Path(f"/proc/{node.init_pid}/net/tcp").read_text()
        return any(
            line.split()[1].endswith(f":{PORT:04X}") and line.split()[3] == "0A" for line in table.splitlines()[1:]
        )

    def order(self, rank: int, what: str) -> None:
        """The rank does it to itself at its next step: kill or stop."""
        beside = self.folder / "order.new"
        beside.write_text(what)
        beside.replace(self.folder / f"order-{rank}")

    def let_end(self) -> None:
        (self.folder / "end").touch()

    def codes(self, *numbers: int) -> dict[int, int]:
        """How the runs ended, once they all have."""
        self.until(lambda: all(self.runs[number].poll() is not None for number in numbers), "the end of the job")
        return {number: self.runs[number].wait(LIMIT_S) for number in numbers}

    def output(self, number: int) -> str:
        return (self.folder / f"node{number}" / "output").read_text(errors="replace")

    def until(self, condition: object, what: str, limit_s: float = LIMIT_S) -> None:
        """A job that stands still explains itself."""
        try:
            wait_until(condition, timeout_s=limit_s, what=what)
        except AssertionError as error:
            told = "\n".join(f"node {number}:\n{self.output(number)}" for number in self.runs)
            raise AssertionError(f"{error}\n{told}") from None

    def until_steps(self, cycle: int, *, nodes: set[int], steps: int = 3) -> None:
        """Every rank of that cycle has made so many steps, and its ranks are on these nodes."""
        wanted = {f"node{number}" for number in nodes}
        self.until(
            lambda: (
                {each.node for each in self.stamps(cycle) if each.what == "step"} == wanted
                and self._slowest(cycle) >= steps
            ),
            f"cycle {cycle} on {sorted(wanted)}",
        )

    def steps_saved(self) -> int:
        path = self.folder / "checkpoint"
        return int(path.read_text()) if path.exists() else 0

    def _slowest(self, cycle: int) -> int:
        made: dict[int, int] = {}
        for each in self.stamps(cycle):
            made[each.rank] = made.get(each.rank, 0) + (each.what == "step")
        return min(made.values(), default=0)

    def stamps(self, cycle: int | None = None) -> list[Stamp]:
        found: list[Stamp] = []
        for path in (self.folder / "stamps").iterdir():
            of_cycle, rank, node, _ = path.name.split("-")
            if cycle is None or int(of_cycle) == cycle:
                for line in path.read_text().splitlines():
                    what, at_ns, number = line.split()
                    found.append(Stamp(int(of_cycle), int(rank), node, what, int(at_ns) / 1e9, int(number)))
        return found

    def wrong(self) -> list[str]:
        """Two groups that were alive at once, and steps that were lost though a checkpoint had them."""
        return overlaps(self.stamps()) + lost_steps(self.stamps())


def overlaps(stamps: list[Stamp]) -> list[str]:
    """No process of a cycle is alive once one of a later cycle is."""
    first: dict[int, Stamp] = {}
    last: dict[int, Stamp] = {}
    for each in sorted(stamps, key=lambda stamp: stamp.at_s):
        first.setdefault(each.cycle, each)
        last[each.cycle] = each
    return [
        f"{last[before].node} still ran rank {last[before].rank} of cycle {before} "
        f"{last[before].at_s - first[after].at_s:.3f} s after {first[after].node} began cycle {after}"
        for before in first
        for after in first
        if before < after and last[before].at_s > first[after].at_s
    ]


def lost_steps(stamps: list[Stamp]) -> list[str]:
    """Rank 0 saves each step that it makes: a later cycle begins where the one before ended, or one step before."""
    made = sorted((each for each in stamps if each.what == "step" and each.rank == 0), key=lambda stamp: stamp.at_s)
    return [
        f"step {after.number} of cycle {after.cycle} came after step {before.number} of cycle {before.cycle}"
        for before, after in itertools.pairwise(made)
        if after.number < before.number
    ]


@contextmanager
def cluster_job(folder: Path, nodes: int, nnodes: str, *flags: str) -> Generator[ClusterJob]:
    """A job on a lab of its own; all of it has ended at the end."""
    with lab_of(nodes) as lab:
        yield ClusterJob(lab, folder, nnodes, *flags)
