"""Ranks of torchrun's agents on nodes with their own networks: do they restart in place, and start again?"""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path

import pytest

from tests.cluster.job import PORT, own_id
from tests.cluster.lab import Lab, Started, lab_of
from tests.e2e.launch import SCRIPTS, wait_until

pytestmark = pytest.mark.usefixtures("namespaces")

LIMIT_S = 90.0
NODES = 2


class Agents:
    """One rank on each node, running `wrapped_alone.py`."""

    def __init__(self, lab: Lab, folder: Path) -> None:
        self.lab, self.folder, self.trace, self.orders = lab, folder, folder / "trace.jsonl", folder / "orders"
        self.orders.mkdir()
        self._run_id = own_id()

    def start(self, number: int) -> Started:
        home = self.folder / f"node{number}"
        home.mkdir(mode=0o700)
        environment = {name: os.environ[name] for name in ("HOME", "PATH", "LANG") if name in os.environ}
        environment |= dict.fromkeys(("HOLDFAST_STATE_DIR", "XDG_RUNTIME_DIR", "TMPDIR"), str(home)) | {
            "TRACE": str(self.trace), "ORDERS": str(self.orders), "PYTHONPATH": str(Path(__file__).parents[2]),
        }  # fmt: skip
        address = self.lab.nodes[number].address
        meeting = ("--rdzv-backend", "c10d", "--rdzv-id", self._run_id, "--rdzv-endpoint", f"10.77.0.1:{PORT}")
        flags = ("--nnodes", str(NODES), "--nproc-per-node", "1", "--local-addr", address, "--max-restarts", "1")
        host = ("--rdzv-conf", f"is_host={number == 1}", "--monitor-interval", "0.05")
        command = (
            sys.executable,
            "-m",
            "torch.distributed.run",
            *meeting,
            *flags,
            *host,
            str(SCRIPTS / "wrapped_alone.py"),
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
        job = Agents(lab, tmp_path)
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
