"""Are GPUs counted as CUDA would show them?"""

from __future__ import annotations

import pytest

from supervisor.config.device_count import count_cpus, count_gpus, visible_count

UUIDS = ("GPU-aaaa-1", "GPU-aabb-2", "GPU-cccc-3", "GPU-dddd-4")


@pytest.mark.parametrize(
    ("visible", "count"),
    [
        (None, 4),
        ("", 0),
        ("0", 1),
        ("3,1", 2),
        (" 0 , 1 ", 2),
        ("0,1,2,3,4", 4),
        ("0,9,1", 1),
        ("-1", 0),
        ("0,-1,1", 1),
        ("NoDevFiles", 0),
        ("0,0", 0),
        ("GPU-aaaa,GPU-cccc-3", 2),
        ("GPU-aa", 0),
        ("GPU-eeee", 0),
        ("MIG-1,MIG-2", 1),
        ("9999999999", 0),
    ],
)
def test_cuda_visible_devices(visible: str | None, count: int) -> None:
    assert visible_count(visible, UUIDS) == count


def test_without_a_driver_there_is_none() -> None:
    assert visible_count("0,1", ()) == 0
    assert visible_count("MIG-1", ()) == 0


def test_counting_here_answers() -> None:
    assert count_gpus({"CUDA_VISIBLE_DEVICES": ""}) == 0
    assert count_cpus() >= 1
