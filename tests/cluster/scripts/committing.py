"""The last rank of a cycle commits its cycle's number again and again. argv: folder, pace.

While the file `hold` is there, it stands in the block of its commit. It notes in `lost-CYCLE` why it may not commit,
and in `overwritten` if an older cycle's number is back after its own. Ends well when the file `end` is there.
"""

from __future__ import annotations

import os
import sys
import time
from pathlib import Path

from worker_client import LeaseLostError, RankMonitorClient, commit, fencing_token

FOLDER, PACE_S = Path(sys.argv[1]), float(sys.argv[2])
CYCLE, RANK, WORLD_SIZE = (int(os.environ[name]) for name in ("HOLDFAST_CYCLE", "RANK", "WORLD_SIZE"))
CHECKPOINT, HOLD, END = FOLDER / "checkpoint", FOLDER / "hold", FOLDER / "end"
NODE = os.uname().nodename


def note(name: str, text: str) -> None:
    with (FOLDER / name).open("a") as notes:
        notes.write(f"{text}\n")


def save(path: Path) -> None:
    with commit(path) as temporary:
        temporary.write_text(str(CYCLE))
        if HOLD.exists():
            (FOLDER / f"inside-{CYCLE}").write_text(str(os.getpid()))
        while HOLD.exists():
            time.sleep(0.001)


def main() -> None:
    client = RankMonitorClient()
    client.init_workload_monitoring()
    note("tokens", f"{CYCLE} {fencing_token()} {os.getpid()} {NODE}")
    while not END.exists():
        if RANK == WORLD_SIZE - 1:
            save(CHECKPOINT)
            if int(CHECKPOINT.read_text()) < CYCLE:
                note("overwritten", f"{CYCLE} on {NODE}")
            (FOLDER / f"saved-{CYCLE}").touch()
        time.sleep(PACE_S)
    client.shutdown_workload_monitoring()


if __name__ == "__main__":
    try:
        main()
    except LeaseLostError as lost:
        note(f"lost-{CYCLE}", str(lost))
        try:
            save(FOLDER / f"own-{CYCLE}")  # no other cycle knows this path
        except LeaseLostError as own:
            note(f"lost-own-{CYCLE}", str(own))
        raise
