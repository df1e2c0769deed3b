"""One job on the nodes of a lab: its commands, its ranks' steps, and a check that two groups never ran."""

from __future__ import annotations

import itertools
import json
import os
import secrets
import sys
from collections.abc import Generator, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from supervisor.edges.machine.journal.journal_reader import open_reader
from tests.cluster.lab import Lab, Node, Started, lab_of
from tests.e2e.launch import wait_until

HOLDFAST = Path(sys.executable).with_name("holdfast")
SCRIPT = Path(__file__).parent / "scripts" / "stepping.py"
PORT = 29400
LIMIT_S = 60.0
PACE_S = 0.02


def own_id() -> str:
    """Returns the id of a job that has its own: `holdfast status` finds all jobs of this machine by their id."""
    return f"cluster-{secrets.token_hex(4)}"


@dataclass(frozen=True)
class Life:
    """The stamps of one process of the job."""

    cycle: int
    rank: int
    node: str
    began_s: float
    ended_s: float
    steps: tuple[tuple[float, int], ...]  # times and numbers


class ClusterJob:
    """`holdfast run` on each started node, with its own folders, as on real nodes."""

    def __init__(
        self,
        lab: Lab,
        folder: Path,
        nnodes: str,
        *flags: str,
        ranks: int = 1,
        pace_s: float = PACE_S,
        script: Path = SCRIPT,
    ) -> None:
        self.lab = lab
        self.folder = folder
        self.job_id = own_id()
        self.flags = ("--nnodes", nnodes, "--nproc-per-node", str(ranks), "--max-restarts", "3", *flags)
        self.min_nodes = int(nnodes.split(":")[0])
        self.pace_s = pace_s
        self.script = script
        self.conf = ""  # additions to --rdzv-conf
        self.runs: dict[int, Started] = {}
        self.token = folder / "token"
        self.token.touch(mode=0o600)
        self.token.write_text(secrets.token_hex(32))
        (folder / "stamps").mkdir()

    def start(self, number: int, *flags: str, endpoint: str = f"10.77.0.1:{PORT}") -> Started:
        home = self.folder / f"node{number}"
        for place in (home, home / "claims", home / "state", home / "run", home / "tmp"):
            place.mkdir(exist_ok=True, mode=0o700)
        conf = f"token_file={self.token}{self.conf}"
        meeting = ("--rdzv-id", self.job_id, "--rdzv-endpoint", endpoint, "--rdzv-conf", conf)
        command = (
            str(HOLDFAST),
            "run",
            *self.flags,
            *meeting,
            *flags,
            str(self.script),
            str(self.folder),
            str(self.pace_s),
        )
        with (home / "output").open("ab") as output:
            run = self.lab.nodes[number].start(*command, environment=self.environment(number), output=output)
        self.runs[number] = run
        return run

    def environment(self, number: int) -> dict[str, str]:
        home = self.folder / f"node{number}"
        return {name: os.environ[name] for name in ("HOME", "PATH", "LANG") if name in os.environ} | {
            "HOLDFAST_CLAIM_DIR": str(home / "claims"),
            "HOLDFAST_STATE_DIR": str(home / "state"),
            "XDG_RUNTIME_DIR": str(home / "run"),
            "TMPDIR": str(home / "tmp"),
            "PYTHONPATH": str(Path(__file__).parents[2]),
        }

    def socket_dir(self, number: int) -> str:
        """Returns where commands on that node ask its newest run; "": nowhere yet."""
        known = (self.folder / f"node{number}" / "run" / "holdfast-private").glob("*.json")
        newest = max(known, key=lambda path: path.stat().st_mtime_ns, default=None)
        folder = json.loads(newest.read_text())["dir"] if newest is not None else ""
        return folder if folder and (Path(folder) / "control.sock").exists() else ""

    def start_leader(self) -> Started:
        """Starts the leader; returns once the others can join."""
        run = self.start(1)
        self.until(lambda: self.listens(self.lab.nodes[1]), "a leader")
        return run

    def listens(self, node: Node) -> bool:
        table = Path(f"/proc/{node.init_pid}/net/tcp").read_text()
        return any(
            line.split()[1].endswith(f":{PORT:04X}") and line.split()[3] == "0A" for line in table.splitlines()[1:]
        )

    def order(self, rank: int, what: str) -> None:
        """Orders the rank to kill or stop itself at its next step."""
        beside = self.folder / "order.new"
        beside.write_text(what)
        beside.replace(self.folder / f"order-{rank}")

    def let_end(self) -> None:
        (self.folder / "end").touch()

    def codes(self, *numbers: int) -> dict[int, int]:
        """Returns the runs' exit codes once all have ended."""
        self.until(lambda: all(self.runs[number].poll() is not None for number in numbers), "the end of the job")
        return {number: self.runs[number].wait(LIMIT_S) for number in numbers}

    def output(self, number: int) -> str:
        return (self.folder / f"node{number}" / "output").read_text(errors="replace")

    def until(self, condition: object, what: str, limit_s: float = LIMIT_S) -> None:
        """Waits; if the job hangs, the error explains it."""
        try:
            wait_until(condition, timeout_s=limit_s, what=what)
        except AssertionError as error:
            told = "\n".join(f"node {number}:\n{self.output(number)}" for number in self.runs)
            raise AssertionError(f"{error}\n{told}") from None

    def until_steps(self, cycle: int, *, nodes: set[int], steps: int = 3) -> None:
        """Waits until every rank of that cycle has made that many steps, and its ranks are on these nodes."""
        wanted = {f"node{number}" for number in nodes}

        def made() -> bool:
            lives = self.lives(cycle)
            return {each.node for each in lives} == wanted and all(len(each.steps) >= steps for each in lives)

        self.until(made, f"cycle {cycle} on {sorted(wanted)}")

    def steps_saved(self) -> int:
        path = self.folder / "checkpoint"
        return int(path.read_text()) if path.exists() else 0

    def lives(self, cycle: int | None = None) -> list[Life]:
        return [
            life
            for path in (self.folder / "stamps").iterdir()
            if cycle is None or path.name.startswith(f"{cycle}-")
            if (life := _read_life(path)) is not None
        ]

    def nodes_training(self) -> set[str]:
        """Returns the nodes of the newest cycle."""
        named = [path.name.split("-")[:3] for path in (self.folder / "stamps").iterdir()]
        newest = max((int(cycle) for cycle, _, _ in named), default=0)
        return {node for cycle, _, node in named if int(cycle) == newest}

    def has_stopped(self, number: int, cycle: int) -> bool:
        """Returns whether nothing of that cycle is left on that node, by its journal."""
        return self.has_told(number, "workers_stopped", cycle)

    def has_told(self, number: int, kind: str, cycle: int) -> bool:
        """Returns whether that node has an event of this kind and cycle, by its journal."""
        with open_reader(self.folder / f"node{number}" / "state") as journal:
            events = journal.events(self.job_id, limit=1_000)
        return any((each.kind, each.cycle, each.node) == (kind, cycle, f"node{number}") for each in events)

    def cycles(self) -> set[int]:
        return {each.cycle for each in self.lives()}

    def wrong(self) -> list[str]:
        """Returns errors: two groups alive at once, and lost steps that a checkpoint had."""
        lives = self.lives()
        return overlaps(lives) + lost_steps(lives)


