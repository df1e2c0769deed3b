"""How is a job on nodes with networks of their own struck by a fault every 15 s, and what is checked?

Its operator restarts a node's run after its end, as Slurm would requeue it. Checked: no step is ever lost, two groups
are never alive at once, the job always makes progress again within a bound; at the end all nodes have the same verdict
and nothing is left. Prints the share of the time spent in steps.
"""

from __future__ import annotations

import itertools
import signal
import time
from collections import Counter
from collections.abc import Callable
from random import Random

from tests.cluster.job import ClusterJob
from tests.cluster.lab import Node

FAULT_EVERY_S = 15.0
LASTS_S = (0.5, 10.0)
BACK_AFTER_S = (2.0, 8.0)
AGAIN_AFTER_S = 1.0
TRAINING_SHARE = 0.8  # of node faults: the others may hit a spare
PACE_S = 0.05
USEFUL_GAP_S = 0.25  # between two steps of the same stretch of training
STUCK_S = 60.0
HANG_S = 3.0
END_S = 60.0
SETTLED_S = 8.0  # longer than a node that is cut off takes to end, and its leader to notice

LIMITS = ("--ft-rank-heartbeat-timeout", f"{HANG_S:g}", "--ft-initial-rank-heartbeat-timeout", "30")
FLAGS = ("--max-restarts", "100000", *LIMITS, "--ft-max-no-progress-cycles", "0", "--workers-stop-timeout", "2")
Undo = Callable[[], None]


