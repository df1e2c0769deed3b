"""Is a thread that can't be started an error that says what to do? For real: tests/e2e/test_resources.py."""

from __future__ import annotations

import threading

import anyio
import pytest

from supervisor.edges.machine.own_process import threads


def refuse(_: threading.Thread) -> None:
    raise RuntimeError("can't start new thread")


async def test_work_is_done_in_a_thread() -> None:
    assert await threads.in_thread(threading.get_ident) != threading.get_ident()


async def test_without_a_thread_the_error_names_the_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(threading.Thread, "start", refuse)
    with pytest.raises(OSError, match=r"can't start new thread.*ulimit -u"):
        await threads.in_thread(lambda: None)
    with pytest.raises(OSError, match=r"can't start new thread.*ulimit -u"):
        threads.start(threading.Thread())


async def test_an_error_of_the_work_itself_stays_what_it_is() -> None:
    def fail() -> None:
        raise RuntimeError("mine")

    with pytest.raises(RuntimeError, match=r"^mine$"):
        await threads.in_thread(fail)


async def test_work_that_can_be_left_undone_is(monkeypatch: pytest.MonkeyPatch) -> None:
    done: list[int] = []
    await threads.in_thread_if_any(lambda: done.append(1))
    monkeypatch.setattr(threading.Thread, "start", refuse)
    with monkeypatch.context():
        await threads.in_thread_if_any(lambda: done.append(2))
    assert 1 in done


async def test_short_work_is_done_all_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    assert await threads.in_thread_or_here(threading.get_ident) != threading.get_ident()
    monkeypatch.setattr(threading.Thread, "start", refuse)
    with monkeypatch.context():
        idents = [await threads.in_thread_or_here(threading.get_ident)]
        async with anyio.create_task_group() as tasks:  # more at once than there are idle threads

            async def note() -> None:
                idents.append(await threads.in_thread_or_here(threading.get_ident))

            for _ in range(50):
                tasks.start_soon(note)
    assert threading.get_ident() in idents
    assert len(idents) == 51
