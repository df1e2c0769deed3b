"""Does one job on eight separate nodes survive a fault every 15 s: in ranks, nodes, supervisors, links?

cluster_chaos.py says what is checked.
"""

from __future__ import annotations

import argparse
import tempfile
from collections.abc import Generator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from random import Random

from tests.cluster import lab
from tests.cluster.job import PORT, ClusterJob
from tests.cluster.lab import lab_of
from tests.cluster.slow_link import SlowLink, slow_link
from tests.soak.cluster_chaos import FLAGS, PACE_S, Chaos, conclude

LEADER = 1
THROUGH_PROXY = (2, 3)  # nodes whose connection to the leader may become slow
STALL_S = (0.5, 4.0)


class EmbeddedChaos(Chaos):
    """The first node leads. Its loss ends the job, as documented, so it never falls."""

    def __init__(self, job: ClusterJob, link: SlowLink, dice: Random) -> None:
        super().__init__(job, dice)
        self.link = link
        leader = self.job.lab.nodes[LEADER]
        self.kinds = {
            "rank killed": lambda: self.strike_rank("kill"),
            "rank hung": lambda: self.strike_rank("stop"),
            "node lost": self.lose_node,
            "supervisor stopped": self.stop_supervisor,
            "link down": self.cut_link,
            "node deaf": lambda: self.lose_direction(leader, self.job.lab.nodes[self.victim()]),
            "node not heard": lambda: self.lose_direction(self.job.lab.nodes[self.victim()], leader),
            "slow link": lambda: self._proxy("delay 0.05 0.3"),
            "stalled link": lambda: self._proxy(f"stall {self.dice.uniform(*STALL_S):.1f}"),
            "cut link": lambda: self._proxy("cut"),
            "half-open link": lambda: self._proxy("half-open"),
        }

    def begin(self) -> None:
        self.job.start_leader()
        self.starts[LEADER] += 1
        for number in self.job.lab.nodes:
            if number != LEADER:
                self.start(number)

    def join(self, number: int) -> None:
        if number in THROUGH_PROXY:
            self.job.start(number, endpoint=self.link.endpoint)
        else:
            self.job.start(number)

    def may_fall(self, number: int) -> bool:
        return number != LEADER

    def note_end(self, number: int, code: int) -> None:
        if number == LEADER:
            self.wrong.append(f"the leader's run ended with {code}")

    def _proxy(self, line: str) -> str:
        self.link.say(line)
        if line.startswith("delay"):
            return f"{line} {self.later(lambda: self.link.say('delay 0 0'))}"
        return line


@contextmanager
def _job(folder: Path, nodes: int) -> Generator[tuple[ClusterJob, SlowLink]]:
    train = max(2, nodes - 3)
    with ExitStack() as stack:
        made = stack.enter_context(lab_of(nodes))
        job = ClusterJob(made, folder, f"{train}:{nodes}", *FLAGS, pace_s=PACE_S)
        yield job, stack.enter_context(slow_link(made, made.nodes[LEADER], PORT, seed=0))


def main(given: argparse.Namespace) -> list[str]:
    if why := lab.missing():
        return [f"cannot make {given.nodes} nodes: {why}"]
    seed = given.seed if given.seed is not None else Random().randrange(2**32)
    print(f"seed {seed}")
    with tempfile.TemporaryDirectory(prefix="cluster-soak-") as place, _job(Path(place), given.nodes) as (job, link):
        chaos = EmbeddedChaos(job, link, Random(seed))
        chaos.run(given.seconds)
        return conclude(chaos, given.nodes, f"cluster --seed {seed} --nodes {given.nodes} --seconds {given.seconds:g}")
