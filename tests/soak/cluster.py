"""Does one job on eight separate nodes survive a fault every 15 s: in ranks, nodes, supervisors, links?

Its operator restarts a node's run after its end, as Slurm would requeue it. Checked: no step is ever lost, two groups
are never alive at once, the job always makes progress again within a bound; at the end all nodes have the same verdict
and nothing is left. Prints the share of the time spent in steps.
"""

from __future__ import annotations

import argparse
import itertools
import signal
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Generator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from random import Random

from tests.cluster import lab
from tests.cluster.job import PORT, ClusterJob
from tests.cluster.lab import lab_of
from tests.cluster.slow_link import SlowLink, slow_link

LEADER = 1
THROUGH_PROXY = (2, 3)  # nodes whose connection to the leader may become slow
FAULT_EVERY_S = 15.0
LASTS_S = (0.5, 10.0)
STALL_S = (0.5, 4.0)
BACK_AFTER_S = (2.0, 8.0)
AGAIN_AFTER_S = 1.0
TRAINING_SHARE = 0.8  # of node faults: the others may hit a spare
PACE_S = 0.05
USEFUL_GAP_S = 0.25  # between two steps of the same stretch of training
STUCK_S = 60.0
HANG_S = 3.0
END_S = 60.0
SETTLED_S = 8.0  # longer than a node that is cut off takes to end, and its leader to notice

Undo = Callable[[], None]


class Chaos:
    def __init__(self, job: ClusterJob, link: SlowLink, dice: Random) -> None:
        self.job = job
        self.link = link
        self.dice = dice
        self.began_s = time.monotonic()
        self.done: Counter[str] = Counter()
        self.starts: Counter[int] = Counter()
        self.wrong: list[str] = []
        self.undos: list[tuple[float, Undo]] = []
        self.again_at_s: dict[int, float] = {}  # ended runs' nodes, and when the run restarts
        self.round: list[str] = []
        self.kinds: dict[str, Callable[[], str]] = {
            "rank killed": lambda: self._strike_rank("kill"),
            "rank hung": lambda: self._strike_rank("stop"),
            "node lost": self._lose_node,
            "supervisor stopped": self._stop_supervisor,
            "link down": self._cut_link,
            "node deaf": lambda: self._lose_direction(deaf=True),
            "node not heard": lambda: self._lose_direction(deaf=False),
            "slow link": lambda: self._proxy("delay 0.05 0.3"),
            "stalled link": lambda: self._proxy(f"stall {self.dice.uniform(*STALL_S):.1f}"),
            "cut link": lambda: self._proxy("cut"),
            "half-open link": lambda: self._proxy("half-open"),
        }

    def say(self, text: str) -> None:
        print(f"{time.monotonic() - self.began_s:8.2f} {text}", flush=True)

    # --- the run -------------------------------------------------------------------------------------------------

    def run(self, seconds: float) -> None:
        self.job.start_leader()
        for number in self.job.lab.nodes:
            if number != LEADER:
                self._start(number)
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
            if number == LEADER:
                self.wrong.append(f"the leader's run ended with {run.poll()}")
                return
            if number not in self.again_at_s:
                last = self.job.output(number).strip().splitlines()
                errors = [line for line in last if line.startswith("holdfast: error")]
                self.say(f"node{number}: its run ended with {run.poll()}: {errors[-1:] or last[-1:]}")
                self.again_at_s[number] = now_s + AGAIN_AFTER_S
            elif now_s >= self.again_at_s[number]:
                self._start(number)

    def _start(self, number: int) -> None:
        self.again_at_s.pop(number, None)
        self.starts[number] += 1
        if number in THROUGH_PROXY:
            self.job.start(number, endpoint=self.link.endpoint)
        else:
            self.job.start(number)

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
        kind = self.round.pop()
        self.done[kind] += 1
        self.say(f"step {self.job.steps_saved():5}: {kind}: {self.kinds[kind]()}")

    def _later(self, undo: Undo, between_s: tuple[float, float] = LASTS_S) -> str:
        lasts_s = self.dice.uniform(*between_s)
        self.undos.append((time.monotonic() + lasts_s, undo))
        return f"for {lasts_s:.1f} s"

    def _victim(self) -> int:
        """Returns a running node that does not lead: the loss of an embedded leader ends the job, as documented."""
        alive = [
            number
            for number, run in self.job.runs.items()
            if number != LEADER and run.poll() is None and self.job.lab.nodes[number].is_alive
        ]
        training = [number for number in alive if f"node{number}" in self.job.nodes_training()]
        return self.dice.choice(training if training and self.dice.random() < TRAINING_SHARE else alive)

    def _strike_rank(self, what: str) -> str:
        rank = self.dice.randrange(self.job.min_nodes)
        self.job.order(rank, what)
        return f"rank {rank}"

    def _lose_node(self) -> str:
        number = self._victim()
        self.job.lab.nodes[number].lose_power()

        def back() -> None:
            self.job.lab.boot_again(number)
            self._start(number)

        return f"node{number}, back after {self._later(back, BACK_AFTER_S)}"

    def _stop_supervisor(self) -> str:
        number = self._victim()
        run = self.job.runs[number]
        run.signal(signal.SIGSTOP)

        def resume() -> None:
            if self.job.runs[number] is run and run.poll() is None:
                run.signal(signal.SIGCONT)

        return f"node{number} {self._later(resume)}"

    def _cut_link(self) -> str:
        number = self._victim()
        node = self.job.lab.nodes[number]
        node.unplug()
        return f"node{number} {self._later(lambda: node.plug_in() if node.is_alive else None)}"

    def _lose_direction(self, *, deaf: bool) -> str:
        number = self._victim()
        node, leader = self.job.lab.nodes[number], self.job.lab.nodes[LEADER]
        sender, receiver = (leader, node) if deaf else (node, leader)
        sender.lose_to(receiver)
        return f"node{number} {self._later(lambda: sender.reach_again(receiver) if sender.is_alive else None)}"

    def _proxy(self, line: str) -> str:
        self.link.say(line)
        if line.startswith("delay"):
            return f"{line} {self._later(lambda: self.link.say('delay 0 0'))}"
        return line


