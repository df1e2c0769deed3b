"""A thread of ours takes no signal away from the script."""

from __future__ import annotations

import signal
import threading

from worker_client import thread_signals


def test_only_a_threads_own_faults_are_delivered_to_it():
    blocked: list[set[int]] = []

    def run() -> None:
        thread_signals.leave_to_the_script()
        blocked.append(set(signal.pthread_sigmask(signal.SIG_BLOCK, ())))

    thread = threading.Thread(target=run)
    thread.start()
    thread.join()
    (mask,) = blocked
    assert {signal.SIGTERM, signal.SIGINT, signal.SIGUSR1, signal.SIGCHLD, signal.SIGRTMIN} <= mask
    assert not mask & {signal.SIGSEGV, signal.SIGBUS, signal.SIGFPE, signal.SIGILL, signal.SIGABRT}
    assert signal.SIGTERM not in signal.pthread_sigmask(signal.SIG_BLOCK, ())
