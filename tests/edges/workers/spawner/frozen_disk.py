"""A file system that never answers: a process that touches a file on it waits in the kernel, and no signal ends that.

Run as a program with the mount point, as root and only in a separate mount namespace, so that no other process can hang
on it. It prints "frozen" once it is, and thaws (all waiting calls get an error) when it is killed, at the latest after
a minute. It reads every request, so that the kernel considers each as in progress; before that, a signal still ends the
process that waits. Who waits for good is in a file beside the mount point.
"""

from __future__ import annotations

import ctypes
import os
import signal
import struct
import subprocess
import sys
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path

LIFETIME_S = 60
_INIT = 26
_REQUEST = struct.Struct("=IIQQIIII")  # length, opcode, unique, node, uid, gid, pid, padding
_INIT_REPLY = struct.Struct("=IiQ IIIIHHIIHHI28x")
_REQUEST_BYTES_MAX = 1024 * 1024 + 4096


@contextmanager
def frozen_disk(folder: Path) -> Generator[Path | None]:
    """Yields the folder, on which nothing answers; None if that is not possible here."""
    folder.mkdir(exist_ok=True)
    assert os.readlink("/proc/self/ns/mnt") != os.readlink(f"/proc/{os.getppid()}/ns/mnt"), "others would wait, too"
    server = subprocess.Popen([sys.executable, __file__, str(folder)], stdout=subprocess.PIPE)
    assert server.stdout is not None
    try:
        yield folder if server.stdout.readline() == b"frozen\n" else None
    finally:
        server.kill()
        server.wait(10)
        server.stdout.close()
        subprocess.run(["umount", "-l", str(folder)], check=False, stderr=subprocess.DEVNULL)


def waiting(folder: Path) -> list[int]:
    """Returns the pids of the processes that no signal ends any more."""
    told = _list_beside(folder)
    return [int(line) for line in told.read_text().splitlines()] if told.exists() else []


def _list_beside(folder: Path) -> Path:
    return folder.with_name(f"{folder.name}.waiting")


def _serve(folder: str) -> None:
    told = _list_beside(Path(folder))
    device = os.open("/dev/fuse", os.O_RDWR | os.O_CLOEXEC)
    libc = ctypes.CDLL(None, use_errno=True)
    options = f"fd={device},rootmode=40000,user_id=0,group_id=0,allow_other".encode()
    if libc.mount(b"frozen", folder.encode(), b"fuse", 0, options) != 0:
        raise OSError(ctypes.get_errno(), "cannot mount")
    signal.alarm(LIFETIME_S)
    while True:
        request = os.read(device, _REQUEST_BYTES_MAX)
        _, opcode, unique, _, _, _, pid, _ = _REQUEST.unpack_from(request)
        with told.open("a") as file:
            file.write(f"{pid}\n")
        if opcode == _INIT:
            os.write(device, _INIT_REPLY.pack(_INIT_REPLY.size, 0, unique, 7, 31, 0, 0, 12, 9, 65536, 1, 0, 0, 0))
            print("frozen", flush=True)


if __name__ == "__main__":
    _serve(sys.argv[1])
