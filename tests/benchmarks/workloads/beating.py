"""Sends heartbeats at a fixed rate for a given time; reports their number at the end."""

from recording import STARTED_NS, record

record("first_line", STARTED_NS)

import sys  # noqa: E402  (after the first line)
import time  # noqa: E402

from monitoring import connect  # noqa: E402

interval_s = 1 / float(sys.argv[1])
duration_s = float(sys.argv[2])

client = connect()
client.send_heartbeat()
record("ready")
due_s = time.monotonic()
until_s = due_s + duration_s
beats = 0
latest_s = 0.0
while due_s < until_s:
    due_s += interval_s
    time.sleep(max(0.0, due_s - time.monotonic()))
    client.send_heartbeat()
    latest_s = max(latest_s, time.monotonic() - due_s)
    beats += 1
record("done", beats=beats, latest_s=f"{latest_s:.6f}")
