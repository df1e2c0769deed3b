"""One thread writes what is queued, in order; a disk that hangs costs its own items, and no one else's time."""

from __future__ import annotations

import threading

import pytest

from supervisor.edges.machine.own_process.writer_thread import QueueWriter, WriterThread
from tests.worker_client.spawner.rig import until

LIMIT_S = 20.0


def no_thread(_: threading.Thread) -> None:
    raise RuntimeError("can't start new thread")


def test_items_are_written_in_order_together_and_all_of_them_before_the_end():
    written: list[list[int]] = []
    may_write, ended = threading.Event(), threading.Event()

    def write(items: list[int]) -> None:
        assert may_write.wait(LIMIT_S)
        written.append(items)

    writer = QueueWriter("test", write=write, waiting_max=100, together_max=4, end=ended.set)
    assert all(writer.put(number) for number in range(10))
    may_write.set()
    writer.close(LIMIT_S)
    assert [each for items in written for each in items] == list(range(10))
    assert max(map(len, written)) == 4
    assert ended.is_set()
    assert writer.is_empty


def test_the_first_item_after_a_pause_waits_for_others_and_the_end_does_not_wait():
    written: list[list[int]] = []
    writer = QueueWriter("test", write=written.append, waiting_max=100, together_max=10, linger_s=2 * LIMIT_S)
    assert writer.put(0)
    until(lambda: writer.is_empty, what="the thread to have the first")
    assert all(writer.put(number) for number in (1, 2))
    writer.close(LIMIT_S)
    assert written == [[0, 1, 2]]


def test_while_the_disk_hangs_items_are_refused_and_the_end_is_bounded():
    hangs, begun = threading.Event(), threading.Event()

    def write(_: list[int]) -> None:
        begun.set()
        hangs.wait(LIMIT_S)

    writer = QueueWriter("test", write=write, waiting_max=2)
    assert writer.put(0)
    assert begun.wait(LIMIT_S)
    assert [writer.put(number) for number in range(4)] == [True, True, False, False]
    writer.close(0.05)
    hangs.set()


def test_without_a_thread_the_next_item_tries_again():
    written: list[int] = []
    writer = QueueWriter("test", write=written.extend, waiting_max=2)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(threading.Thread, "start", no_thread)
        with pytest.raises(OSError, match="no thread can be started"):
            writer.put(1)
    assert writer.put(2)
    writer.close(LIMIT_S)
    assert written == [2]


def test_one_to_which_nothing_was_put_starts_no_thread():
    writer = QueueWriter[int]("test", write=print, waiting_max=2)
    before = threading.active_count()
    writer.close(LIMIT_S)
    assert threading.active_count() == before


def test_a_thread_with_a_source_of_its_own_ends_with_it_and_says_so():
    batches, written = iter(["a", "b", None]), list[str]()
    thread = WriterThread("test", take=lambda: next(batches), write=written.append)
    assert not thread.join(LIMIT_S)
    thread.start()
    thread.start()
    assert thread.join(LIMIT_S)
    assert written == ["a", "b"]
