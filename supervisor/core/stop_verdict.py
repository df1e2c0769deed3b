"""With which state and exit code does a stopped job end?"""

from __future__ import annotations

from supervisor.core.facts import JobState, Verdict

SAME_SIGNAL_S = 0.1  # signals this close are one request: timeout(1) and systemd send two at once
STOPPED_EXIT_CODE = 1  # stopped by a command; after signal n it is 128 + n


def was_said(asked: str, reason: str) -> bool:
    """Whether the sentence of the request, "holdfast run got SIGTERM: rank 0 has …", has said how the job ends."""
    return asked == reason or asked.startswith(f"{reason}: ")


def stopped_verdict(signal: int, reason: str, *, all_succeeded: bool) -> Verdict:
    """Returns how a job ends that a command (signal 0) or a signal has stopped."""
    if signal == 0:
        return Verdict(JobState.STOPPED, STOPPED_EXIT_CODE, reason)
    if all_succeeded:
        return Verdict(JobState.SUCCEEDED, 0, f"{reason}; all ranks then exited with code 0")
    return Verdict(JobState.STOPPED, 128 + signal, reason)
