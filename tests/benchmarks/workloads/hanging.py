"""All ranks send heartbeats; rank 1 falls silent in the first cycle, the next cycle ends at once."""

from recording import CYCLE, RANK, STARTED_NS, await_go, record

record("first_line", STARTED_NS)

import threading  # noqa: E402  (after the first line)
import time  # noqa: E402

from monitoring import connect  # noqa: E402

BEAT_INTERVAL_S = 0.05

if CYCLE == 0:
    client = connect()
    client.send_heartbeat()
    record("ready")
    silent = threading.Event()
    if RANK == 1:
        threading.Thread(target=lambda: (await_go(), silent.set()), daemon=True).start()
    while not silent.wait(BEAT_INTERVAL_S):
        client.send_heartbeat()
    last_ns = time.monotonic_ns()  # taken before the call: no supervisor can count from an earlier moment
    client.send_heartbeat()
    record("last_heartbeat", last_ns)
    while True:
        time.sleep(3600)
