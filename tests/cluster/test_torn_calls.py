"""A wrapped call on nodes with their own networks: do the ranks find the iteration's store wherever it is served?"""

from __future__ import annotations

import json
import os
import secrets
import sys
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.cluster.job import PORT, own_id
from tests.cluster.lab import Lab, Started, lab_of
from tests.e2e.launch import COOKIE, SCRIPTS, wait_until

pytestmark = pytest.mark.usefixtures("namespaces")

LIMIT_S = 60.0
ACTIVE = 3  # of four ranks: the last one is a reserve, on the node that does not lead


class Calls:
    """`wrapped_on_nodes.py` on each node of a lab."""

    def __init__(self, lab: Lab, folder: Path) -> None:
        self.lab, self.folder, self.trace = lab, folder, folder / "trace.jsonl"
        (folder / "orders").mkdir()
        self._job_id = own_id()
        self._token = folder / "token"
        self._token.touch(mode=0o600)
        self._token.write_text(secrets.token_hex(32))

    def start(self, number: int) -> Started:
        home = self.folder / f"node{number}"
        home.mkdir(mode=0o700)
        places = ("HOLDFAST_CLAIM_DIR", "HOLDFAST_STATE_DIR", "XDG_RUNTIME_DIR", "TMPDIR")
        environment = {name: os.environ[name] for name in ("HOME", "PATH", "LANG") if name in os.environ}
        environment |= dict.fromkeys(places, str(home)) | {
            "TRACE": str(self.trace), "ORDERS": str(self.folder / "orders"), "NODE": str(number), COOKIE: "lab",
            "GLOO_SOCKET_IFNAME": "eth0", "PYTHONPATH": str(Path(__file__).parents[2]),
        }  # fmt: skip
        meeting = ("--rdzv-id", self._job_id, "--rdzv-endpoint", f"10.77.0.1:{PORT}")
        size = ("--nnodes", "2", "--nproc-per-node", "2")
        flags = (*meeting, *size, "--rdzv-conf", f"token_file={self._token}", "--max-restarts", "0")
        command = (sys.executable, "-m", "supervisor", "run", *flags, str(SCRIPTS / "wrapped_on_nodes.py"), str(ACTIVE))
        with (home / "output").open("wb") as output:
            return self.lab.nodes[number].start(*command, environment=environment, output=output)

    def order(self, what: str, rank: int) -> None:
        (self.folder / "orders" / f"{what}-{rank}").touch()

    def up(self, iteration: int) -> dict[object, tuple[object, object]]:
        """Returns the ranks with a group, by initial rank: their rank, the size, and the store's address."""
        lines = [json.loads(line) for line in self.trace.read_text().splitlines()] if self.trace.exists() else []
        met = {line["rank"] for line in lines if line["what"] == "up" and line["iteration"] == iteration}
        return {
            line["rank"]: (f"{line['as_rank']} of {line['world_size']}", line["store"].partition(":")[0])
            for line in lines
            if line["what"] == "fn" and line["iteration"] == iteration and line["rank"] in met
        }

    def until_up(self, iteration: int, count: int) -> dict[object, tuple[object, object]]:
        try:
            wait_until(lambda: len(self.up(iteration)) == count, timeout_s=LIMIT_S, what=f"iteration {iteration}")
        except AssertionError as error:
            told = "\n".join(path.read_text(errors="replace") for path in self.folder.glob("node*/output"))
            raise AssertionError(f"{error}\n{told}\n{self.trace.read_text() if self.trace.exists() else ''}") from None
        return self.up(iteration)


@contextmanager
def calls(folder: Path) -> Generator[Calls]:
    with lab_of(2) as lab:
        yield Calls(lab, folder)


def test_a_reserve_of_another_node_steps_in_and_the_store_moves_with_active_rank_0(tmp_path: Path):
    with calls(tmp_path) as job:
        runs = [job.start(1), job.start(2)]
        first = "10.77.0.1"
        assert job.until_up(0, 3) == {rank: (f"{rank} of 3", first) for rank in range(3)}
        job.order("die", 1)
        assert job.until_up(1, 3) == {0: ("0 of 3", first), 2: ("1 of 3", first), 3: ("2 of 3", first)}
        job.order("die", 0)
        assert job.until_up(2, 2) == {2: ("0 of 2", "10.77.0.2"), 3: ("1 of 2", "10.77.0.2")}
        (job.folder / "orders" / "end").touch()
        assert [run.wait(LIMIT_S) for run in runs] == [0, 0]
