"""Does a wrapped function continue in the same processes on several nodes, whatever happens to a rank or a node?"""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.e2e.wrapped_nodes import WrappedNodes, wrapped_nodes

SCRIPT = "wrapped_on_nodes.py"


def pids(entered: dict[object, dict[str, object]]) -> dict[object, object]:
    return {rank: line["pid"] for rank, line in entered.items()}


def errors(job: WrappedNodes) -> list[dict[str, object]]:
    return [*job.traced("BarrierTimeout"), *job.traced("InternalError")]


def test_faults_of_ranks_on_two_nodes_restart_all_in_their_processes(tmp_path: Path):
    """Ranks 2 and 3 are on the node that does not lead. Killed processes are replaced on their own node."""
    with wrapped_nodes(tmp_path, "2", SCRIPT, max_restarts=4, SOFT_S="3") as job:
        job.start_all(2)
        before = pids(job.until_entered(0, 4))
        new: set[int] = set()
        for iteration, (fault, rank) in enumerate([("fail", 3), ("die", 2), ("gil", 3)], 1):
            job.order(fault, rank)
            entered = job.until_entered(iteration, 4)
            new |= {rank} if fault in ("die", "gil") else set()
            stayed = {each for each in range(4) if pids(entered)[each] == before[each]}
            assert stayed == set(range(4)) - ({rank} if fault in ("die", "gil") else set())
            assert {each: line["node"] for each, line in entered.items()} == {0: "1", 1: "1", 2: "2", 3: "2"}
            assert len({line["store"] for line in entered.values()}) == 1
            before = pids(entered)
        job.end()
        assert job.codes() == [0, 0]
        assert len(job.traced("returned")) == 4


def test_after_the_loss_of_a_node_a_spare_runs_its_ranks_in_the_same_cycle(tmp_path: Path):
    """A lost node is given up after 5 s of silence."""
    with wrapped_nodes(tmp_path, "2:3", SCRIPT) as job:
        job.start_all(2)
        before = pids(job.until_entered(0, 4))
        job.start(3)
        job.lose(2)
        _, entered = job.until_whole(0, 4, calls=6)
        assert [pids(entered)[rank] == before[rank] for rank in range(4)] == [True, True, False, False]
        assert {each: line["node"] for each, line in entered.items()} == {0: "1", 1: "1", 2: "3", 3: "3"}
        job.end()
        assert job.codes() == [0, 0]
        assert {line["cycle"] for line in job.traced("fn")} == {"0"}


@pytest.mark.soak
def test_min_healthy_trains_on_all_nodes_and_restarts_the_cycle_only_below_the_minimum(tmp_path: Path):
    """The third node's loss is survived in the processes. The second one's leaves too few nodes until another comes."""
    flags = ("--ft-restart-policy", "min-healthy", "--rdzv-conf", "last_call_timeout=30")
    with wrapped_nodes(tmp_path, "2:3", SCRIPT) as job:
        job.start_all(3, *flags)
        before = pids(job.until_entered(0, 6))
        job.lose(3)
        after = job.until_entered(1, 4)
        assert pids(after) == {rank: before[rank] for rank in range(4)}
        job.lose(2)
        job.until(lambda: "restart_decided" in job.said(1) or "restarting" in job.said(1), "a restart of the cycle")
        job.start(4, *flags)
        again = job.until_entered(0, 4, cycle="1")
        assert {each: line["node"] for each, line in again.items()} == {0: "1", 1: "1", 2: "4", 3: "4"}
        job.end()
        assert job.codes() == [0, 0]


@pytest.mark.soak
def test_a_call_that_ranks_of_two_nodes_do_not_make_names_them(tmp_path: Path):
    """Each node has one rank that calls and one that comes late. The first timeout ends the call for all others."""
    with wrapped_nodes(tmp_path, "2", "wrapped_missing.py") as job:
        job.start_all(2)
        job.until(lambda: len(errors(job)) == 2, "the end of the call")
        job.order("late", 1, 3)
        job.until(lambda: len(errors(job)) == 4, "an error on the late ranks")
        missing = (
            "cannot enter call 1 with 4 ranks within 0:00:12: ranks 1, 3 have not called it; "
            "call it equally often on all ranks; see holdfast stacks"
        )
        assert {str(line["message"]) for line in job.traced("BarrierTimeout")} == {missing}
        for line in job.traced("InternalError"):
            assert str(line["message"]).startswith("cannot begin call 1: rank ")
            assert str(line["message"]).endswith(missing)
        assert {line["rank"] for line in job.traced("InternalError")} >= {1, 3}
        job.end()
        assert job.codes() == [0, 0]
