"""With which state and exit code does a stopped job end?"""

from __future__ import annotations

from signal import SIGKILL, SIGTERM

from supervisor.core.facts import JobState, Verdict

SAME_SIGNAL_S = 0.1  # signals this close are one request: timeout(1) and systemd send two at once
SAME_SIGTERM_S = 2.0  # a scheduler signals a script and its children, and the script passes it on once it gets CPU time
STOP_FOLLOWS_S = 0.5  # a scheduler that ends a job ends its ranks, and within this time asks for a stop
STOPPED_EXIT_CODE = 1  # stopped with a node's supervisor, whose node may be rebooting: the job may start again


def is_one_request(first: int, second: int, passed_s: float) -> bool:
    """Returns whether the second of two signals asks for nothing more than the first. 0: none was sent."""
    if not first or second in (0, SIGKILL):
        return False
    return passed_s < (SAME_SIGTERM_S if first == second == SIGTERM else SAME_SIGNAL_S)


def another(signal: int) -> str:
    """Returns how a message names the next signal that is a request of its own."""
    return f"another one after {SAME_SIGTERM_S:g} s" if signal == SIGTERM else "another one"


def was_said(asked: str, reason: str) -> bool:
    """Returns whether the request's sentence, "holdfast run got SIGTERM: rank 0 has …", has said how the job ends."""
    return asked == reason or asked.startswith(f"{reason}: ")


def stopped_verdict(signal: int, reason: str, *, all_succeeded: bool, final_code: int | None = None) -> Verdict:
    """Returns how a job ends that a command (signal 0) or a signal has stopped.

    `final_code`: tells a scheduler not to start the job again, since an operator has stopped it; None: nobody has.
    """
    if signal == 0:
        return Verdict(JobState.STOPPED, STOPPED_EXIT_CODE if final_code is None else final_code, reason)
    if all_succeeded:
        return Verdict(JobState.SUCCEEDED, 0, f"{reason}; all ranks then exited with code 0")
    return Verdict(JobState.STOPPED, 128 + signal, reason)


def left_verdict(reason: str) -> Verdict:
    """Returns how a job ends on a node that has left it. A scheduler must not take that for a failure."""
    return Verdict(JobState.STOPPED, 0, reason)


def has_left(verdict: Verdict) -> bool:
    """Returns whether the verdict is that of one node, which has left: the job goes on."""
    return verdict.state is JobState.STOPPED and verdict.exit_code == 0


def left_sentence(node: str, reason: str, *, is_alone: bool = False) -> str:
    unanswered = "; no leader has answered it" if is_alone else ""
    return f"node {node} has left the job ({reason}){unanswered}; the job goes on without it"
