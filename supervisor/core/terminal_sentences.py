"""What does a terminal show of an event's sentence, if it has just shown the one before?"""

from __future__ import annotations


def addition(reason: str, before: str) -> str:
    """Returns what a sentence adds to the one shown just before it: "x failed; restarting" after "x failed"."""
    return reason.removeprefix(f"{before}; ") if before else reason


def terminal_sentence(reason: str, before: str, *, is_loss: bool) -> str:
    """Returns the line for people who have just read `before`. `is_loss`: the job has failed for good.

    It is printed after the program's name, so "holdfast stop by kim" is told without it.
    """
    added = addition(reason, before)
    return f"the job ends: {added}" if is_loss and added != reason else added.removeprefix("holdfast ")
