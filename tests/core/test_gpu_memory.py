"""What do people read about the memory of their GPUs?"""

from __future__ import annotations

from supervisor.core.gpu_memory import (
    MIB,
    GpuMemory,
    Holder,
    MemoryReport,
    details,
    ended_sentence,
    free_sentence,
    held_sentence,
)

BUSY = GpuMemory("GPU 0", 40960 * MIB, 40000 * MIB, 40960 * MIB)
FREE = GpuMemory("GPU 1", 600 * MIB, 0, 600 * MIB)
UNKNOWN = GpuMemory("GPU 2")


def test_each_gpu_has_its_statistics() -> None:
    assert details(MemoryReport(False, (BUSY, FREE, UNKNOWN))) == (
        ("GPU 0", "first 40960 MiB, last 40000 MiB, at most 40960 MiB"),
        ("GPU 1", "first 600 MiB, last 0 MiB, at most 600 MiB"),
        ("GPU 2", "can't be read"),
    )


def test_who_holds_the_memory_is_named() -> None:
    holders = (
        Holder(12, "GPU 0", 39000 * MIB, "python", "ada"),
        Holder(13, "GPU 0", None, "dcgm", "user 990"),
        Holder(90000, "GPU 0", 1000 * MIB),
        Holder(14, "GPU 1", 5 * MIB, "python", "bob"),
    )
    assert held_sentence(MemoryReport(False, (BUSY, FREE, UNKNOWN), holders), 512 * MIB) == (
        "GPU 0 has 40000 MiB in use, held by pid 12 (python, user ada, 39000 MiB), pid 13 (dcgm, user 990), "
        "pid 90000 as the host counts (1000 MiB)"
    )


def test_many_holders_are_counted_and_none_is_said() -> None:
    many = tuple(Holder(pid, "GPU 0", None, "w", "ada") for pid in range(1, 12))
    assert held_sentence(MemoryReport(False, (BUSY,), many), 0).endswith("pid 8 (w, user ada) and 3 more")
    assert held_sentence(MemoryReport(False, (BUSY,)), 0).endswith("held by no process that can be seen from here")


def test_what_was_waited_and_killed_is_told() -> None:
    assert free_sentence(MemoryReport(True, (BUSY,), took_s=0.0124)) == "the memory of 1 GPU is free (waited 0.012 s)"
    assert free_sentence(MemoryReport(True, (BUSY, FREE), took_s=2.0)).startswith("the memory of 2 GPUs is free")
    assert ended_sentence(MemoryReport(True, ended=(7,))) == (
        "process 7, left over from this job, still held GPU memory and was killed"
    )
    assert ended_sentence(MemoryReport(True, ended=(7, 8))).startswith("processes 7, 8, left over from this job, ")
