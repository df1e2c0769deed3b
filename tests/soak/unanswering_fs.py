"""`python unanswering_fs.py FOLDER`: a file system in memory that stops answering at "stop" and continues at "go".

At "swallow" it takes requests and never answers them: a process that accesses it can't even be killed. It speaks the
kernel's FUSE protocol as far as log files need it, as root, through /dev/fuse. It ends with its stdin.
"""

from __future__ import annotations

import contextlib
import ctypes
import errno
import os
import select
import stat
import struct
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass, field

MOUNT_FLAGS = 2 | 4  # no setuid, no devices
LAZY = 2
BUFFER_BYTES = 1 << 20
WRITE_BYTES_MAX = 128 << 10
VALID_S = 0  # the kernel caches nothing, so it asks for everything
IN_HEADER = struct.Struct("<IIQQIIIHH")
OUT_HEADER = struct.Struct("<IiQ")
ATTRIBUTES = struct.Struct("<QQQQQQIIIIIIIIII")
SIZE_VALID, MODE_VALID = 1 << 3, 1 << 0


class RefusedError(Exception):
    def __init__(self, number: int) -> None:
        self.number = number


@dataclass
class Node:
    """A file or a folder."""

    number: int
    mode: int
    data: bytearray = field(default_factory=bytearray)
    names: dict[str, int] = field(default_factory=dict[str, int])

    @property
    def attributes(self) -> bytes:
        size, now = len(self.data), int(time.time())
        return ATTRIBUTES.pack(
            self.number, size, -(-size // 512), now, now, now, 0, 0, 0, self.mode, 1, 0, 0, 0, 4096, 0
        )  # fmt: skip


class FileSystem:
    """All nodes; the methods take a request's body and return the answer's."""

    def __init__(self) -> None:
        self._nodes = {1: Node(1, stat.S_IFDIR | 0o755)}
        self.calls: dict[int, Callable[[int, bytes], bytes]] = {
            1: self._lookup, 3: self._getattr, 4: self._setattr, 9: self._mkdir, 10: self._unlink, 11: self._unlink,
            12: self._rename, 14: self._open, 15: self._read, 16: self._write, 17: self._statfs, 18: _nothing,
            20: _nothing, 25: _nothing, 26: _init, 27: self._open, 28: self._readdir, 29: _nothing, 30: _nothing,
            34: _nothing, 35: self._create, 45: self._rename2,
        }  # fmt: skip

    def _node(self, number: int) -> Node:
        if number not in self._nodes:
            raise RefusedError(errno.ESTALE)
        return self._nodes[number]

    def _child(self, parent: int, name: bytes) -> Node:
        found = self._node(parent).names.get(name.rstrip(b"\0").decode(errors="surrogateescape"))
        if found is None:
            raise RefusedError(errno.ENOENT)
        return self._nodes[found]

    def _new(self, parent: int, name: bytes, mode: int) -> Node:
        node = Node(max(self._nodes) + 1, mode)
        self._nodes[node.number] = node
        self._node(parent).names[name.rstrip(b"\0").decode(errors="surrogateescape")] = node.number
        return node

    def _lookup(self, parent: int, body: bytes) -> bytes:
        return _entry(self._child(parent, body))

    def _getattr(self, number: int, body: bytes) -> bytes:
        return struct.pack("<QII", VALID_S, 0, 0) + self._node(number).attributes

    def _setattr(self, number: int, body: bytes) -> bytes:
        node = self._node(number)
        valid, _, _, size = struct.unpack_from("<IIQQ", body)
        if valid & SIZE_VALID:
            del node.data[size:]
            node.data.extend(bytes(size - len(node.data)))
        if valid & MODE_VALID:
            (mode,) = struct.unpack_from("<I", body, 68)
            node.mode = stat.S_IFMT(node.mode) | stat.S_IMODE(mode)
        return self._getattr(number, body)

    def _mkdir(self, parent: int, body: bytes) -> bytes:
        mode, _ = struct.unpack_from("<II", body)
        return _entry(self._new(parent, body[8:], stat.S_IFDIR | stat.S_IMODE(mode)))

    def _create(self, parent: int, body: bytes) -> bytes:
        _, mode, _, _ = struct.unpack_from("<IIII", body)
        return _entry(self._new(parent, body[16:], stat.S_IFREG | stat.S_IMODE(mode))) + self._open(1, b"")

    def _unlink(self, parent: int, body: bytes) -> bytes:
        node = self._child(parent, body)
        if node.names:
            raise RefusedError(errno.ENOTEMPTY)
        names = self._node(parent).names
        del names[body.rstrip(b"\0").decode(errors="surrogateescape")]
        return b""

    def _rename(self, parent: int, body: bytes, skipped_bytes: int = 8) -> bytes:
        (onto,) = struct.unpack_from("<Q", body)
        old, new = body[skipped_bytes:].split(b"\0")[:2]
        node = self._child(parent, old)
        del self._node(parent).names[old.decode(errors="surrogateescape")]
        self._node(onto).names[new.decode(errors="surrogateescape")] = node.number
        return b""

    def _rename2(self, parent: int, body: bytes) -> bytes:
        return self._rename(parent, body, 16)

    def _open(self, number: int, body: bytes) -> bytes:
        self._node(number)
        return struct.pack("<QIi", 0, 0, 0)

    def _read(self, number: int, body: bytes) -> bytes:
        _, offset, size = struct.unpack_from("<QQI", body)
        return bytes(self._node(number).data[offset : offset + size])

    def _write(self, number: int, body: bytes) -> bytes:
        _, offset, size = struct.unpack_from("<QQI", body)
        data = self._node(number).data
        data.extend(bytes(max(0, offset - len(data))))
        data[offset : offset + size] = body[40 : 40 + size]
        return struct.pack("<II", size, 0)

    def _statfs(self, number: int, body: bytes) -> bytes:
        return struct.pack("<QQQQQIIII24x", 1 << 20, 1 << 19, 1 << 19, 1 << 20, 1 << 19, 4096, 255, 4096, 0)

    def _readdir(self, number: int, body: bytes) -> bytes:
        _, offset, size = struct.unpack_from("<QQI", body)
        entries = b""
        for at, (name, child) in enumerate(self._node(number).names.items(), start=1):
            encoded = name.encode(errors="surrogateescape")
            entry = struct.pack("<QQII", child, at, len(encoded), stat.S_IFMT(self._nodes[child].mode) >> 12) + encoded
            entry += bytes(-len(entry) % 8)
            if at > offset and len(entries) + len(entry) <= size:
                entries += entry
        return entries


def _entry(node: Node) -> bytes:
    return struct.pack("<QQQQII", node.number, 0, VALID_S, VALID_S, 0, 0) + node.attributes


def _nothing(number: int, body: bytes) -> bytes:
    return b""


def _init(number: int, body: bytes) -> bytes:
    return struct.pack("<IIIIHHIIHHI28x", 7, 31, 0, 0, 16, 12, WRITE_BYTES_MAX, 1, 32, 0, 0)


def _answer(device: int, files: FileSystem) -> None:
    request = os.read(device, BUFFER_BYTES)
    _, opcode, unique, number, *_ = IN_HEADER.unpack_from(request)
    if opcode in (2, 36, 42):  # FORGET, INTERRUPT, BATCH_FORGET have no answer
        return
    try:
        call = files.calls.get(opcode)
        if call is None:
            raise RefusedError(errno.ENOSYS)
        failed, body = 0, call(number, request[IN_HEADER.size :])
    except RefusedError as error:
        failed, body = -error.number, b""
    with contextlib.suppress(FileNotFoundError):  # the process that asked has given up
        os.write(device, OUT_HEADER.pack(OUT_HEADER.size + len(body), failed, unique) + body)


def main(folder: str) -> None:
    c = ctypes.CDLL(None, use_errno=True)
    device = os.open("/dev/fuse", os.O_RDWR | os.O_CLOEXEC)
    options = f"fd={device},rootmode=40000,user_id=0,group_id=0,allow_other".encode()
    if c.mount(b"soak", folder.encode(), b"fuse", MOUNT_FLAGS, options):
        sys.exit(os.strerror(ctypes.get_errno()))
    try:
        files, answering, swallowing = FileSystem(), True, False
        _answer(device, files)  # the kernel's greeting: it asks nothing before the answer
        print("mounted", flush=True)
        while True:
            ready, _, _ = select.select([sys.stdin.fileno(), *([device] if answering or swallowing else [])], [], [])
            if sys.stdin.fileno() in ready:
                word = os.read(sys.stdin.fileno(), 64)
                if not word:
                    return
                answering, swallowing = word.split()[-1] == b"go", word.split()[-1] == b"swallow"
            elif swallowing:
                os.read(device, BUFFER_BYTES)
            if answering and device in ready:
                try:
                    _answer(device, files)
                except OSError as error:
                    if error.errno == errno.ENODEV:
                        return
                    if error.errno not in (errno.ENOENT, errno.EINTR, errno.EAGAIN):
                        raise
    finally:
        c.umount2(folder.encode(), LAZY)
        os.close(device)  # all who still wait get an error


if __name__ == "__main__":
    main(sys.argv[1])
