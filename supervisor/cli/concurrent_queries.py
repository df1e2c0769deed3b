"""How are several supervisors asked at the same time, so that none holds up the answers of the others?"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from typing import TypeVar

from supervisor.edges.machine.clock import Clock
from supervisor.errors import ExhaustedError, HoldfastError

Answer = TypeVar("Answer")


def ask_all(questions: Sequence[Callable[[], Answer]], *, within_s: float | None) -> list[Answer | HoldfastError]:
    """Returns the answers in order, each with the refusal in its place.

    Does not wait longer than `within_s`; None: waits for all.
    """
    found: list[Answer | HoldfastError] = [ExhaustedError(f"no answer within {within_s or 0:g} s")] * len(questions)

    def ask(number: int) -> None:
        try:
            found[number] = questions[number]()
        except HoldfastError as error:
            found[number] = error

    if len(questions) == 1:
        ask(0)
        return found
    clock = Clock()
    until_s = None if within_s is None else clock.now_s() + within_s
    threads = [threading.Thread(target=ask, args=(number,), daemon=True) for number in range(len(questions))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(None if until_s is None else max(0.0, until_s - clock.now_s()))
    return list(found)
