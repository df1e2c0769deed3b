"""What is an unresponsive process doing? Reads only /proc and never blocks: it touches none of the process's files."""

from __future__ import annotations

import os

from supervisor.edges.machine.processes import process_table

_STATES = {
    "R": "runs",
    "T": "is stopped (state T)",
    "t": "is held by a debugger (state t)",
    "Z": "has ended",
    "X": "has ended",
}
# Calls in which something outside can hold a process; True: the first argument is a descriptor.
_CALLS: dict[str, dict[int, tuple[str, bool]]] = {
    "x86_64": {
        0: ("read", True), 1: ("write", True), 2: ("open", False), 3: ("close", True), 5: ("fstat", True),
        7: ("poll", False), 17: ("pread", True), 18: ("pwrite", True), 20: ("writev", True), 35: ("nanosleep", False),
        56: ("clone", False), 57: ("fork", False), 58: ("vfork", False), 59: ("execve", False), 61: ("wait4", False),
        73: ("flock", True), 74: ("fsync", True), 75: ("fdatasync", True), 77: ("ftruncate", True),
        80: ("chdir", False), 82: ("rename", False), 83: ("mkdir", False), 202: ("futex", False),
        217: ("getdents", True), 232: ("epoll_wait", False), 247: ("waitid", False), 257: ("open", False),
        258: ("mkdir", False), 262: ("stat", False), 275: ("splice", True), 281: ("epoll_wait", False),
        332: ("stat", False), 435: ("clone", False),
    },
    "aarch64": {
        22: ("epoll_wait", False), 32: ("flock", True), 34: ("mkdir", False), 38: ("rename", False),
        46: ("ftruncate", True), 49: ("chdir", False), 56: ("open", False), 57: ("close", True),
        61: ("getdents", True), 63: ("read", True), 64: ("write", True), 66: ("writev", True), 67: ("pread", True),
        68: ("pwrite", True), 73: ("poll", False), 76: ("splice", True), 79: ("stat", False), 80: ("fstat", True),
        82: ("fsync", True), 83: ("fdatasync", True), 95: ("waitid", False), 98: ("futex", False),
        220: ("clone", False), 221: ("execve", False), 260: ("wait4", False), 291: ("stat", False),
        435: ("clone", False),
    },
}  # fmt: skip


def process_state(pid: int) -> str:
    """Returns what `pid` does now, to end a sentence: "waits in the kernel (state D) in write to /mnt/x/log"."""
    entry = process_table.look_up(pid)
    if entry is None:
        return "has ended"
    if entry.state in _STATES:
        return _STATES[entry.state]
    return f"waits in the kernel (state {entry.state}){_call_of(pid)}"


def _call_of(pid: int) -> str:
    """Returns the system call in which it waits, and the file concerned, as far as the kernel tells."""
    words = _read(f"/proc/{pid}/syscall").split()
    if not words or not words[0].isdecimal():
        place = _read(f"/proc/{pid}/wchan").strip()
        return f" in {place}" if place not in ("", "0") else ""
    number = int(words[0])
    name, has_descriptor = _CALLS.get(os.uname().machine, {}).get(number, (f"system call {number}", False))
    if not has_descriptor or len(words) < 2:
        return f" in {name}"
    try:
        # The name that the kernel keeps; this does not touch the file system behind it.
        return f" in {name} of {os.readlink(f'/proc/{pid}/fd/{int(words[1], 16)}')}"
    except OSError:
        return f" in {name}"


def _read(path: str) -> str:
    try:
        with open(path, encoding="utf-8", errors="replace") as file:
            return file.read(256)
    except OSError:
        return ""  # Gone, or not visible to us.
