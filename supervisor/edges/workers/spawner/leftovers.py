"""What did a spawner leave that ended without a supervisor, and is it gone?"""

from __future__ import annotations

import json
from functools import partial
from typing import Any

import anyio
import msgspec
from anyio import to_thread
from holdfast_wire import spawner_link as wire

from supervisor.edges.machine.processes import process_table
from supervisor.edges.workers.spawner.keeping import Keeping
from supervisor.edges.workers.spawner.orphans import Orphans, kill_cgroup, wait_for_end
from supervisor.edges.workers.spawner.return_places import Lodger, ReturnPlace, turns

KEPT_BYTES_MAX = 64 << 20
EMPTIED_TIMEOUT_S = 5.0  # processes that can't be killed by then are abandoned


class Leftover(msgspec.Struct, frozen=True):
    """What the spawner kept, without secrets, and its reports that are not included."""

    texts: dict[str, str]
    taken: int
    reports: tuple[wire.FromSpawner, ...]
    cgroup: str

    @property
    def turns(self) -> int:
        return turns(self.texts)


def read(place: ReturnPlace) -> Leftover | None:
    """Reads it. Returns None if the spawner kept nothing or it is unreadable. Blocks."""
    try:
        with place.keep_path.open("rb") as file:
            body = _whole(file.read(KEPT_BYTES_MAX).splitlines())
        texts = {str(name): str(text) for name, text in body["texts"].items() if text}
        said = (wire.decode(report.encode()) for report in body["reports"])
        reports = tuple(each for each in said if isinstance(each, wire.FromSpawner))
        return Leftover(texts, int(body["taken"]), reports, str(body["cgroup"]))
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return None


def _whole(lines: list[bytes]) -> dict[str, Any]:
    """Returns the first line with all changes after it. The last line may be cut off. Raises ValueError, TypeError."""
    body = json.loads(lines[0] if lines else b"")
    for line in lines[1:]:
        try:
            later = json.loads(line)
        except ValueError:
            break
        body = {**later, "texts": {**body["texts"], **later["texts"]}}
    return body


async def end(lodger: Lodger, leftover: Leftover | None) -> tuple[int, ...]:
    """Kills the spawner's processes and their descendants; returns the pids that can't be killed in time."""
    if lodger.boot != process_table.boot_id():
        return ()
    cgroup, workers = "", ()
    if leftover is not None:
        cgroup, workers = leftover.cgroup, tuple(Keeping.of(leftover.texts, taken=0).workers())
    orphans = Orphans(lodger.job_id, lodger.pid, below_us=False, since_ticks=lodger.started_ticks)
    for cycle, _, pid in workers:
        orphans.note_session(pid, cycle)

    def sweep() -> tuple[int, ...]:
        kill_cgroup(cgroup)
        return orphans.sweep(others=frozenset())

    left: tuple[int, ...] = ()
    with anyio.move_on_after(EMPTIED_TIMEOUT_S):
        while left := await to_thread.run_sync(sweep):
            if not await wait_for_end(left):
                break
    return left and await to_thread.run_sync(partial(orphans.sweep, others=frozenset()))