def useful_share(job: ClusterJob) -> float:
    made = sorted(at_s for each in job.lives() if each.rank == 0 for at_s, _ in each.steps)
    gaps_s = [after - before for before, after in itertools.pairwise(made)]
    return sum(gap for gap in gaps_s if gap <= USEFUL_GAP_S) / max(sum(gaps_s), 1e-9)


@contextmanager
def _job(folder: Path, nodes: int) -> Generator[tuple[ClusterJob, SlowLink]]:
    train = max(2, nodes - 3)
    with ExitStack() as stack:
        made = stack.enter_context(lab_of(nodes))
        limits = ("--ft-rank-heartbeat-timeout", f"{HANG_S:g}", "--ft-initial-rank-heartbeat-timeout", "30")
        flags = ("--max-restarts", "100000", *limits, "--ft-max-no-progress-cycles", "0", "--workers-stop-timeout", "2")
        job = ClusterJob(made, folder, f"{train}:{nodes}", *flags, pace_s=PACE_S)
        yield job, stack.enter_context(slow_link(made, made.nodes[LEADER], PORT, seed=0))


def main(given: argparse.Namespace) -> list[str]:
    if why := lab.missing():
        return [f"cannot make {given.nodes} nodes: {why}"]
    seed = given.seed if given.seed is not None else Random().randrange(2**32)
    print(f"seed {seed}")
    with tempfile.TemporaryDirectory(prefix="cluster-soak-") as place, _job(Path(place), given.nodes) as (job, link):
        chaos = Chaos(job, link, Random(seed))
        chaos.run(given.seconds)
        chaos.wrong += job.wrong()
        lives = job.lives()
        print(f"{sum(chaos.done.values())} faults: {dict(sorted(chaos.done.items()))}")
        again, cycles = sum(chaos.starts.values()) - given.nodes + 1, len({each.cycle for each in lives})
        share = f"{100 * useful_share(job):.1f} % of the time went into steps"
        print(f"{job.steps_saved()} steps in {cycles} cycles; {share}; {again} runs were started again")
        if chaos.wrong:
            how = f"--seed {seed} --nodes {given.nodes} --seconds {given.seconds:g}"
            print(f"to repeat: python -m tests.soak cluster {how}")
    return chaos.wrong
