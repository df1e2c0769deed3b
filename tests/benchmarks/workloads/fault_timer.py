"""Kills rank 1 in the first cycle, half a second after its first line, wherever it is by then."""

import os
import signal
import sys
import threading
import time

from recording import CYCLE, RANK, record

_AFTER_S = 0.5


def end_now() -> None:
    record("fault")
    os.kill(os.getpid(), signal.SIGKILL)


def _end_later() -> None:
    time.sleep(_AFTER_S)
    end_now()


def begin() -> None:
    if CYCLE == 0 and RANK == 1 and "--young" in sys.argv:
        threading.Thread(target=_end_later, daemon=True).start()
