"""py-spy's and faulthandler's output for the same place is converted to the same stack."""

from __future__ import annotations

import json

from supervisor.core.process_facts import NamedThread
from supervisor.edges.workers.stacks.stack_text import (
    Frame,
    Reading,
    from_faulthandler,
    from_py_spy,
    grouped,
    main_thread_first,
    was_forced,
)

DUMP = """Thread 0x00007f01 (most recent call first):
  File "/usr/lib/threading.py", line 5 in run

Current thread 0x00007f00 [python3] (most recent call first):
  File "/app/data.py", line 88 in load
  File "/app/train.py", line ??? in <module>
"""


def _py_spy(*threads: tuple[int | None, list[tuple[str, str, int]]]) -> bytes:
    return json.dumps(
        [
            {"os_thread_id": tid, "frames": [{"filename": f, "name": n, "line": line} for f, n, line in frames]}
            for tid, frames in threads
        ]
    ).encode()


LOAD = Frame("/app/data.py", "load", 88)


def test_the_main_thread_is_found_and_the_innermost_frame_is_last():
    main = [("/app/data.py", "load", 88), ("/app/train.py", "<module>", 3)]
    other = [("/x.py", "run", 1)]
    for output in (
        _py_spy((11, main), (12, other)),
        _py_spy((12, other), (11, main)),
        _py_spy((None, other), (None, main)),
    ):
        beside = (NamedThread("without a name", (Frame("/x.py", "run", 1),)),)
        assert from_py_spy(output, 11) == Reading((Frame("/app/train.py", "<module>", 3), LOAD), threads=beside)
    for output in (b"", b"{}", b"[]", b"[1]", b'[{"os_thread_id": 11}]', _py_spy((11, [])), b"[" * 100_000):
        assert from_py_spy(output, 11) is None


def test_the_thread_that_has_the_gil_is_told() -> None:
    frames = [{"filename": "/app/data.py", "name": "load", "line": 88}]
    waiting = [{"filename": "/app/train.py", "name": "main", "line": 3}]
    threads = [
        {"os_thread_id": 11, "owns_gil": False, "frames": waiting},
        {"os_thread_id": 12, "owns_gil": True, "frames": frames},
    ]
    train = (Frame("/app/train.py", "main", 3),)
    beside = (NamedThread("without a name", (LOAD,)),)
    assert from_py_spy(json.dumps(threads).encode(), 11) == Reading(train, (LOAD,), threads=beside)
    beside = (NamedThread("without a name", train),)
    assert from_py_spy(json.dumps(threads).encode(), 12) == Reading((LOAD,), (LOAD,), gil_is_main=True, threads=beside)


def test_a_dump_that_a_signal_forced_is_known() -> None:
    assert was_forced(main_thread_first(DUMP))
    assert not was_forced(DUMP.replace("Current thread", "Thread"))


def test_a_faulthandler_dump_is_read_main_thread_first():
    assert from_faulthandler(DUMP) == (Frame("/usr/lib/threading.py", "run", 5),)
    turned = main_thread_first(DUMP)
    assert from_faulthandler(turned) == (Frame("/app/train.py", "<module>", 0), LOAD)
    assert "threading.py" in turned
    for text in ("", "nonsense", "Thread 0x01 (most recent call first):\n  <no Python frame>"):
        assert from_faulthandler(text) is None
    assert main_thread_first("") == ""


def test_a_dump_of_so_many_threads_that_the_main_thread_is_missing_tells_nothing_of_it():
    block = 'Thread 0x{:08x} (most recent call first):\n  File "/usr/lib/threading.py", line 5 in run\n'
    blocks = ["Current thread" + block.format(0)[6:], *(block.format(number) for number in range(1, 100))]
    text = "\n".join([*blocks, "...\n"])
    assert from_faulthandler(main_thread_first(text)) is None
    assert was_forced(main_thread_first(text))
    deep = DUMP + "  ...\n"  # a thread with more frames than faulthandler prints
    assert from_faulthandler(main_thread_first(deep)) == (Frame("/app/train.py", "<module>", 0), LOAD)


def test_equal_stacks_are_one_group_and_the_odd_ones_come_first():
    waiting = (Frame("/t/c10d.py", "all_reduce", 12),)
    as_py_spy_says = (Frame("/app/data.py", "Loader.load", 88),)
    groups = grouped({0: waiting, 1: waiting, 2: (LOAD,), 3: waiting, 4: as_py_spy_says})
    assert [group.ranks for group in groups] == [(2, 4), (0, 1, 3)]
    assert [group.stack for group in groups] == ["load (data.py:88)", "all_reduce (c10d.py:12)"]
    assert grouped({}) == ()
