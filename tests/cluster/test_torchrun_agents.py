"""torchrun's agents on nodes with their own networks: do their ranks restart in place and start again, and what does a
cut do to a group that met by our rendezvous?
"""

from __future__ import annotations

import json
import os
import sys
import time
from pathlib import Path

import pytest

from tests.cluster.job import PORT, own_id
from tests.cluster.lab import Lab, Node, Started, lab_of
from tests.e2e.launch import SCRIPTS, wait_until
from tests.programs.torchrun.installed import entry_point

pytestmark = pytest.mark.usefixtures("namespaces")

LIMIT_S = 90.0
NODES = 2
CUT_S = 7.0  # longer than the leader waits for a silent node
TOLD_S = 1.0  # from a spare's connection until all members certainly know of it
TICKING = """
import os, time
path = f"{os.environ['ORDERS']}/{os.environ['MASTER_PORT']}-{os.uname().nodename}"
while not os.path.exists(f"{os.environ['ORDERS']}/end"):
    with open(path, "a") as ticks:
        ticks.write(f"{time.monotonic()}\\n")
    time.sleep(0.02)
"""


class Agents:
    """One rank on each node."""

    def __init__(self, lab: Lab, folder: Path, script: Path, *, backend: str = "c10d") -> None:
        self.lab, self.folder, self.trace, self.orders = lab, folder, folder / "trace.jsonl", folder / "orders"
        self.orders.mkdir()
        self._script, self._backend = script, backend
        self._run_id = own_id()
        self._python_path = f"{entry_point(folder)}:{Path(__file__).parents[2]}"
        self._token = folder / "token"
        self._token.write_text(self._run_id)
        self._token.chmod(0o600)

    def start(self, number: int) -> Started:
        home = self.folder / f"node{number}"
        home.mkdir(mode=0o700)
        environment = {name: os.environ[name] for name in ("HOME", "PATH", "LANG") if name in os.environ}
        environment |= dict.fromkeys(("HOLDFAST_STATE_DIR", "XDG_RUNTIME_DIR", "TMPDIR"), str(home))
        environment |= {"TRACE": str(self.trace), "ORDERS": str(self.orders), "PYTHONPATH": self._python_path}
        address = self.lab.nodes[number].address
        meeting = ("--rdzv-backend", self._backend, "--rdzv-id", self._run_id, "--rdzv-endpoint", f"10.77.0.1:{PORT}")
        flags = ("--nnodes", str(NODES), "--nproc-per-node", "1", "--local-addr", address, "--max-restarts", "1")
        token = f",token_file={self._token}" if self._backend == "holdfast" else ""
        host = ("--rdzv-conf", f"is_host={number == 1}{token}", "--monitor-interval", "0.05")
        command = (
            sys.executable,
            "-m",
            "torch.distributed.run",
            *meeting,
            *flags,
            *host,
            str(self._script),
        )
        with (home / "output").open("wb") as output:
            return self.lab.nodes[number].start(*command, environment=environment, output=output)

    def order(self, what: str, rank: int) -> None:
        (self.orders / f"{what}-{rank}").touch()

    def until_entered(self, iteration: int, *, after: int = 0) -> dict[int, int]:
        """Waits for all ranks, once that many lines had been noted before."""

        def found() -> dict[int, int]:
            lines = [json.loads(line) for line in self.trace.read_text().splitlines()] if self.trace.exists() else []
            calls = [line for line in lines[after:] if line["what"] == "fn" and line["iteration"] == iteration]
            assert {line["world_size"] for line in calls} <= {str(NODES)}
            return {line["rank"]: line["pid"] for line in calls}

        try:
            wait_until(lambda: len(found()) == NODES, timeout_s=LIMIT_S, what=f"iteration {iteration}")
        except AssertionError as error:
            told = "\n".join(path.read_text(errors="replace")[-6000:] for path in self.folder.glob("node*/output"))
            raise AssertionError(f"{error}\n{told}") from None
        return found()

    def noted(self) -> int:
        return len(self.trace.read_text().splitlines())


