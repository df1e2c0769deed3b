"""What does one heartbeat or section cost its caller, paced as in training and in a tight loop?"""

from recording import RANK, STARTED_NS, record

record("first_line", STARTED_NS)

import sys  # noqa: E402  (after the first line)
from collections.abc import Callable  # noqa: E402

from monitoring import connect  # noqa: E402
from timing import timed  # noqa: E402

PACE_S = 0.01
BLOCK = 50  # calls of one kind before the next kind's turn, so that all kinds meet the same disturbances
paced_calls = int(sys.argv[1])
tight_calls = int(sys.argv[2])


def measure(kinds: dict[str, Callable[[], None]], calls: int, pace_s: float) -> None:
    """Times all kinds in turn; reports a kind that fails and leaves it out from then on."""
    took_ns: dict[str, list[int]] = {name: [] for name in kinds}
    for _ in range(0, calls, BLOCK):
        for name in list(took_ns):
            try:
                took_ns[name] += timed(kinds[name], BLOCK, pace_s)
            except Exception as error:  # noqa: BLE001  (whatever a peer raises under load is this measurement's result)
                record(name, failed=type(error).__name__)
                del took_ns[name]
    for name, took in took_ns.items():
        took.sort()
        record(name, p50_ns=took[len(took) // 2], p99_ns=took[len(took) * 99 // 100])


client = connect()
client.send_heartbeat()


def section() -> None:
    client.start_section("step")
    client.end_section("step")


def nothing() -> None:
    pass


if RANK == 0:
    paced = {"nothing_paced": nothing, "heartbeat_paced": client.send_heartbeat, "section_paced": section}
    measure(paced, paced_calls, PACE_S)
    measure({"heartbeat_tight": client.send_heartbeat}, tight_calls, 0.0)
record("done")
