"""Prints at a given rate for a given time, and sends heartbeats meanwhile; reports the rates it reached."""

from recording import STARTED_NS, record

record("first_line", STARTED_NS)

import os  # noqa: E402  (after the first line)
import sys  # noqa: E402
import time  # noqa: E402

from monitoring import connect  # noqa: E402

LINE = b"step 12345 loss 3.14159 " + b"x" * 103 + b"\n"
BLOCK = LINE * 512

bytes_per_s = float(sys.argv[1]) * 1e6
duration_s = float(sys.argv[2])
client = connect() if sys.argv[3] == "beat" else None
if client:
    client.send_heartbeat()
record("ready")
start_s = time.monotonic()
written = 0
slowest_beat_s = longest_gap_s = 0.0
beat_at_s = start_s
while (now_s := time.monotonic()) < start_s + duration_s:
    if written > (now_s - start_s) * bytes_per_s:
        time.sleep(0.001)
    else:
        written += os.write(1, BLOCK)
    before_s = time.monotonic()
    if client and before_s - beat_at_s > 0.01:
        client.send_heartbeat()
        longest_gap_s = max(longest_gap_s, before_s - beat_at_s)
        slowest_beat_s = max(slowest_beat_s, time.monotonic() - before_s)
        beat_at_s = before_s
record(
    "done",
    written=written,
    took_s=f"{time.monotonic() - start_s:.3f}",
    slowest_beat_s=f"{slowest_beat_s:.6f}",
    longest_gap_s=f"{longest_gap_s:.6f}",
)
time.sleep(3600)