@pytest.mark.soak
def test_an_exception_restarts_the_ranks_of_all_agents_and_so_does_the_next_start_after_a_death(tmp_path: Path):
    """An agent counts only its own ranks' failures: after the death, no variable is equal on both nodes."""
    with lab_of(NODES) as lab:
        job = Agents(lab, tmp_path, SCRIPTS / "wrapped_alone.py")
        runs = [job.start(number) for number in lab.nodes]
        first = job.until_entered(0)
        job.order("fail", 1)
        assert job.until_entered(1) == first
        before = job.noted()
        job.order("die", 1)
        second = job.until_entered(0, after=before)
        assert set(second.values()).isdisjoint(first.values())
        before = job.noted()
        job.order("fail", 0)
        assert job.until_entered(1, after=before) == second
        (job.orders / "end").touch()
        assert [run.wait(LIMIT_S) for run in runs] == [0, 0]


class TickingAgents(Agents):
    """Agents whose ranks note the time, until they are stopped, and of which group they are."""

    def __init__(self, lab: Lab, folder: Path) -> None:
        script = folder / "ticking.py"
        script.write_text(TICKING)
        super().__init__(lab, folder, script, backend="holdfast")

    def groups(self) -> list[dict[int, list[float]]]:
        """Returns each group's ticks by node, the first group first."""
        found: dict[str, dict[int, list[float]]] = {}
        for path in self.orders.glob("*-node*"):
            port, _, number = path.name.partition("-node")
            ticks = [float(line) for line in path.read_text().splitlines()[:-1]]  # the last may be half a line
            if ticks:
                found.setdefault(port, {})[int(number)] = ticks
        return sorted(found.values(), key=lambda group: min(map(min, group.values())))

    def until_group(self, count: int, *numbers: int) -> None:
        """Waits for that many groups, of which the last is on these nodes."""

        def is_there() -> bool:
            groups = self.groups()
            return len(groups) == count and groups[-1].keys() == set(numbers)

        try:
            wait_until(is_there, timeout_s=LIMIT_S, what=f"group {count} on nodes {numbers}")
        except AssertionError as error:
            said = "\n".join(path.read_text(errors="replace")[-3000:] for path in self.folder.glob("node*/output"))
            raise AssertionError(f"{error}: {[list(group) for group in self.groups()]}\n{said}") from None


@pytest.mark.soak
def test_a_cut_off_member_has_stopped_before_a_spare_takes_its_place(tmp_path: Path):
    with lab_of(NODES + 1) as lab:
        job = TickingAgents(lab, tmp_path)
        for number in (1, 2):
            job.start(number)
        job.until_group(1, 1, 2)
        job.start(3)
        wait_until(lambda: is_connected(lab.nodes[3]), timeout_s=LIMIT_S, what="a spare")
        time.sleep(TOLD_S)
        lab.nodes[2].unplug()
        job.until_group(2, 1, 3)
        time.sleep(TOLD_S)
        first, second = job.groups()
        assert max(first[2]) < min(map(min, second.values()))


@pytest.mark.soak
def test_a_cut_off_member_trains_on_where_no_spare_can_take_its_place(tmp_path: Path):
    with lab_of(NODES) as lab:
        job = TickingAgents(lab, tmp_path)
        for number in lab.nodes:
            job.start(number)
        job.until_group(1, 1, 2)
        lab.nodes[2].unplug()
        cut_s = time.monotonic()
        time.sleep(CUT_S)
        (group,) = job.groups()
        assert max(group[1]) < cut_s + CUT_S - 0.5, "its leader has told it that the other is lost"
        assert max(group[2]) > cut_s + CUT_S - 0.5
        lab.nodes[2].plug_in()
        job.until_group(2, 1, 2)


def is_connected(node: Node) -> bool:
    """Returns whether a process of the node is connected to the leader."""
    lines = Path(f"/proc/{node.init_pid}/net/tcp").read_text().splitlines()[1:]
    return any(line.split()[2].endswith(f":{PORT:04X}") and line.split()[3] == "01" for line in lines)
