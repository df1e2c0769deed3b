"""In cycle 0, rank 0 fills its user's limit on processes until the file "go" exists, then kills itself.

From then on, all ranks end well.
"""

from __future__ import annotations

import contextlib
import os
import signal
import sys
import time
from pathlib import Path


def fill() -> None:
    """Starts processes that wait, for as long as there is room."""
    with contextlib.suppress(BlockingIOError):
        while True:
            if not os.fork():
                signal.pause()
                os._exit(0)


if os.environ["HOLDFAST_CYCLE"] != "0":
    sys.exit(0)
if os.environ["RANK"] == "0":
    fill()
    Path("full").touch()
    while not Path("go").exists():  # Whatever ends makes room for somebody else: it is taken at once.
        fill()
        time.sleep(0.001)
    os.kill(os.getpid(), signal.SIGKILL)
time.sleep(600)
