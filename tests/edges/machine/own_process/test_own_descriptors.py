"""What a separate thread opens stays private: no process started meanwhile has it, even for a moment."""

import fcntl
import os
import resource
import subprocess
import threading
from pathlib import Path

import pytest

from supervisor.edges.machine.own_process.own_descriptors import OwnThread, separate, separately

pytestmark = pytest.mark.anyio


def open_files() -> list[str]:
    """Returns the files of the process, as its main thread and its children have them."""
    found: list[str] = []
    for number in os.listdir("/proc/self/fd"):
        try:
            found.append(os.readlink(f"/proc/self/fd/{number}"))
        except OSError:
            continue  # that of the listing itself
    return found


async def test_a_file_that_the_thread_opens_is_not_there_for_others(tmp_path: Path) -> None:
    path = tmp_path / "log"
    path.write_text("line")
    thread = OwnThread()
    descriptor = await thread.call(lambda: os.open(path, os.O_RDONLY))
    assert str(path) not in open_files()
    assert await thread.call(lambda: os.read(descriptor, 10)) == b"line"
    thread.end(lambda: os.close(descriptor))


async def test_one_descriptor_may_be_kept_and_no_other_is(tmp_path: Path) -> None:
    reader, writer = os.pipe()
    thread = OwnThread(reader)
    os.write(writer, b"word")
    assert await thread.call(lambda: os.read(reader, 10)) == b"word"
    with pytest.raises(OSError, match="Bad file descriptor"):
        await thread.call(lambda: os.write(writer, b"word"))
    os.close(writer)
    assert await thread.call(lambda: os.read(reader, 10)) == b""  # the thread does not hold the other end
    os.close(reader)
    thread.end(lambda: None)


async def test_it_raises_what_the_work_raises_and_ends_after_its_last(tmp_path: Path) -> None:
    thread = OwnThread()
    with pytest.raises(FileNotFoundError):
        await thread.call(lambda: os.open(tmp_path / "none", os.O_RDONLY))
    done = threading.Event()
    thread.end(done.set)
    assert done.wait(10)


def test_what_is_separate_stays_so_for_the_thread_alone() -> None:
    reader, writer = os.pipe()
    told: list[bool] = []
    thread = threading.Thread(target=lambda: told.append(separate()))
    thread.start()
    thread.join(10)
    assert told == [True]
    os.write(writer, b"x")
    assert os.read(reader, 1) == b"x"
    os.close(reader)
    os.close(writer)


def test_one_call_alone(tmp_path: Path) -> None:
    descriptors: list[int] = []
    assert separately(lambda: descriptors.append(os.open(tmp_path, os.O_RDONLY)) or "done") == "done"
    assert str(tmp_path) not in open_files()


def test_what_the_work_raises_comes_out_of_the_call(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match="none"):
        separately(lambda: os.open(tmp_path / "none", os.O_RDONLY))


def test_a_process_that_is_started_separately_copies_only_what_was_kept(tmp_path: Path) -> None:
    (tmp_path / "lock").touch()
    lock = os.open(tmp_path / "lock", os.O_RDONLY)
    os.set_inheritable(lock, True)

    def copied() -> str:
        look = ("ls", "-l", "/proc/self/fd")
        return subprocess.run(look, close_fds=False, capture_output=True, text=True, check=True).stdout

    assert str(tmp_path) in separately(copied, *range(3), lock)
    assert str(tmp_path) not in separately(copied, *range(3))
    os.close(lock)


def test_what_a_separate_thread_opens_has_no_number_of_the_process(tmp_path: Path) -> None:
    """A child that it forks runs handlers that close descriptors of the process by their numbers."""
    (tmp_path / "file").touch()

    def opened() -> int:
        descriptor = os.open(tmp_path / "file", os.O_RDONLY)
        os.close(descriptor)
        return descriptor

    with (tmp_path / "file").open() as held:
        assert separately(opened, *range(3)) not in {int(name) for name in os.listdir("/proc/self/fd")}
        assert held.fileno() > 2


def test_a_limit_below_the_numbers_of_the_process_bars_no_work() -> None:
    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    high = fcntl.fcntl(2, fcntl.F_DUPFD_CLOEXEC, 200)
    try:
        resource.setrlimit(resource.RLIMIT_NOFILE, (150, before[1]))
        assert separately(os.getpid, *range(3)) == os.getpid()
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, before)
        os.close(high)
