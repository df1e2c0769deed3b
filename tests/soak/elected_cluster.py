"""Does one job on eight nodes that elect their leader survive a fault every 15 s, in etcd's three members too?

cluster_chaos.py says what is checked. Any node may fall, the leader too. A node that is stopped as a whole is back
before another could take its place: later, its old ranks run for a moment as it wakes, which no launcher can prevent.
"""

from __future__ import annotations

import argparse
import shutil
import signal
import subprocess
import tempfile
from pathlib import Path
from random import Random

from tests.cluster import lab
from tests.cluster.etcd_nodes import EtcdNodes, elected_job, start
from tests.cluster.job import ClusterJob
from tests.soak.cluster_chaos import FLAGS, PACE_S, Chaos, conclude

MEMBERS = 3
PAUSE_S = (0.5, 2.4)
QUORUM_S = (1.0, 10.0)


class ElectedChaos(Chaos):
    def __init__(self, job: ClusterJob, etcd: EtcdNodes, dice: Random) -> None:
        super().__init__(job, dice)
        self.etcd = etcd
        self.kinds = {
            "rank killed": lambda: self.strike_rank("kill"),
            "rank hung": lambda: self.strike_rank("stop"),
            "node lost": self.lose_node,
            "leader lost": lambda: self.lose_node(self._leader()),
            "node paused": self._pause_node,
            "supervisor stopped": self.stop_supervisor,
            "leader stopped": lambda: self.stop_supervisor(self._leader()),
            "link down": self.cut_link,
            "leader's link down": lambda: self.cut_link(self._leader()),
            "one way lost": self._lose_one_way,
            "member killed": lambda: self._kill_members(1),
            "quorum lost": lambda: self._kill_members(2),
            "etcd wiped": self._wipe,
            "leases revoked": self._revoke,
        }

    def begin(self) -> None:
        for number in self.job.lab.nodes:
            if number not in self.etcd.numbers:
                self.start(number)

    def join(self, number: int) -> None:
        start(self.job, self.etcd, number)

    def may_fall(self, number: int) -> bool:
        return True

    def _leader(self) -> int:
        """Returns the leader's number, or any other's while there is none."""
        name = str(self.etcd.kept("leader").get("node", ""))
        number = int(name.removeprefix("node")) if name else 0
        return number if number and self.job.lab.nodes[number].is_alive else self.victim()

    def _lose_one_way(self) -> str:
        number = self.victim()
        other = self.dice.choice([each for each in self.job.runs if each != number])
        return self.lose_direction(self.job.lab.nodes[number], self.job.lab.nodes[other])

    def _pause_node(self) -> str:
        """Stops all processes of a node, as a hypervisor does."""
        number = self.victim()
        node = self.job.lab.nodes[number]

        run = self.job.runs[number]

        def signal_all(what: str) -> None:
            subprocess.run(node.command("kill", f"-{what}", "--", "-1"), check=False)

        def go_on() -> None:
            if node.is_alive:
                signal_all("CONT")
                if run.poll() is None:
                    run.signal(signal.SIGCONT)  # what started it has stopped with it

        signal_all("STOP")
        return f"{node.name} {self.later(go_on, PAUSE_S)}"

    def _kill_members(self, count: int) -> str:
        killed = self.dice.sample(sorted(self.etcd.running), min(count, len(self.etcd.running)))
        for number in killed:
            self.etcd.kill(number)

        def back() -> None:
            for number in killed:
                if number not in self.etcd.running:
                    self.etcd.start(number)

        return f"{killed} {self.later(back, QUORUM_S)}"

    def _wipe(self) -> str:
        """All members lose their data, and begin again as a new etcd."""
        for number in sorted(self.etcd.running):
            self.etcd.kill(number)
        for number in self.etcd.numbers:
            shutil.rmtree(self.etcd.data(number), ignore_errors=True)
        for number in self.etcd.numbers:
            self.etcd.start(number)
        return "all members"

    def _revoke(self) -> str:
        self.etcd.revoke_all()
        return "all leases"


def main(given: argparse.Namespace) -> list[str]:
    if why := lab.missing():
        return [f"cannot make {given.nodes} nodes: {why}"]
    if missing := [each for each in ("etcd", "etcdctl") if not shutil.which(each)]:
        return [f"cannot elect leaders: {' and '.join(missing)} missing; apt-get install etcd-server etcd-client"]
    seed = given.seed if given.seed is not None else Random().randrange(2**32)
    print(f"seed {seed}")
    nnodes = f"{max(2, given.nodes - 3)}:{given.nodes}"
    with (
        tempfile.TemporaryDirectory(prefix="elected-soak-") as place,
        elected_job(Path(place), nnodes, *FLAGS, nodes=given.nodes, members=MEMBERS, pace_s=PACE_S) as (job, etcd),
    ):
        chaos = ElectedChaos(job, etcd, Random(seed))
        chaos.run(given.seconds)
        again = f"elected-cluster --seed {seed} --nodes {given.nodes} --seconds {given.seconds:g}"
        return conclude(chaos, given.nodes, again)
