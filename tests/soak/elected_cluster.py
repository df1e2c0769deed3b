"""Does one job on eight nodes that elect their leader survive a fault every 15 s, in etcd's three members too?

cluster_chaos.py says what is checked. Any node may fall, the leader too. Nodes are drained by command, or leave at
SIGTERM. A node that is stopped as a whole is back before another could take its place: later, its old ranks run for a
moment as it wakes, which no launcher can prevent. The budget is checked before each fault: UNITS.
"""

from __future__ import annotations

import argparse
import os
import re
import shutil
import signal
import subprocess
import tempfile
from pathlib import Path
from random import Random

from tests.cluster import lab
from tests.cluster.etcd_nodes import EtcdNodes, elected_job, start
from tests.cluster.job import HOLDFAST, ClusterJob
from tests.cluster.lab import Started
from tests.soak.cluster_chaos import FLAGS, PACE_S, Chaos, conclude

MEMBERS = 3
PAUSE_S = (0.5, 2.4)
QUORUM_S = (1.0, 10.0)
# What a fault may take of the budget. The nodes that it hits may be spares, and only then is nothing taken.
ONE, AT_MOST_ONE, NONE = (1, 1), (0, 1), (0, 0)
UNITS = {
    "rank killed": ONE, "rank hung": ONE, "member killed": NONE, "quorum lost": NONE, "etcd wiped": NONE,
    "leases revoked": NONE, "drained": NONE, "left": NONE,
}  # fmt: skip
USED = re.compile(r"restarts (?:used )?(\d+) of \d+")
OWN_SHARE = 0.5
LEAVE = ("--on-sigterm", "leave")
TOLD_BYTES = 64_000  # of a node's output, from its end


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
            "drained": self._drain,
            "left": self._leave,
        }
        self.used = 0
        self.miscounted: list[str] = []
        self.drains: list[tuple[int, Started]] = []
        self.leaving: dict[int, str] = {}  # nodes that were asked to leave, and how

    def begin(self) -> None:
        for number in self.job.lab.nodes:
            if number not in self.etcd.numbers:
                self.start(number)

    def join(self, number: int) -> None:
        start(self.job, self.etcd, number)

    def _strike(self) -> None:
        self.count_units()
        super()._strike()

    def count_units(self) -> None:
        """Compares what the last fault has taken of the budget, and how those ended that were asked to leave."""
        used = max((int(found) for number in self.job.runs for found in USED.findall(self._told(number))), default=0)
        taken, (least, most) = used - self.used, UNITS.get(self.struck, AT_MOST_ONE)
        if self.struck and not least <= taken <= most:
            self.miscounted.append(f"{self.struck} used {taken} restarts, at step {self.job.steps_saved()}")
            self.say(self.miscounted[-1])
        self.used = max(used, self.used)
        for number, drain in self.drains:
            if (code := drain.poll()) != 0:
                self.miscounted.append(f"the drain of node{number} ended with {code}")
                self.say(self.miscounted[-1])
        self.drains = []
        for number, how in self.leaving.items():
            self.miscounted.append(f"node{number} was {how}, and its run goes on")
            self.say(self.miscounted[-1])
        self.leaving = {}

    def _told(self, number: int) -> str:
        with (self.job.folder / f"node{number}" / "output").open("rb") as output:
            output.seek(max(0, output.seek(0, os.SEEK_END) - TOLD_BYTES))
            return output.read().decode(errors="replace")

    def note_end(self, number: int, code: int) -> None:
        if (how := self.leaving.pop(number, "")) and code != 0:
            self.miscounted.append(f"node{number} was {how}, and its run ended with {code}")

    def _drain(self) -> str:
        """Types the command on the node itself, or on another one."""
        number = self.victim()
        on = self.dice.choice([each for each in self.job.runs if self.job.socket_dir(each) and self._is_there(each)])
        on = number if self.job.socket_dir(number) and self.dice.random() < OWN_SHARE else on
        command = [str(HOLDFAST), "drain", "--socket-dir", self.job.socket_dir(on), "--node", f"node{number}"]
        with (self.job.folder / f"drain{self.done['drained']}").open("wb") as said:
            node = self.job.lab.nodes[on]
            self.drains.append((number, node.start(*command, environment=self.job.environment(on), output=said)))
        self.leaving[number] = "drained"
        return f"node{number}, from node{on}"

    def _is_there(self, number: int) -> bool:
        return self.job.lab.nodes[number].is_alive and self.job.runs[number].poll() is None

    def _leave(self) -> str:
        number = self.victim()
        self.leaving[number] = "left"
        self.job.runs[number].signal(signal.SIGTERM)
        return f"node{number}"

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
        elected_job(Path(place), nnodes, *FLAGS, *LEAVE, nodes=given.nodes, members=MEMBERS, pace_s=PACE_S) as (
            job,
            etcd,
        ),
    ):
        chaos = ElectedChaos(job, etcd, Random(seed))
        chaos.run(given.seconds)
        chaos.count_units()
        chaos.wrong += chaos.miscounted
        again = f"elected-cluster --seed {seed} --nodes {given.nodes} --seconds {given.seconds:g}"
        return conclude(chaos, given.nodes, again)
