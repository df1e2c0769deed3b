"""What did a spawner leave that ended without a supervisor, and is it gone?"""

from __future__ import annotations

import logging
from functools import partial

import anyio
import msgspec
from holdfast_wire import spawner_link as wire

from supervisor.edges.machine import records
from supervisor.edges.machine.own_process.threads import in_thread_or_here
from supervisor.edges.machine.processes import process_table
from supervisor.edges.workers.spawner.lost_spawner_processes import Orphans, is_marked, kill_cgroup, wait_for_end
from supervisor.edges.workers.spawner.spawner_discovery import SpawnerFiles, SpawnerIdentity
from supervisor.edges.workers.spawner.spawner_kept_state import SpawnerKeptState

KEPT_BYTES_MAX = 64 << 20
EMPTIED_TIMEOUT_S = 5.0  # processes that can't be killed by then are abandoned


_log = logging.getLogger("holdfast")


class _Kept(msgspec.Struct, frozen=True):
    """One line of the file that a spawner keeps (worker_client/spawner/kept_state_file.py)."""

    texts: dict[str, str]
    taken: int
    reports: tuple[str, ...]
    cgroup: str


class DeadSpawnerState(msgspec.Struct, frozen=True):
    """What the spawner kept, without secrets, and its reports that are not included."""

    texts: dict[str, str]
    taken: int
    reports: tuple[wire.FromSpawner, ...]
    cgroup: str


def read(files: SpawnerFiles) -> DeadSpawnerState | None:
    """Reads it. Returns None if the spawner kept nothing or it is unreadable. Blocks."""
    try:
        kept = _whole(records.content(files.keep_path, bytes_max=KEPT_BYTES_MAX).splitlines())
        texts = {name: text for name, text in kept.texts.items() if text}
        said = (wire.decode(report.encode()) for report in kept.reports)
        reports = tuple(each for each in said if isinstance(each, wire.FromSpawner))
        return DeadSpawnerState(texts, kept.taken, reports, kept.cgroup)
    except FileNotFoundError:
        return None
    except (OSError, wire.SpawnerProtocolError, UnicodeEncodeError) as error:
        why = error.strerror if isinstance(error, records.RecordError) else error
        _log.warning("cannot read what the spawner of %s has kept: %s", files.keep_path, why)
        return None


def _whole(lines: list[bytes]) -> _Kept:
    """Returns the first line with all changes after it. The last line may be cut off. Raises RecordError."""
    kept = records.decoded(lines[0] if lines else b"", _Kept)
    for line in lines[1:]:
        try:
            later = records.decoded(line, _Kept)
        except records.RecordError:
            break
        kept = msgspec.structs.replace(later, texts=kept.texts | later.texts)
    return kept


async def end(files: SpawnerFiles, identity: SpawnerIdentity, leftover: DeadSpawnerState | None) -> tuple[int, ...]:
    """Kills the spawner's processes and their descendants; returns the pids that can't be killed in time."""
    if identity.boot != process_table.boot_id():
        return ()
    cgroup = leftover.cgroup if leftover is not None else ""
    orphans = await in_thread_or_here(partial(_orphans, files.name, identity, leftover))

    def sweep() -> tuple[int, ...]:
        kill_cgroup(cgroup)
        return orphans.sweep(others=frozenset())

    left: tuple[int, ...] = ()
    with anyio.move_on_after(EMPTIED_TIMEOUT_S):
        while left := await in_thread_or_here(sweep):
            if not await wait_for_end(left):
                break
    return left and await in_thread_or_here(partial(orphans.sweep, others=frozenset()))


def _orphans(name: str, identity: SpawnerIdentity, leftover: DeadSpawnerState | None) -> Orphans:
    """Finds them by their marks, and by the sessions of those pids that are of no other process by now."""
    job_id, since_ticks = identity.job_id, identity.started_ticks
    if not identity.pid or not identity.is_of_here:
        return Orphans(job_id, 0, name, found=True, since_ticks=since_ticks)
    now = process_table.look_up(identity.pid)
    is_reused = now is not None and now.started_ticks != since_ticks
    orphans = Orphans(job_id, 0 if is_reused else identity.pid, name, found=True, since_ticks=since_ticks)
    kept = SpawnerKeptState.of(leftover.texts if leftover is not None else {}, taken=0)
    for cycle, _, pid in kept.workers():
        if not process_table.has_initial_variables(pid) or is_marked(pid, job_id, name):
            orphans.note_session(pid, cycle)
    return orphans
