"""Which signals may be delivered to a thread of ours? Only its own faults; all others go to the script's threads."""

from __future__ import annotations

import signal

_FAULTS = {signal.SIGSEGV, signal.SIGBUS, signal.SIGFPE, signal.SIGILL, signal.SIGABRT}


def leave_to_the_script() -> None:
    """Blocks these signals in the calling thread from now on."""
    signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals() - _FAULTS)
