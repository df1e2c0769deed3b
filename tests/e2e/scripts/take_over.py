"""Makes another process execute `sleep`, by ptrace: what a user can do to each of her processes that is dumpable.

`take_over.py PID` prints "taken", or "refused: " and the reason. For x86-64 alone.
"""

from __future__ import annotations

import ctypes
import os
import re
import signal
import sys

PTRACE_GETREGS, PTRACE_SETREGS, PTRACE_SEIZE, PTRACE_DETACH, PTRACE_INTERRUPT = 12, 13, 0x4206, 17, 0x4207
REGISTERS = 27  # of struct user_regs_struct
RDX, RSI, RDI, RAX, ORIG_RAX, RIP, RSP = 12, 13, 14, 10, 15, 16, 19
EXECVE = 59
SYSCALL = b"\x0f\x05"

libc = ctypes.CDLL(None, use_errno=True)
libc.ptrace.argtypes = (ctypes.c_long, ctypes.c_long, ctypes.c_void_p, ctypes.c_void_p)


def ptrace(request: int, pid: int, data: object = None) -> None:
    if libc.ptrace(request, pid, None, data) < 0:
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))


def place_of_syscall(pid: int) -> int:
    """Returns an address in the process where a system call begins."""
    with open(f"/proc/{pid}/maps") as maps, open(f"/proc/{pid}/mem", "rb") as memory:
        for line in maps:
            found = re.match(r"([0-9a-f]+)-([0-9a-f]+) r-xp .*libc", line)
            if found:
                memory.seek(int(found[1], 16))
                return int(found[1], 16) + memory.read(int(found[2], 16) - int(found[1], 16)).index(SYSCALL)
    raise OSError("no libc")


def take_over(pid: int) -> None:
    ptrace(PTRACE_SEIZE, pid)
    ptrace(PTRACE_INTERRUPT, pid)
    os.waitpid(pid, 0x40000000)  # __WALL
    registers = (ctypes.c_ulonglong * REGISTERS)()
    ptrace(PTRACE_GETREGS, pid, ctypes.byref(registers))
    place = (registers[RSP] - 4096) & ~15
    texts = [b"/bin/sleep\0", b"sleep\0", b"1000\0"]
    at = [place + 256 + 64 * number for number in range(len(texts))]
    with open(f"/proc/{pid}/mem", "r+b", buffering=0) as memory:
        for address, text in zip(at, texts, strict=True):
            memory.seek(address)
            memory.write(text)
        memory.seek(place)
        memory.write(b"".join(each.to_bytes(8, "little") for each in (at[1], at[2], 0)))
    registers[RAX], registers[ORIG_RAX], registers[RIP] = EXECVE, (1 << 64) - 1, place_of_syscall(pid)
    registers[RDI], registers[RSI], registers[RDX], registers[RSP] = at[0], place, place + 16, place
    ptrace(PTRACE_SETREGS, pid, ctypes.byref(registers))
    ptrace(PTRACE_DETACH, pid)


if __name__ == "__main__":
    signal.alarm(20)
    try:
        take_over(int(sys.argv[1]))
        print("taken")
    except OSError as error:
        print(f"refused: {error}")
