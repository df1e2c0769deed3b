"""One process is interrupted at random moments, some of them just when the function begins or ends.

`python -m tests.worker_client.inprocess.interrupted_process ROUNDS` prints how many rounds were interrupted, and fails
when the exception comes anywhere but inside the function.
"""

from __future__ import annotations

import json
import random
import sys
import threading
import time

from worker_client.inprocess.interrupting.main_thread_interrupter import MainThreadInterrupter, RankShouldRestart

LONGEST = 3000  # steps of the function
OUTSIDE = 200  # steps afterwards


class Other:
    """The thread that interrupts, as the monitor thread does: armed under a lock, until the round is over."""

    def __init__(self, interrupter: MainThreadInterrupter) -> None:
        self._interrupter = interrupter
        self._changed = threading.Condition(threading.Lock())
        self._begun = self._reached = -1
        self._pause_s = 0.0
        self.thread = threading.Thread(target=self._run, daemon=True)

    def begin(self, number: int, pause_s: float) -> None:
        with self._changed:
            self._begun, self._pause_s = number, pause_s
            self._changed.notify_all()

    def reached(self, number: int) -> None:
        with self._changed:
            self._reached = number
            self._changed.notify_all()
        self._interrupter.disarm()

    def _run(self) -> None:
        number = 0
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._begun >= number)  # noqa: B023
                if self._begun == sys.maxsize:
                    return
                number, pause_s = self._begun, self._pause_s
            end_s = time.perf_counter() + pause_s
            while time.perf_counter() < end_s:
                pass
            with self._changed:
                if self._reached < number:
                    self._interrupter.arm(str(number))
            self._interrupter.request()
            while not self._is_over(number):
                self._interrupter.interrupt_system_call()
            number += 1

    def _is_over(self, number: int) -> bool:
        with self._changed:
            return self._changed.wait_for(lambda: self._reached >= number, 0.0002)


def work(steps: int) -> int:
    total = 0
    for step in range(steps):
        total += step
    return total


def main(rounds: int) -> None:
    sys.setswitchinterval(1e-5)
    interrupter = MainThreadInterrupter(60.0)
    other = Other(interrupter)
    other.thread.start()
    dice = random.Random(rounds)
    interrupted = 0
    for number in range(rounds):
        steps = dice.randrange(LONGEST)
        other.begin(number, dice.uniform(0, 150e-6))
        try:
            assert interrupter.run(work, steps) == sum(range(steps))
        except RankShouldRestart as error:
            assert str(error) == str(number), "left over from an earlier round"  # noqa: PT017
            interrupted += 1
        work(OUTSIDE)  # here it is still due, and must not come
        other.reached(number)
        work(OUTSIDE)
    other.begin(sys.maxsize, 0.0)
    other.thread.join()
    interrupter.remove()
    work(OUTSIDE)
    sys.stdout.write(json.dumps({"rounds": rounds, "interrupted": interrupted}))


if __name__ == "__main__":
    main(int(sys.argv[1]))
