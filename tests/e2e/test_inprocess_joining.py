"""A rank of a wrapped call is killed: does a reserve replace it at once, and does a late process take part again?"""

from __future__ import annotations

from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path

from tests.e2e.launch import SCRIPTS, Launch, assert_nothing_left, launched, wait_until

LONG_S = 60.0


@contextmanager
def training(folder: Path, ranks: int, *, active: int) -> Generator[Launch]:
    """All active ranks are in iteration 0; the budget has one restart."""
    script = str(SCRIPTS / "wrapped_joining.py")
    options = ("--nproc-per-node", str(ranks), "--max-restarts", "1", script, str(active))
    with launched(folder, *options) as launch:
        wait_for(launch, 0, active)
        yield launch


def wait_for(launch: Launch, iteration: int, count: int) -> dict[object, tuple[object, object, object]]:
    """Returns the callers in this iteration by initial rank: rank, number of active ranks, number of ranks."""

    def lines() -> list[dict[str, object]]:
        return [line for line in launch.traced("fn") if line["iteration"] == iteration]

    def is_there() -> bool:
        return len(lines()) >= count or launch.process.poll() is not None

    wait_until(is_there, timeout_s=LONG_S, what=f"{count} ranks in iteration {iteration}")
    assert len(lines()) == count, launch.explained()
    return {line["rank"]: (line["as_rank"], line["active"], line["world"]) for line in lines()}


def do(launch: Launch, *names: str) -> None:
    for name in names:
        (launch.folder / name).touch()


def wait_event(launch: Launch, kind: str) -> None:
    wait_until(lambda: kind in launch.kinds(), timeout_s=LONG_S, what=kind)


def ends(launch: Launch) -> dict[object, object]:
    """Returns the result of each rank."""
    assert launch.wait() == 0, launch.explained()
    assert_nothing_left(launch)
    return {line["rank"]: line["value"] for line in launch.traced("returned")}


def test_a_reserve_stands_in_without_waiting_for_the_new_process_which_takes_part_after_the_next_fault(tmp_path: Path):
    with training(tmp_path, 4, active=3) as launch:
        do(launch, "kill-1-0")
        assert wait_for(launch, 1, 3) == {0: ("0", "3", 3), 2: ("1", "3", 3), 3: ("2", "3", 3)}
        do(launch, "join")
        wait_event(launch, "replacement_waits")
        do(launch, "raise-0-1")
        assert wait_for(launch, 2, 3) == {0: ("0", "3", 4), 1: ("1", "3", 4), 2: ("2", "3", 4)}
        do(launch, "return-2")
        assert ends(launch) == {0: 0, 1: 1, 2: 2, 3: None}
        assert "replacement_late" not in launch.kinds()


def test_the_world_goes_on_smaller_and_is_whole_again_when_the_late_process_has_joined(tmp_path: Path):
    with training(tmp_path, 3, active=3) as launch:
        do(launch, "kill-1-0")
        assert wait_for(launch, 1, 2) == {0: ("0", "2", 2), 2: ("1", "2", 2)}
        wait_event(launch, "replacement_late")
        do(launch, "join")
        wait_event(launch, "replacement_waits")
        do(launch, "raise-2-1")
        assert wait_for(launch, 2, 3) == {0: ("0", "3", 3), 1: ("1", "3", 3), 2: ("2", "3", 3)}
        do(launch, "return-2")
        assert ends(launch) == {0: 0, 1: 1, 2: 2}


def test_a_process_that_still_waits_is_released_when_the_call_succeeds(tmp_path: Path):
    with training(tmp_path, 4, active=3) as launch:
        do(launch, "kill-1-0")
        wait_for(launch, 1, 3)
        do(launch, "join")
        wait_event(launch, "replacement_waits")
        do(launch, "return-1")
        assert ends(launch) == {0: 0, 1: None, 2: 2, 3: 3}


def test_a_process_that_comes_after_the_success_is_released_too(tmp_path: Path):
    with training(tmp_path, 4, active=3) as launch:
        do(launch, "kill-1-0")
        wait_for(launch, 1, 3)
        do(launch, "return-1")
        wait_event(launch, "call_committed")
        do(launch, "join")
        assert ends(launch) == {0: 0, 1: None, 2: 2, 3: 3}