class Chaos:
    """Strikes one job. Subclasses say by what, and which nodes may fall."""

    kinds: dict[str, Callable[[], str]]

    def __init__(self, job: ClusterJob, dice: Random) -> None:
        self.job = job
        self.dice = dice
        self.began_s = time.monotonic()
        self.done: Counter[str] = Counter()
        self.starts: Counter[int] = Counter()
        self.wrong: list[str] = []
        self.undos: list[tuple[float, Undo]] = []
        self.again_at_s: dict[int, float] = {}  # ended runs' nodes, and when the run restarts
        self.round: list[str] = []
        self.struck = ""  # the last kind

    def say(self, text: str) -> None:
        print(f"{time.monotonic() - self.began_s:8.2f} {text}", flush=True)

    # --- the run -------------------------------------------------------------------------------------------------

    def run(self, seconds: float) -> None:
        self.begin()
        self.job.until(lambda: self.job.steps_saved() > 0, "the first step")
        end_s = time.monotonic() + seconds
        fault_at_s = time.monotonic() + FAULT_EVERY_S / 3
        steps, moved_s = 0, time.monotonic()
        while time.monotonic() < end_s and not self.wrong:
            now_s = time.monotonic()
            if now_s >= fault_at_s:
                fault_at_s += FAULT_EVERY_S
                self._strike()
            self._undo(now_s)
            self._operate(now_s)
            if (saved := self.job.steps_saved()) != steps:
                if saved < steps:
                    self.wrong.append(f"the checkpoint went from step {steps} back to {saved}")
                steps, moved_s = saved, now_s
            elif now_s - moved_s > STUCK_S:
                self.wrong.append(f"no step was made for {STUCK_S:g} s")
            time.sleep(0.02)
        self._undo(float("inf"))
        if not self.wrong:
            self._settle()
        if self.wrong:
            for number in self.job.runs:
                self.say(f"node {number}:\n{self.job.output(number)[-3000:]}")
        else:
            self._end()

    def _undo(self, now_s: float) -> None:
        for due in [each for each in self.undos if each[0] <= now_s]:
            self.undos.remove(due)
            due[1]()

    def _operate(self, now_s: float) -> None:
        """Restarts an ended run if its node exists."""
        for number, run in self.job.runs.items():
            if run.poll() is None or not self.job.lab.nodes[number].is_alive:
                continue
            if number not in self.again_at_s:
                last = self.job.output(number).strip().splitlines()
                errors = [line for line in last if line.startswith("holdfast: error")]
                self.say(f"node{number}: its run ended with {run.poll()}: {errors[-1:] or last[-1:]}")
                self.again_at_s[number] = now_s + AGAIN_AFTER_S
                self.note_end(number, run.wait(0))
            elif now_s >= self.again_at_s[number]:
                self.start(number)

    def start(self, number: int) -> None:
        self.again_at_s.pop(number, None)
        self.starts[number] += 1
        self.join(number)

    def _settle(self) -> None:
        """Waits until the last fault is over: ended runs are restarted, and all have been there for long."""
        deadline_s, there_since_s = time.monotonic() + END_S, time.monotonic()
        while time.monotonic() - there_since_s < SETTLED_S and not self.wrong:
            self._operate(time.monotonic())
            if any(run.poll() is not None for run in self.job.runs.values()):
                there_since_s = time.monotonic()
            if time.monotonic() > deadline_s:
                gone = sorted(number for number, run in self.job.runs.items() if run.poll() is not None)
                self.wrong.append(f"the runs of nodes {gone} end again and again, though no fault is left")
            time.sleep(0.02)

    def _end(self) -> None:
        """Ends all runs well, whatever they did before."""
        waiting = set(self.job.runs)
        self.job.let_end()
        deadline_s = time.monotonic() + END_S
        while time.monotonic() < deadline_s and any(self.job.runs[number].poll() is None for number in waiting):
            time.sleep(0.05)
        codes = {number: self.job.runs[number].poll() for number in waiting}
        if any(code != 0 for code in codes.values()):
            self.wrong.append(f"not every node ended well: {codes}")
            for number, code in codes.items():
                if code != 0:
                    self.say(f"node {number}:\n{self.job.output(number)[-3000:]}")
        self.wrong += [f"node {number} has left {left}" for number in waiting if (left := self._left(number))]

    def _left(self, number: int) -> list[str]:
        """Returns the processes of a node except the one that holds it."""
        node = self.job.lab.nodes[number]
        deadline_s = time.monotonic() + END_S
        while (found := node.processes()) and time.monotonic() < deadline_s:
            time.sleep(0.05)
        return found

    # --- faults --------------------------------------------------------------------------------------------------

    def _strike(self) -> None:
        if not self.round:
            self.round = self.dice.sample(sorted(self.kinds), len(self.kinds))
        self.struck = kind = self.round.pop()
        self.done[kind] += 1
        self.say(f"step {self.job.steps_saved():5}: {kind}: {self.kinds[kind]()}")

    def later(self, undo: Undo, between_s: tuple[float, float] = LASTS_S) -> str:
        lasts_s = self.dice.uniform(*between_s)
        self.undos.append((time.monotonic() + lasts_s, undo))
        return f"for {lasts_s:.1f} s"

    def victim(self) -> int:
        alive = [
            number
            for number, run in self.job.runs.items()
            if self.may_fall(number) and run.poll() is None and self.job.lab.nodes[number].is_alive
        ]
        training = [number for number in alive if f"node{number}" in self.job.nodes_training()]
        return self.dice.choice(training if training and self.dice.random() < TRAINING_SHARE else alive)

    def strike_rank(self, what: str) -> str:
        rank = self.dice.randrange(self.job.min_nodes)
        self.job.order(rank, what)
        return f"rank {rank}"

    def lose_node(self, number: int = 0) -> str:
        number = number or self.victim()
        self.job.lab.nodes[number].lose_power()

        def back() -> None:
            self.job.lab.boot_again(number)
            self.start(number)

        return f"node{number}, back after {self.later(back, BACK_AFTER_S)}"

    def stop_supervisor(self, number: int = 0) -> str:
        number = number or self.victim()
        run = self.job.runs[number]
        run.signal(signal.SIGSTOP)

        def resume() -> None:
            if self.job.runs[number] is run and run.poll() is None:
                run.signal(signal.SIGCONT)

        return f"node{number} {self.later(resume)}"

    def cut_link(self, number: int = 0) -> str:
        number = number or self.victim()
        node = self.job.lab.nodes[number]
        node.unplug()
        return f"node{number} {self.later(lambda: node.plug_in() if node.is_alive else None)}"

    def lose_direction(self, node: Node, other: Node) -> str:
        """Loses what the first one says to the other."""
        node.lose_to(other)
        return f"{node.name} to {other.name} {self.later(lambda: node.reach_again(other) if node.is_alive else None)}"

    # --- what a subclass says

    def begin(self) -> None:
        """Starts all runs."""
        raise NotImplementedError

    def join(self, number: int) -> None:
        raise NotImplementedError

    def may_fall(self, number: int) -> bool:
        raise NotImplementedError

    def note_end(self, number: int, code: int) -> None:
        """A run has ended before the job."""


def useful_share(job: ClusterJob) -> float:
    made = sorted(at_s for each in job.lives() if each.rank == 0 for at_s, _ in each.steps)
    gaps_s = [after - before for before, after in itertools.pairwise(made)]
    return sum(gap for gap in gaps_s if gap <= USEFUL_GAP_S) / max(sum(gaps_s), 1e-9)


def conclude(chaos: Chaos, nodes: int, again: str) -> list[str]:
    """Says how it went. `again`: the arguments that repeat it."""
    chaos.wrong += chaos.job.wrong()
    lives = chaos.job.lives()
    print(f"{sum(chaos.done.values())} faults: {dict(sorted(chaos.done.items()))}")
    runs, cycles = sum(chaos.starts.values()) - nodes, len({each.cycle for each in lives})
    share = f"{100 * useful_share(chaos.job):.1f} % of the time went into steps"
    print(f"{chaos.job.steps_saved()} steps in {cycles} cycles; {share}; {runs} runs were started again")
    if chaos.wrong:
        print(f"to repeat: python -m tests.soak {again}")
    return chaos.wrong
