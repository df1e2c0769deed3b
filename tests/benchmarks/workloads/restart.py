"""A script without torch: rank 1 kills itself in the first cycle, the next cycle ends at once."""

from recording import CYCLE, RANK, STARTED_NS, await_go, record

record("first_line", STARTED_NS)

import os  # noqa: E402  (after the first line, which is what is measured)
import signal  # noqa: E402
import sys  # noqa: E402
import time  # noqa: E402

if CYCLE == 0:
    if "--ignore-sigterm" in sys.argv:
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
    record("ready")
    if RANK == 1:
        await_go()
        record("fault")
        os.kill(os.getpid(), signal.SIGKILL)
    while True:
        time.sleep(3600)
