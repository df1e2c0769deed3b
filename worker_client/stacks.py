"""Where is each thread of this process right now, if somebody asks from outside?

Two ways. `current_stacks()` answers a request, on the channel thread. A thread that holds the GIL would keep that one
from running; so a signal, too, makes faulthandler write the stacks into a memfd that the supervisor can read.
"""

from __future__ import annotations

import contextlib
import faulthandler
import fcntl
import os
import signal
import threading

# Ignored by default: one that comes after shutdown or after an exec harms nobody. Nearly nothing else uses it.
STACKS_SIGNAL = signal.SIGURG
STACKS_READ_BYTES_MAX = 1024 * 1024


class StacksSignal:
    """The signal and the descriptor into which it writes. In use from construction until `remove()`."""

    def __init__(self) -> None:
        """Raises OSError or RuntimeError where it can't be had."""
        self.signal = int(STACKS_SIGNAL)
        self.descriptor = os.memfd_create("holdfast-stacks", os.MFD_CLOEXEC)
        with contextlib.ExitStack() as undo:
            undo.callback(os.close, self.descriptor)  # Of a signal that can't be had nothing may stay open.
            # Appending, so that the reader may truncate what it has read.
            fcntl.fcntl(self.descriptor, fcntl.F_SETFL, os.O_APPEND)
            faulthandler.register(self.signal, file=self.descriptor, all_threads=True, chain=False)
            undo.pop_all()

    def remove(self) -> None:
        """Gives the signal back. Also for a forked child, whose copy this ends."""
        faulthandler.unregister(self.signal)
        os.close(self.descriptor)


def claim_signal() -> StacksSignal | None:
    """Takes the signal if nobody in this process handles it; None where it is taken or can't be had."""
    try:
        return None if is_handled(STACKS_SIGNAL) else StacksSignal()
    except (OSError, RuntimeError, ValueError):
        return None


def current_stacks() -> str:
    """The stacks of all other threads as faulthandler prints them, the main thread's first."""
    descriptor = os.memfd_create("holdfast-stacks-answer", os.MFD_CLOEXEC)
    try:
        faulthandler.dump_traceback(file=descriptor, all_threads=True)
        text = os.pread(descriptor, STACKS_READ_BYTES_MAX, 0).decode(errors="replace")
    finally:
        os.close(descriptor)
    main = threading.main_thread().ident or 0
    blocks = [block.strip("\n") for block in text.split("\n\n") if not block.startswith("Current thread")]
    blocks.sort(key=lambda block: f"0x{main:016x}" not in block.partition("\n")[0])
    return "\n\n".join(blocks) + "\n"


def is_handled(number: int) -> bool:
    """Whether anybody handles or ignores the signal, by the kernel's word: a handler of a C library counts too."""
    if signal.getsignal(number) is not signal.SIG_DFL:
        return True
    with contextlib.suppress(OSError, ValueError), open("/proc/self/status") as status:
        for line in status:
            if line.startswith(("SigCgt:", "SigIgn:")) and int(line.split()[1], 16) >> (number - 1) & 1:
                return True
    return False
