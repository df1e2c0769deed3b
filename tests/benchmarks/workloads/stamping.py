"""Prints lines with the time, at a pace at which people can read; reports when it is done."""

from recording import STARTED_NS, record

record("first_line", STARTED_NS)

import sys  # noqa: E402  (after the first line)
import time  # noqa: E402

lines, pause_s = int(sys.argv[1]), float(sys.argv[2])
record("ready")
for _ in range(lines):
    time.sleep(pause_s)
    print("stamp", time.monotonic_ns(), flush=True)
record("done")
time.sleep(3600)
