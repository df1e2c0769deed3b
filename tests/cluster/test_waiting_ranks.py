"""A node is lost, and ranks with a handler for SIGTERM wait in a collective with it: how long does a restart take?"""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from tests.cluster.job import ClusterJob, cluster_job, overlaps

pytestmark = [pytest.mark.usefixtures("namespaces"), pytest.mark.soak]

SCRIPT = Path(__file__).parent / "scripts" / "handling.py"
NOTICED_S = 5.0  # a silent node counts as lost
BEGINS_S = 8.0  # from SIGTERM until a gloo group makes its first step, on a busy machine
HELD_S = 15.0  # --workers-stop-timeout


def lose_node(job: ClusterJob, number: int, *, others: set[int]) -> float:
    """Returns the time from the loss to the first step of the next cycle."""
    lost_s = time.monotonic()
    job.lab.nodes[number].lose_power()
    job.until_steps(1, nodes=others, steps=1)
    return min(at_s for each in job.lives(1) for at_s, _ in each.steps) - lost_s


@pytest.mark.parametrize("handler", ["none", "flag"])
def test_a_rank_that_waits_for_a_lost_node_is_ended_although_it_has_a_handler(tmp_path: Path, handler: str):
    (tmp_path / "handler").write_text(handler)
    with cluster_job(tmp_path, 4, "3:4", script=SCRIPT) as job:
        job.start_leader()
        for number in (2, 3):
            job.start(number)
        job.until_steps(0, nodes={1, 2, 3})
        job.start(4)
        took_s = lose_node(job, 3, others={1, 2, 4})
        print(f"{handler}: node loss to first step {took_s:.2f} s")
        assert took_s < NOTICED_S + BEGINS_S
        said = "ranks 0 and 1 wait in all_reduce for ranks that are gone, so no handler for SIGTERM can run there"
        assert (said in job.output(1)) is (handler == "flag")
        job.let_end()
        assert job.codes(1, 2, 4) == {1: 0, 2: 0, 4: 0}
        assert overlaps(job.lives()) == []


def test_while_one_rank_saves_in_its_handler_nobody_is_ended(tmp_path: Path):
    (tmp_path / "handler").write_text("late")
    with cluster_job(tmp_path, 4, "3:4", script=SCRIPT) as job:
        job.start_leader()
        for number in (2, 3):
            job.start(number)
        job.until((tmp_path / "slow").exists, "a rank outside the collective")
        job.start(4)
        took_s = lose_node(job, 3, others={1, 2, 4})
        print(f"late: node loss to first step {took_s:.2f} s")
        assert (tmp_path / "saved-1").exists()
        assert (tmp_path / "saved-0").exists(), "the end of rank 1 ends its collective, and its handler runs"
        assert "no handler for SIGTERM can run there" not in job.output(1)
        assert took_s < NOTICED_S + HELD_S
