"""What does an in-process restart keep on a GPU, and what does it do about a hung or broken one (rows 3 to 6)?

The variants on the CPU only test the scripts; they belong to `make soak`.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, cast

import pytest

from tests.e2e.launch import Launch, assert_nothing_left

if TYPE_CHECKING:
    from tests.gpu.conftest import Start

pytestmark = pytest.mark.timeout(400)

SCRIPT = str(Path(__file__).parent / "scripts/wrapped_on_gpu.py")
MIB = 1 << 20
on_each_device = pytest.mark.parametrize(
    "device", [pytest.param("cpu", marks=pytest.mark.soak), pytest.param("cuda", marks=pytest.mark.gpu)]
)


def traced(launch: Launch, what: str, rank: int, **wanted: object) -> list[dict[str, object]]:
    return [
        each
        for each in launch.traced(what)
        if each["rank"] == rank and all(each[name] == value for name, value in wanted.items())
    ]


def at_s(entry: dict[str, object]) -> float:
    return cast("float", entry["at"])


def finished(launch: Launch, *, timeout_s: float = 300.0) -> None:
    assert launch.wait(timeout_s) == 0, launch.explained()
    assert_nothing_left(launch)


@on_each_device
@pytest.mark.parametrize("ranks", [1, 2])
def test_an_exception_keeps_context_allocator_and_compiled_graphs(start: Start, device: str, ranks: int) -> None:
    launch = start("--nproc-per-node", str(ranks), SCRIPT, "exception", environment={"DEVICE": device})
    finished(launch)
    for rank in range(ranks):
        [before], [after] = (traced(launch, "up", rank, iteration=iteration) for iteration in (0, 1))
        assert after["kept"] == before["kept"], f"rank {rank}"
    [fault] = launch.traced("fault")
    [again] = traced(launch, "entered", ranks - 1, iteration=1)
    took_s = at_s(again) - at_s(fault)
    print(f"{device}, {ranks} ranks: exception → in the function again after {took_s * 1000:.0f} ms")
    assert took_s < 5.0


@on_each_device
def test_a_kernel_that_ends_by_itself_holds_its_rank_up_so_long(start: Start, device: str) -> None:
    launch = start("--nproc-per-node", "2", SCRIPT, "pending", "5", environment={"DEVICE": device})
    finished(launch)
    for rank in (0, 1):
        pids = {each["pid"] for each in traced(launch, "up", rank)}
        assert len(pids) == 1, "it was waited for"
    [fault], [again] = launch.traced("fault"), traced(launch, "up", 0, iteration=1)
    print(f"{device}: a kernel of 5 s: fault → up again after {at_s(again) - at_s(fault):.1f} s")
    assert 2.0 < at_s(again) - at_s(fault) < 20.0


@on_each_device
def test_a_rank_whose_kernel_never_ends_is_ended_and_replaced(start: Start, device: str) -> None:
    launch = start(
        "--nproc-per-node", "2", "--max-restarts", "2", SCRIPT, "pending", "ever", environment={"DEVICE": device}
    )
    finished(launch)
    assert len({each["pid"] for each in traced(launch, "up", 0)}) == 2
    assert len({each["pid"] for each in traced(launch, "up", 1)}) == 1, "the other one restarts inside its process"
    [fault], [*_, again] = launch.traced("fault"), traced(launch, "up", 0)
    print(f"{device}: a kernel without end: fault → its replacement is up after {at_s(again) - at_s(fault):.1f} s")
    assert at_s(again) - at_s(fault) < 60.0


@on_each_device
@pytest.mark.parametrize("kind", ["assert", "illegal"])
def test_a_rank_with_a_broken_context_is_replaced_while_the_others_stay(start: Start, device: str, kind: str) -> None:
    launch = start(
        "--nproc-per-node", "2", "--max-restarts", "2", SCRIPT, "sticky", kind, environment={"DEVICE": device}
    )
    finished(launch)
    broken, *healthy = traced(launch, "up", 0)
    assert broken["iteration"] == 0
    assert healthy, "a new process has taken part"
    assert broken["pid"] not in {each["pid"] for each in healthy}, "its context can't be used"
    assert len({each["pid"] for each in traced(launch, "up", 1)}) == 1
    assert [len(traced(launch, "returned", rank)) for rank in (0, 1)] == [1, 1]
    assert "rank_left_call" in launch.kinds()
    [fault], [_, other, *_] = launch.traced("fault"), traced(launch, "up", 1)
    took = f"{at_s(other) - at_s(fault):.1f} s, the new process after {at_s(healthy[0]) - at_s(fault):.1f} s"
    print(f"{device}, {kind}: fault → the other rank is up again after {took}")


@on_each_device
def test_a_hundred_aborted_groups_leave_nothing_behind(start: Start, tmp_path: Path, device: str) -> None:
    calls = 20 if device == "cuda" else 4  # of five aborts each
    dumps = tmp_path / "dumps"
    dumps.mkdir()
    environment = {"DEVICE": device, "TORCH_FR_BUFFER_SIZE": "2000", "TORCH_NCCL_TRACE_BUFFER_SIZE": "2000"}
    launch = start(SCRIPT, "aborts", str(calls), str(dumps), environment=environment)
    finished(launch)
    held = launch.traced("held")
    assert len(held) == calls
    early, late = held[min(2, calls - 2)], held[-1]
    print(f"{device}: after {calls * 5} aborts {late}, after {(min(2, calls - 2) + 1) * 5} {early}")
    for what, more in (("threads", 2), ("descriptors", 4), ("used_bytes", 32 * MIB)):
        grown = cast("int", late[what]) - cast("int", early[what])
        assert grown <= more, f"{what} have grown by {grown}"
    if device == "cuda":
        assert any(path.is_file() for path in dumps.rglob("*")), "the flight recorder was not dumped"
