"""A worker whose cycles end by plan: a rank exits with its own code, or falls silent; the last one succeeds.

The other ranks count aloud and beat until they are ended.
"""

import json
import os
import random
import sys
import time

from worker_client import RankMonitorClient

BEAT_INTERVAL_S = 0.02
RANK, CYCLE, LAST = (int(os.environ[name]) for name in ("RANK", "TORCHELASTIC_RESTART_COUNT", "LAST_CYCLE"))
FAILS = CYCLE % int(os.environ["WORLD_SIZE"]) == RANK
client = RankMonitorClient()


def note(what: str) -> None:
    with open(os.environ["TRACE"], "a") as file:
        file.write(json.dumps({"what": what, "rank": RANK, "cycle": CYCLE, "pid": os.getpid()}) + "\n")


def count_aloud(seconds: float) -> int:
    """Counts for that time; returns the last number."""
    number, until_s = 0, time.monotonic() + seconds
    while time.monotonic() < until_s:
        os.write(1, f"said {CYCLE} {RANK} {number}.\n".encode())
        client.send_heartbeat()
        number += 1
        time.sleep(BEAT_INTERVAL_S)
    return number


note("started")
client.init_workload_monitoring()
if CYCLE == LAST:
    os.write(1, f"last {CYCLE} {RANK} {count_aloud(random.uniform(0, 0.3))}.\n".encode())
    client.shutdown_workload_monitoring()
    sys.exit(0)
if not FAILS:
    count_aloud(600.0)
os.write(1, f"last {CYCLE} {RANK} {count_aloud(random.uniform(0, 0.5))}.\n".encode())
if CYCLE % 3 == 2:
    client.send_heartbeat()
    time.sleep(600.0)
os._exit(10 + CYCLE % 100)
