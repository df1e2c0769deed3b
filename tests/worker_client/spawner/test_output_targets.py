"""What do a slow or broken console and a full disk cost?"""

from __future__ import annotations

import errno
import os
import resource
import shutil
import threading
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path

import pytest
from holdfast_wire.moved_log_file import GONE
from holdfast_wire.spawner_link import OutputDropped, StreamPlan

from tests.worker_client.spawner.conftest import Script
from tests.worker_client.spawner.rig import Rig, worker
from worker_client.spawner import output_targets
from worker_client.spawner.output_targets import (
    CONSOLE_BACKLOG_BYTES_MAX,
    CONSOLE_PIPE_BYTES,
    Console,
    LogFile,
    open_log,
)


class TestLogFile:
    def test_errors_are_counted_and_the_file_comes_back(self, tmp_path: Path) -> None:
        drops: list[tuple[int, str]] = []
        file = LogFile(str(tmp_path / "log"), 10, lambda count, why: drops.append((count, why)), needed=True)
        file.write(b"12345678")
        os.mkdir(tmp_path / "log.1")
        file.write(b"abcdef")
        assert [count for count, _ in drops] == [4]
        os.rmdir(tmp_path / "log.1")
        file.write(b"next")
        file.close()
        assert (tmp_path / "log").read_bytes() == b"next"
        assert (tmp_path / "log.1").read_bytes() == b"12345678ab"

    def test_a_file_that_its_server_has_given_up_is_opened_again(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        drops: list[int] = []
        file = LogFile(str(tmp_path / "log"), 0, lambda count, _: drops.append(count), needed=True)

        def evicted(*_: object) -> int:
            raise OSError(errno.ESTALE, os.strerror(errno.ESTALE))

        with monkeypatch.context() as patched:
            patched.setattr(os, "write", evicted)
            file.write(b"lost")
        (tmp_path / "log").unlink()
        file.write(b"in the new one")
        file.close()
        assert (drops, (tmp_path / "log").read_bytes()) == ([4], b"in the new one")

    @pytest.mark.parametrize("is_removed", [True, False])
    def test_a_file_that_is_no_longer_in_its_place_is_made_again(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, is_removed: bool
    ) -> None:
        monkeypatch.setattr(output_targets, "LOOK_S", 0.0)
        drops: list[tuple[int, str]] = []
        path = tmp_path / "job" / "log"
        file = LogFile(str(path), 100, lambda count, why: drops.append((count, why)), needed=True)
        file.write(b"12345678")
        if is_removed:
            shutil.rmtree(path.parent)
        else:
            path.parent.rename(tmp_path / "moved")
        file.write(b"one\n")
        file.write(b"two\n")
        file.close()
        assert path.read_bytes() == GONE + b"one\ntwo\n"
        told = (8, f"{path} was removed; later output goes to a new file there")
        assert drops == ([told] if is_removed else [])

    def test_a_removed_file_is_held_until_there_is_a_new_one_that_says_so(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """Its inode is free only once the new file has another: readers know a file by it."""
        monkeypatch.setattr(output_targets, "LOOK_S", 0.0)
        held: list[bool] = []
        drops: list[int] = []
        path = tmp_path / "log"
        file = LogFile(str(path), 0, lambda count, _: drops.append(count), needed=True)
        file.write(b"12345678")
        removed = path.stat()
        path.unlink()

        def open_when_asked(log: str, flag: int) -> int:
            held.append(_is_open_here(removed))
            if len(held) == 1:
                raise OSError(errno.ENFILE, "Too many open files in system")
            return open_log(log, flag)

        monkeypatch.setattr(output_targets, "open_log", open_when_asked)
        file.write(b"lost")
        file.write(b"kept")
        assert (held, drops, path.read_bytes()) == ([True, True], [8, 4], GONE + b"kept")
        assert not _is_open_here(removed)
        file.close()

    def test_a_file_in_its_place_is_only_looked_at(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        """On NFS or FUSE, each close of a descriptor, of a duplicate too, waits for the server."""
        file = LogFile(str(tmp_path / "log"), 0, ignore_drop, needed=True)
        monkeypatch.setattr(output_targets, "LOOK_S", 0.0)

        def refuse(fd: int) -> int:
            pytest.fail(f"descriptor {fd} was duplicated or closed")

        with monkeypatch.context() as patched:
            patched.setattr(os, "dup", refuse)
            patched.setattr(os, "close", refuse)
            file.write(b"one ")
            file.write(b"two")
        assert (tmp_path / "log").read_bytes() == b"one two"
        file.close()

    def test_a_file_that_was_removed_to_make_room_does_not_keep_the_disk_full(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(output_targets, "LOOK_S", 0.0)
        path = tmp_path / "log"
        file = LogFile(str(path), 0, ignore_drop, needed=True)
        file.write(b"12345678")
        removed, write = path.stat(), os.write
        path.unlink()

        def written_if_there_is_room(fd: int, data: bytes) -> int:
            if _is_open_here(removed):
                raise OSError(errno.ENOSPC, "No space left on device")
            return write(fd, data)

        monkeypatch.setattr(os, "write", written_if_there_is_room)
        file.write(b"lost")
        file.write(b"kept")
        assert path.read_bytes() == GONE + b"kept"
        file.close()

    def test_a_new_file_never_has_the_inode_of_one_that_it_replaces(self, tmp_path: Path) -> None:
        """A reader that comes again knows files by it."""
        file = LogFile(str(tmp_path / "log"), 10, ignore_drop, needed=True)
        inodes: list[int] = []
        for _ in range(6):
            file.write(b"0123456789")
            inodes.append((tmp_path / "log").stat().st_ino)
        file.close()
        assert all(len({*inodes[at : at + 3]}) == 3 for at in range(4))

    def test_without_a_cap_nothing_is_cut(self, tmp_path: Path) -> None:
        file = LogFile(str(tmp_path / "log"), 0, ignore_drop, needed=True)
        for _ in range(100):
            file.write(b"x" * 1000)
        file.close()
        assert (tmp_path / "log").stat().st_size == 100_000


def _is_open_here(file: os.stat_result) -> bool:
    links = [f"/proc/self/fd/{number}" for number in os.listdir("/proc/self/fd")]
    return any(os.path.samestat(os.stat(link), file) for link in links if os.path.exists(link))


def ignore_drop(*_: object) -> None:
    """For tests in which nothing is dropped."""


def test_a_console_that_closes_drops_output_and_training_goes_on(script: Script) -> None:
    path = script("for _ in range(20000): print('x' * 100)")
    with Rig(path) as rig:
        assert rig.process.stdout is not None
        rig.process.stdout.close()
        rig.process.stdout = None
        (end,) = rig.run(worker())
    assert end.code == 0


def test_output_that_a_full_disk_behind_stdout_does_not_take_is_told(script: Script) -> None:
    with open("/dev/full", "wb") as full, Rig(script("print('trained')"), stdout=full.fileno()) as rig:
        (end,) = rig.run(worker())
        lost = rig.receive(OutputDropped, lambda each: each.dropped_bytes == len("trained\n"))
    assert (end.code, lost.local_rank) == (0, 0)
    assert lost.reason == "cannot write to stdout: No space left on device; free space on that disk"


def test_a_file_as_console_whose_disk_takes_a_part_drops_output_and_training_goes_on(
    script: Script, tmp_path: Path
) -> None:
    """As `holdfast run > out` with `ulimit -f`, or on a disk that fills up: the kernel takes a part of a write."""
    path = script("for _ in range(2000): print('x' * 99)")
    with (tmp_path / "out").open("wb") as out, Rig(path, stdout=out) as rig:
        resource.prlimit(rig.process.pid, resource.RLIMIT_FSIZE, (4242, 4242))
        (end,) = rig.run(worker())
        rig.end()
    assert end.code == 0
    assert (tmp_path / "out").stat().st_size == 4242


def test_a_slow_console_holds_back_the_worker_and_nothing_is_lost(script: Script) -> None:
    path = script("import sys\nfor at in range(60000): sys.stdout.write(f'{at:099}\\n')\n")
    with Rig(path) as rig:
        rig.spawn(worker(0), worker(1, stdout=StreamPlan(console=False)))
        assert rig.exited(1).code == 0  # a neighbour that does not write there is not delayed
        with pytest.raises(AssertionError, match="no Exited"):
            rig.exited(0, wait_s=0.5)
        out: list[bytes] = []
        stream = rig.process.stdout
        assert stream is not None
        reader = threading.Thread(target=lambda: out.append(stream.read()))
        reader.start()
        assert rig.exited(0).code == 0
        rig.send_end()
        reader.join(30)
    assert out[0].decode().splitlines() == [f"{at:099}" for at in range(60000)]


def test_a_file_is_rotated_once_and_capped(script: Script, tmp_path: Path) -> None:
    log = tmp_path / "log"
    with Rig(script("for at in range(1000): print(f'{at:08}')")) as rig:
        rig.run(worker(stdout=StreamPlan(console=False, file=str(log), file_bytes_max=2000)))
        rig.end()
    assert log.stat().st_size <= 2000
    assert (tmp_path / "log.1").stat().st_size <= 2000
    kept = ((tmp_path / "log.1").read_text() + log.read_text()).splitlines()
    assert kept[-1] == "00000999"
    assert {entry.name for entry in tmp_path.iterdir()} == {"job", "log", "log.1"}


class TestConsole:
    def test_what_a_full_disk_does_not_take_is_counted_for_whom_still_reads_it(self) -> None:
        with open("/dev/full", "wb", buffering=0) as full:
            console = Console(full.fileno())
        console.write(b"0: ", b"one\n")
        console.write(b"two\n")
        assert console.lost_bytes == len("0: one\ntwo\n")
        assert console.trouble == "cannot write to stdout: No space left on device; free space on that disk"
        os.close(console.fd)
        reader, writer = os.pipe()
        gone = Console(writer)
        os.close(reader)
        gone.write(b"one\n")
        assert (gone.broken, gone.lost_bytes, gone.trouble) == (True, 0, "")
        os.close(gone.fd)
        os.close(writer)

    """A pipe that is full, and then read or closed."""

    @pytest.fixture
    def pipe(self) -> Iterator[tuple[int, int]]:
        reader, writer = os.pipe()
        yield reader, writer
        for fd in (reader, writer):
            with suppress(OSError):
                os.close(fd)

    def test_what_a_slow_reader_has_not_taken_waits_in_order(self, pipe: tuple[int, int]) -> None:
        reader, writer = pipe
        console, written = Console(writer), bytearray()
        while not console.is_full:
            part = b"%09d\n" % len(written) * 1000
            console.write(part[:7], part[7:])
            written += part
        assert console.has_backlog
        assert not console.can_splice, "what waits comes first"
        assert CONSOLE_BACKLOG_BYTES_MAX < len(written) <= CONSOLE_BACKLOG_BYTES_MAX + CONSOLE_PIPE_BYTES + 10_000
        read = bytearray()
        while len(read) < len(written):
            read += os.read(reader, 1 << 20)
            console.flush()
        assert read == written
        assert not console.has_backlog
        assert console.can_splice
        os.close(console.fd)

    def test_nobody_who_shares_the_pipe_stops_blocking(self, pipe: tuple[int, int]) -> None:
        _, writer = pipe
        console = Console(writer)
        assert os.get_blocking(writer)
        assert not os.get_blocking(console.fd)
        os.close(console.fd)

    def test_after_its_end_all_is_dropped(self, pipe: tuple[int, int]) -> None:
        reader, writer = pipe
        console = Console(writer)
        os.close(reader)
        console.write(b"lost")
        assert console.broken
        console.write(b"lost, too")
        console.flush()
        assert not console.has_backlog
        assert not console.can_splice
        os.close(console.fd)

    def test_bytes_are_moved_from_a_pipe_or_the_caller_waits(self, pipe: tuple[int, int]) -> None:
        reader, writer = pipe
        console, (worker_reader, worker_writer) = Console(writer), os.pipe()
        with pytest.raises(BlockingIOError):
            console.splice_from(worker_reader, 100)
        os.write(worker_writer, b"abc")
        assert console.splice_from(worker_reader, 2) == 2
        assert os.read(reader, 10) == b"ab"
        os.close(reader)
        with pytest.raises(BlockingIOError):
            console.splice_from(worker_reader, 100)
        assert console.broken
        for fd in (worker_reader, worker_writer, console.fd):
            os.close(fd)


def _pipe(path: Path) -> None:
    os.mkfifo(path)


def _link(path: Path) -> None:
    path.symlink_to("/dev/null")


@pytest.mark.parametrize("make", [Path.mkdir, _pipe, _link])
def test_what_is_no_file_is_refused_and_not_waited_for(tmp_path: Path, make: Callable[[Path], None]) -> None:
    make(tmp_path / "log")
    with pytest.raises(OSError, match="stands in the place of a log file") as raised:
        open_log(str(tmp_path / "log"), os.O_APPEND)
    assert raised.value.errno == errno.EINVAL


def test_a_log_s_folders_are_made_for_the_user_alone(tmp_path: Path) -> None:
    path = tmp_path / "a" / "b" / "log"
    for text, flag in ((b"old", os.O_APPEND), (b"new", os.O_APPEND), (b"only", os.O_TRUNC)):
        fd = open_log(str(path), flag)
        os.write(fd, text)
        assert os.get_blocking(fd)
        os.close(fd)
    assert path.read_bytes() == b"only"
    assert path.parent.stat().st_mode & 0o777 == 0o700
