"""etcd loses the data of a job that trains, or gets an older backup: nothing restarts, and the budget is as it was."""

from __future__ import annotations

import time
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path

from tests.e2e.launch import wait_until
from tests.e2e.test_many_nodes import LIMIT_S, Nodes, nodes
from tests.etcd_server import Etcd, etcd

AT_ONCE_S = 10.0  # from the return of etcd until its ledger is right again
# A rank trains until it is told to end; rank 0 kills itself when its cycle is told to fail.
SCRIPT = """
import os, signal, sys, time
folder = sys.argv[1]
rank, cycle = os.environ["RANK"], os.environ["TORCHELASTIC_RESTART_COUNT"]
seen = f"{rank} of {os.environ['WORLD_SIZE']} in {cycle} store {os.environ['MASTER_PORT']}"
open(f"{folder}/{cycle}-{rank}", "w").write(seen)
while not os.path.exists(f"{folder}/end"):
    if rank == "0" and os.path.exists(f"{folder}/fail-{cycle}"):
        os.kill(os.getpid(), signal.SIGKILL)
    time.sleep(0.02)
"""


@contextmanager
def _training(folder: Path, nnodes: str) -> Generator[tuple[Nodes, Etcd]]:
    with etcd(folder / "etcd") as server, nodes(folder, nnodes) as job:
        (folder / "train.py").write_text(SCRIPT)
        job.endpoint = server.endpoint
        for number in (1, 2):
            job.start(number, flags=("--rdzv-backend", "etcd"))
        job.until_running(0, 4)
        yield job, server


def _kept(server: Etcd, job: Nodes, key: str) -> dict[str, object]:
    return server.record(f"/holdfast/{job.job_id}/{key}")


def _knows(server: Etcd, job: Nodes, *, cycle: int, restarts_used: int) -> bool:
    ledger = _kept(server, job, "ledger")
    return (ledger.get("cycle"), ledger.get("restarts_used")) == (cycle, restarts_used)


def _fail(job: Nodes, cycle: int) -> None:
    (job.folder / f"fail-{cycle}").touch()
    job.until_running(cycle + 1, 4)


def _end_well(job: Nodes) -> str:
    job.let_end()
    assert [process.wait(LIMIT_S) for process in job.processes] == [0] * len(job.processes)
    return "".join(job.output(number + 1) for number in range(len(job.processes)))


def test_etcd_loses_its_data_while_a_spare_leads_and_training_goes_on(tmp_path: Path):
    with _training(tmp_path, "2:3") as (job, server):
        job.start(3, flags=("--rdzv-backend", "etcd"))
        wait_until(
            lambda: "127.0.0.3" in str(_kept(server, job, "ledger").get("witnesses")),
            timeout_s=LIMIT_S, what="the spare",
        )  # fmt: skip
        while (leader := _kept(server, job, "leader").get("node")) != "127.0.0.3":
            if leader is not None:
                server.ctl("del", f"/holdfast/{job.job_id}/leader")
        server.wipe()
        server.start()
        began_s = time.monotonic()
        wait_until(
            lambda: _knows(server, job, cycle=0, restarts_used=0), timeout_s=AT_ONCE_S, what="the ledger of cycle 0"
        )
        assert time.monotonic() - began_s < AT_ONCE_S
        assert not list(tmp_path.glob("1-*")), "nothing has restarted"
        _fail(job, 0)
        wait_until(lambda: _knows(server, job, cycle=1, restarts_used=1), timeout_s=LIMIT_S, what="the next ledger")
        said = _end_well(job)
    assert "restarts used 1 of 2" in said
    assert not list(tmp_path.glob("2-*"))


def test_an_older_backup_is_restored_and_the_ledger_is_written_again_at_once(tmp_path: Path):
    with _training(tmp_path, "2") as (job, server):
        backup = tmp_path / "backup"
        server.ctl("snapshot", "save", str(backup))
        _fail(job, 0)
        wait_until(lambda: _knows(server, job, cycle=1, restarts_used=1), timeout_s=LIMIT_S, what="the next ledger")
        server.restore(backup)
        server.start()
        wait_until(
            lambda: _knows(server, job, cycle=1, restarts_used=1), timeout_s=AT_ONCE_S, what="the ledger of cycle 1"
        )
        assert not list(tmp_path.glob("2-*")), "nothing has restarted"
        _fail(job, 1)
        said = _end_well(job)
    assert "restarts used 2 of 2" in said
    assert not list(tmp_path.glob("3-*"))
