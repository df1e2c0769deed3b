"""What is loaded after `reserve` lies in huge pages, and nothing else about the process changes."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from worker_client.spawner import huge_heap
from worker_client.spawner.huge_heap import CHUNK_BYTES, HUGE_BYTES

ROOT = Path(__file__).parents[3]
SIZE_BYTES = 32 << 20
# Allocates before and after, in pieces that malloc takes from the heap, and looks where they lie.
PROGRAM = f"""
import json, sys
sys.path.insert(0, {str(ROOT)!r})
from worker_client.spawner import huge_heap

def resident():
    return int(open("/proc/self/statm").read().split()[1]) * 4096

before = [bytes([index % 251]) * 3000 for index in range(3000)]
del before[::2]  # the heap has holes
resident()
at_first = resident()
size = huge_heap.reserve({SIZE_BYTES})
added = resident() - at_first
after = [bytes([index % 249]) * 3000 for index in range(20000)]
whole = all(each == each[:1] * 3000 for each in (*before, *after))
advised, spans = False, []
for line in open("/proc/self/smaps"):
    words = line.split()
    if "-" in words[0]:
        span = [int(each, 16) for each in words[0].split("-")]
    elif words[0] == "VmFlags:" and "hg" in words:
        spans.append(span)
inside = sum(any(first <= id(each) < end for first, end in spans) for each in after)
print(json.dumps(dict(size=size, added=added, whole=whole, spans=spans, inside=inside)))
"""


def run(**env: str) -> dict[str, Any]:
    done = subprocess.run(
        [sys.executable, "-I", "-c", PROGRAM], env=os.environ | env, capture_output=True, text=True, timeout=120,
        check=True,
    )  # fmt: skip
    return json.loads(done.stdout)


def gives_huge_pages() -> bool:
    policy = Path("/sys/kernel/mm/transparent_hugepage/enabled")
    return policy.exists() and huge_heap._has_huge_pages()  # pyright: ignore[reportPrivateUsage]


@pytest.mark.skipif(not gives_huge_pages(), reason="this kernel has no huge pages of 2 MiB")
def test_what_comes_next_lies_in_huge_pages_and_the_block_itself_takes_no_memory() -> None:
    seen = run()
    assert seen["whole"]
    assert seen["size"] > SIZE_BYTES - 3 * HUGE_BYTES
    assert seen["added"] < SIZE_BYTES // 4
    assert seen["size"] == sum(end - first for first, end in seen["spans"])
    assert seen["inside"] * 3000 > seen["size"] // 2


@pytest.mark.parametrize(
    "setting", [{"MALLOC_MMAP_THRESHOLD_": "65536"}, {"GLIBC_TUNABLES": "glibc.malloc.mmap_threshold=65536"}], ids=str
)
def test_a_malloc_that_maps_each_chunk_is_left_alone(setting: dict[str, str]) -> None:
    seen = run(**setting)
    assert (seen["size"], seen["whole"], seen["spans"]) == (0, True, [])


@pytest.mark.parametrize("contents", [None, "536870912\n", "no number"], ids=str)
def test_without_huge_pages_of_2_mib_nothing_is_done(
    contents: str | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "size"
    if contents is not None:
        file.write_text(contents)
    monkeypatch.setattr(huge_heap, "_HUGE_BYTES_FILE", str(file))
    monkeypatch.setattr(huge_heap, "_malloc", None)  # would fail if it were called
    assert huge_heap.reserve(SIZE_BYTES) == 0


def test_only_adjacent_chunks_are_one_block() -> None:
    """Between others, something else may lie that is in use."""
    step = CHUNK_BYTES + 16
    run_of = huge_heap._last_run  # pyright: ignore[reportPrivateUsage]
    assert run_of([0, step, 2 * step]) == (0, 2 * step + CHUNK_BYTES)
    assert run_of([0, step, 3 * step, 4 * step]) == (3 * step, 4 * step + CHUNK_BYTES)
    assert run_of([0, CHUNK_BYTES]) == (CHUNK_BYTES, 2 * CHUNK_BYTES)
    assert run_of([7 * step, step]) == (step, step + CHUNK_BYTES)
    assert run_of([step]) == (step, step + CHUNK_BYTES)
