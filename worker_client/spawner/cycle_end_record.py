"""When did a cycle end whose supervisor has died? The spawner, which then ends the workers, completes its record.

The supervisor that leads the job writes these records (--ft-cycle-info-dir) and completes them while it is alive.
"""

from __future__ import annotations

import json
import os

from worker_client.spawner.error_file import read_bounded

RECORD_BYTES_MAX = 1 << 20


def complete(link: str, cycle: int) -> None:
    """Adds the end to this cycle's record if it has none; leaves everything else unchanged. Never raises."""
    from datetime import UTC, datetime  # Late: rarely needed.

    try:
        path = os.path.realpath(link)
        content = read_bounded(path, RECORD_BYTES_MAX)
        if content is None:
            return
        record = json.loads(content[0])
        if record["cycle_number"] != cycle or record["cycle_end_time"]:
            return
        record["generation"] += 1
        beside = f"{os.path.dirname(path)}/.{os.path.basename(path)}.{os.getpid()}"
        with open(beside, "w", encoding="utf-8") as file:
            at = datetime.fromtimestamp(os.fstat(file.fileno()).st_mtime, UTC)  # the file's birth: now
            record["cycle_end_time"] = f"{at:%Y-%m-%dT%H:%M:%S}.{at.microsecond // 1000:03}Z"
            file.write(json.dumps(record, indent=2) + "\n")
        os.replace(beside, path)
    except (OSError, ValueError, KeyError, TypeError, RecursionError):
        return
