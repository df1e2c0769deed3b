"""Is a record read, and nothing else: no pipe that nobody writes, no device, nothing too large or too deep?"""

from __future__ import annotations

import os
import socket
from collections.abc import Callable
from pathlib import Path

import msgspec
import pytest
from holdfast_wire import regular_file

from supervisor.edges.machine import records
from supervisor.edges.machine.records import RecordError

pytestmark = pytest.mark.timeout(10)  # a reader that waits for a writer would wait without end


class Note(msgspec.Struct, frozen=True):
    job_id: records.JobId
    pid: records.Pid
    since_ns: records.UnixNs


GOOD = b'{"job_id": "train-17", "pid": 17, "since_ns": 5, "added later": [1]}'


def link_at(path: Path) -> None:
    path.symlink_to("/etc/hostname")


def device_at(path: Path) -> None:
    os.mknod(path, 0o020600, os.makedev(1, 5))


def socket_at(path: Path) -> None:
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(path))


def test_a_record_is_read(tmp_path: Path) -> None:
    (tmp_path / "note").write_bytes(GOOD)
    assert records.read(tmp_path / "note", Note, bytes_max=100) == Note("train-17", 17, 5)
    (tmp_path / "link").symlink_to("note")
    with regular_file.opened(tmp_path / "link", follows=True) as file:
        assert file.read() == GOOD
    with pytest.raises(FileNotFoundError):
        records.read(tmp_path / "another", Note, bytes_max=100)


@pytest.mark.parametrize(
    ("put", "why"),
    [
        (os.mkfifo, "it is a pipe, not a regular file"),
        (Path.mkdir, "it is a folder, not a regular file"),
        (socket_at, "it is a socket or a device"),
        (link_at, "it is a symbolic link"),
        (device_at, "it is a device, not a regular file"),
    ],
    ids=["pipe", "folder", "socket", "link", "device"],
)
def test_only_a_regular_file_is_read_and_nobody_is_waited_for(
    tmp_path: Path, put: Callable[[Path], None], why: str
) -> None:
    path = tmp_path / "record"
    try:
        put(path)
    except PermissionError:
        pytest.skip("only root makes devices")
    before = len(os.listdir("/proc/self/fd"))
    with pytest.raises(RecordError) as raised:
        records.content(path, bytes_max=100)
    assert (raised.value.strerror, raised.value.filename) == (why, str(path))
    assert len(os.listdir("/proc/self/fd")) == before


@pytest.mark.parametrize(
    ("text", "why"),
    [
        (b"", "Expecting value"),
        (b"\xff", "codec can't decode"),
        (b"[" * 30_000, "it is nested too deeply"),
        (b'{"a":' * 30_000, "it is nested too deeply"),
        (b'{"job_id": "j", "pid": 1, "since_ns": ' + b"9" * 5000 + b"}", "integer string"),
        (b'{"job_id": "j", "pid": 1, "since_ns": Infinity}', "Expected `int`"),
        (b'{"job_id": "j", "pid": 4294967296, "since_ns": 1}', "Expected `int` <="),
        (b'{"job_id": "j", "pid": -1, "since_ns": 1}', "Expected `int` >="),
        (b'{"job_id": "../j", "pid": 1, "since_ns": 1}', "matching regex"),
        (b'{"job_id": "j\\n", "pid": 1, "since_ns": 1}', "matching regex"),
        (b'{"job_id": "j", "since_ns": 1}', "missing required field"),
        (b"[]", "Expected `object`"),
    ],
)
def test_anything_else_than_the_record_is_one_error(tmp_path: Path, text: bytes, why: str) -> None:
    (tmp_path / "record").write_bytes(text)
    with pytest.raises(RecordError, match=why):
        records.read(tmp_path / "record", Note, bytes_max=1 << 20)
    with pytest.raises(RecordError, match=why):
        records.decoded(text, Note)


def test_a_file_that_is_too_large_is_not_read(tmp_path: Path) -> None:
    path = tmp_path / "record"
    path.write_bytes(GOOD)
    with pytest.raises(RecordError, match="it has more than 20 bytes"):
        records.content(path, bytes_max=20)
    with path.open("ab") as file:
        file.truncate(1 << 40)  # sparse
    with pytest.raises(RecordError, match="it has more than 100 bytes"):
        records.content(path, bytes_max=100)


def test_names_that_are_not_text_are_read() -> None:
    assert records.decoded('"/tmp/\\udcff"', str) == "/tmp/\udcff"


def test_numbers_as_names_are_read() -> None:
    assert records.decoded('{"3": 4}', dict[int, int]) == {3: 4}
