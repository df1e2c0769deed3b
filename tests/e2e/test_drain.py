"""`holdfast drain` drains the node that it is typed on, and says which jobs it does not wait for."""

from __future__ import annotations

import platform
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.e2e.daemons import NodeDaemon
from tests.e2e.launch import Launch, wait_until
from tests.e2e.test_many_nodes_daemons import Job, nodes

if TYPE_CHECKING:
    from tests.e2e.conftest import Start

pytestmark = pytest.mark.timeout(60)

NO_SUPERVISOR = 69
OWN = (
    "job {0} runs under a supervisor of its own (pid {1}), which no drain of this node asks: holdfast stop {0} ends it"
)


def private_job(start: Start, tmp_path: Path) -> Launch:
    script = tmp_path / "script.py"
    script.write_text("import time\nprint('on', flush=True)\ntime.sleep(600)\n")
    launch = start(str(script))
    launch.wait_for_output("on", count=1)
    return launch


def test_without_a_daemon_it_names_the_jobs_that_run_all_the_same(start: Start, tmp_path: Path) -> None:
    launch = private_job(start, tmp_path)
    own = OWN.format(launch.job_id, launch.process.pid)
    said = f"cannot drain this node: no holdfast daemon runs here; {own}"

    def is_named() -> bool:  # once it answers, shortly after its workers have started
        refused = launch.holdfast("drain", check=False)
        assert refused.returncode == NO_SUPERVISOR
        return said in refused.stderr

    wait_until(is_named, timeout_s=20, what="the name of the job")


def test_beside_a_daemon_it_does_not_say_that_the_node_has_no_jobs(start: Start, tmp_path: Path) -> None:
    launch = private_job(start, tmp_path)
    runtime = Path(launch.env["XDG_RUNTIME_DIR"])
    wait_until(lambda: launch.job_id in launch.holdfast("status", check=False).stdout, timeout_s=20, what="its answer")
    with NodeDaemon(tmp_path / "daemon") as daemon:
        (runtime / "holdfast").symlink_to(daemon.socket_dir)  # where commands look for this user's service
        drained = launch.holdfast("drain", check=False)
    assert drained.returncode == 0, drained.stderr
    assert OWN.format(launch.job_id, launch.process.pid) in drained.stderr
    assert "the service of this node has no jobs and takes none: its service may stop" in drained.stderr


def test_it_drains_its_own_node_which_is_not_the_first_by_name(tmp_path: Path) -> None:
    with nodes(tmp_path, 2) as (first, second):
        job = Job(tmp_path, "both", [first, second], "2", "60")
        job.until_running(0, 4)
        drain = second.ask("drain", "--reason", "new cable")
        wait_until(lambda: "cordoned" in second.holdfast("nodes"), timeout_s=20, what="the cordon")
        job.let_end()
        assert job.exit_codes() == [0, 0]
        assert drain.wait(20) == 0
        assert (second.home / "state" / "cordoned").read_text().strip().endswith("new cable")
        assert not (first.home / "state" / "cordoned").exists()
        who = f"node {platform.node()} (supervisor {second.process.pid})"
        why = f"holdfast drain by root on {platform.node()}: new cable"
        assert second.commands[-1].read_text().startswith(f"holdfast: {who} takes no new jobs: {why}\n")
