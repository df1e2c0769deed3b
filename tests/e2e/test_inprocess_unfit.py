"""What happens to a rank that a health check refuses: is it replaced, at what cost, and how does it end?"""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.e2e.launch import SCRIPTS, Launch, assert_nothing_left, launched

SCRIPT = str(SCRIPTS / "wrapped_unfit.py")
WORLD_SIZE = 3


def trained(folder: Path, how: str, *, units: int) -> Launch:
    """Returns a job that has succeeded."""
    with launched(folder, "--nproc-per-node", str(WORLD_SIZE), "--max-restarts", str(units), SCRIPT, how) as launch:
        assert launch.wait() == 0, launch.explained()
        assert_nothing_left(launch)
        return launch


def last_world(launch: Launch) -> dict[object, object]:
    """Returns the world size of the last callers of the function, by initial rank."""
    last = max(int(str(line["iteration"])) for line in launch.traced("fn"))
    return {line["rank"]: line["world_size"] for line in launch.traced("fn") if line["iteration"] == last}


def pids(launch: Launch, rank: int) -> set[object]:
    return {line["pid"] for line in launch.traced() if line["rank"] == rank}


def test_a_rank_that_was_found_unfit_is_replaced_and_the_others_stay(tmp_path: Path):
    launch = trained(tmp_path, "once", units=1)
    assert last_world(launch) == {0: "3", 1: "3", 2: "3"}
    assert [len(pids(launch, rank)) for rank in range(WORLD_SIZE)] == [1, 2, 1]
    (again,) = launch.traced("born again")
    assert again["is_alone"], "its process had ended before the new one was started"
    assert sorted(str(line["value"]) for line in launch.traced("returned")) == ["0", "1", "2"]
    assert launch.kinds().count("iteration_restarted") == 1


def test_a_rank_that_stays_unfit_takes_the_budget_and_the_others_go_on_without(tmp_path: Path):
    launch = trained(tmp_path, "always", units=2)
    assert last_world(launch) == {0: "2", 2: "2"}
    assert [len(pids(launch, rank)) for rank in range(WORLD_SIZE)] == [1, 3, 1]


@pytest.mark.parametrize(("how", "units"), [("once", 0), ("ends well", 1)])
def test_without_a_budget_and_after_an_end_without_an_error_nobody_takes_its_place(
    tmp_path: Path, how: str, units: int
):
    launch = trained(tmp_path, how, units=units)
    assert last_world(launch) == {0: "2", 2: "2"}
    assert len(pids(launch, 1)) == 1
