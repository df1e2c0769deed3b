"""Ranks 0 to 2 send heartbeats; rank 3 floods the supervisor's socket, then joins them; at last rank 1 falls silent."""

from recording import CYCLE, RANK, STARTED_NS, await_go, record

record("first_line", STARTED_NS)

import os  # noqa: E402  (after the first line)
import sys  # noqa: E402
import threading  # noqa: E402
import time  # noqa: E402

from attacking import Attacker  # noqa: E402
from monitoring import connect  # noqa: E402

BEAT_INTERVAL_S = 0.05

if CYCLE == 0:
    if RANK == 3:
        attacker = Attacker(os.environ["FT_RANK_MONITOR_IPC_SOCKET"], seed=3)
        seen = attacker.attack(int(sys.argv[1]), float(sys.argv[2]))
        served_from_s = time.monotonic()
        client = connect()
        client.send_heartbeat()
        record(
            "attacked",
            inputs=seen.inputs,
            took_s=seen.took_s,
            slowest_answer_s=seen.slowest_answer_s,
            unanswered=seen.unanswered,
            refused=seen.refused,
            served_after_s=time.monotonic() - served_from_s,
        )
    else:
        client = connect()
        client.send_heartbeat()
    record("ready")
    silent = threading.Event()
    if RANK == 1:
        threading.Thread(target=lambda: (await_go(), silent.set()), daemon=True).start()
    while not silent.wait(BEAT_INTERVAL_S):
        client.send_heartbeat()
    last_ns = time.monotonic_ns()
    client.send_heartbeat()
    record("last_heartbeat", last_ns)
    while True:
        time.sleep(3600)
