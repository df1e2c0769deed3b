"""Where is each thread of this process right now, if the supervisor asks?

There are two ways. `current_stacks()` answers a request on the channel thread. A thread that holds the GIL would keep
that one from running, so a signal can also make faulthandler write the stacks to a memfd that the supervisor reads.
"""

from __future__ import annotations

import contextlib
import faulthandler
import fcntl
import itertools
import os
import signal
import sys
import threading
import traceback

# Ignored by default, so it does no harm after shutdown or an exec. Hardly anything else uses it.
STACKS_SIGNAL = signal.SIGURG
STACKS_READ_BYTES_MAX = 1024 * 1024
FRAMES_MAX = 100  # as many as faulthandler prints


class StacksSignal:
    """The signal and the descriptor that it writes to. In use from construction until `remove()`."""

    def __init__(self) -> None:
        """Raises OSError or RuntimeError if the signal is not available."""
        self.signal = int(STACKS_SIGNAL)
        self.descriptor = os.memfd_create("holdfast-stacks", os.MFD_CLOEXEC)
        with contextlib.ExitStack() as undo:
            undo.callback(os.close, self.descriptor)  # Nothing may stay open if the signal is not available.
            # Appending, so that the reader may truncate what it has read.
            fcntl.fcntl(self.descriptor, fcntl.F_SETFL, os.O_APPEND)
            faulthandler.register(self.signal, file=self.descriptor, all_threads=True, chain=False)
            undo.pop_all()

    def remove(self) -> None:
        """Releases the signal. Also ends a forked child's copy."""
        faulthandler.unregister(self.signal)
        os.close(self.descriptor)


def claim_signal() -> StacksSignal | None:
    """Takes the signal if nothing in this process handles it; returns None if it is taken or not available."""
    try:
        return None if is_handled(STACKS_SIGNAL) else StacksSignal()
    except (OSError, RuntimeError, ValueError):
        return None


def current_stacks() -> str:
    """Returns the stacks of all other threads as faulthandler prints them, the main thread's first."""
    descriptor = os.memfd_create("holdfast-stacks-answer", os.MFD_CLOEXEC)
    try:
        faulthandler.dump_traceback(file=descriptor, all_threads=True)
        text = os.pread(descriptor, STACKS_READ_BYTES_MAX, 0).decode(errors="replace")
    finally:
        os.close(descriptor)
    main = threading.main_thread().ident or 0
    blocks = [block.strip("\n") for block in text.split("\n\n") if not block.startswith(("Current thread", "..."))]
    blocks.sort(key=lambda block: f"0x{main:016x}" not in block.partition("\n")[0])
    if f"hread 0x{main:016x}" not in text:
        blocks.insert(0, _block(main))  # faulthandler prints 100 threads at most, the newest
    return "\n\n".join(blocks) + "\n"


def _block(thread: int) -> str:
    """Returns the stack of a thread as faulthandler prints it."""
    lines = [f"Thread 0x{thread:016x} (most recent call first):"]
    frame = sys._current_frames().get(thread)  # pyright: ignore[reportPrivateUsage]
    for each, number in itertools.islice(traceback.walk_stack(frame), FRAMES_MAX if frame is not None else 0):
        lines.append(f'  File "{each.f_code.co_filename}", line {number} in {each.f_code.co_name}')
    return "\n".join(lines)


def is_handled(number: int) -> bool:
    """Returns whether the kernel says that the signal is handled or ignored, so C libraries' handlers count too."""
    if signal.getsignal(number) is not signal.SIG_DFL:
        return True
    with contextlib.suppress(OSError, ValueError), open("/proc/self/status") as status:
        for line in status:
            if line.startswith(("SigCgt:", "SigIgn:")) and int(line.split()[1], 16) >> (number - 1) & 1:
                return True
    return False
