"""Rank 1 exits with a failure; the others stamp the SIGTERM by which they learn of it."""

from recording import RANK, STARTED_NS, await_go, record

record("first_line", STARTED_NS)

import os  # noqa: E402  (after the first line)
import signal  # noqa: E402
import time  # noqa: E402


def leave(*_: object) -> None:
    record("told")
    os._exit(0)


signal.signal(signal.SIGTERM, leave)
record("ready")
if RANK == 1:
    await_go()
    record("fault")
    os._exit(3)
while True:
    time.sleep(3600)