def _read_life(path: Path) -> Life | None:
    """Returns None for a process that has not stamped anything yet."""
    cycle, rank, node, _ = path.name.split("-")
    lines = [line.split() for line in path.read_text().splitlines()]
    if lines and len(lines[-1]) < 3:
        lines.pop()  # it was killed while writing it
    if not lines:
        return None
    steps = tuple((int(at_ns) / 1e9, int(number)) for what, at_ns, number in lines if what == "step")
    return Life(int(cycle), int(rank), node, int(lines[0][1]) / 1e9, int(lines[-1][1]) / 1e9, steps)


def overlaps(lives: list[Life]) -> list[str]:
    """No process of a cycle may live once a process of a later cycle does."""
    first = {cycle: min(of, key=lambda life: life.began_s) for cycle, of in _by_cycle(lives)}
    last = {cycle: max(of, key=lambda life: life.ended_s) for cycle, of in _by_cycle(lives)}
    return [
        f"{last[before].node} still ran rank {last[before].rank} of cycle {before} "
        f"{last[before].ended_s - first[after].began_s:.3f} s after {first[after].node} began cycle {after}"
        for before in last
        for after in first
        if before < after and last[before].ended_s > first[after].began_s
    ]


def _by_cycle(lives: list[Life]) -> Iterator[tuple[int, list[Life]]]:
    for cycle, of in itertools.groupby(sorted(lives, key=lambda life: life.cycle), key=lambda life: life.cycle):
        yield cycle, list(of)


def lost_steps(lives: list[Life]) -> list[str]:
    """Rank 0 saves each step that it makes: a later cycle begins where the previous one ended, or one step before."""
    made = sorted((at_s, number, each.cycle) for each in lives if each.rank == 0 for at_s, number in each.steps)
    return [
        f"step {after[1]} of cycle {after[2]} came after step {before[1]} of cycle {before[2]}"
        for before, after in itertools.pairwise(made)
        if after[1] < before[1]
    ]


@contextmanager
def cluster_job(folder: Path, nodes: int, nnodes: str, *flags: str, script: Path = SCRIPT) -> Generator[ClusterJob]:
    """A job on its own lab; all of it has ended at the end."""
    with lab_of(nodes) as lab:
        yield ClusterJob(lab, folder, nnodes, *flags, script=script)
