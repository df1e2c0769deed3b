"""How are records of a job's cycles written, complete at any moment, without anybody waiting for their disk?

One daemon thread writes them. A record replaces the older one at once (rename), and so does the link to the newest. A
supervisor that died leaves a record without an end: the next supervisor that writes there adds the end.
"""

from __future__ import annotations

import contextlib
import json
import logging
import os
from datetime import UTC, datetime
from pathlib import Path

import msgspec

from supervisor.config.job_logs import current_cycle_info, cycle_info_name
from supervisor.edges.machine import records
from supervisor.edges.machine.own_process.writer_thread import QueueWriter
from supervisor.ports.reports import CycleInfo

WAITING_MAX = 1000  # beyond it records are dropped, because the folder does not answer
CLOSE_TIMEOUT_S = 2.0
RECORD_BYTES_MAX = 1 << 20

_log = logging.getLogger("holdfast")


class _Told(msgspec.Struct, frozen=True):
    """What is read of a record that another supervisor has left."""

    job_id: str
    cycle_end_time: str
    cycle_log_file: str
    generation: int


class CycleInfoFiles:
    """Writes records. Neither blocks nor raises. The first record starts the thread."""

    def __init__(self) -> None:
        self._writer = QueueWriter("cycle info", write=self._write_all, waiting_max=WAITING_MAX)
        self._tidied: set[tuple[str, str]] = set()
        self._has_failed = False

    def keep(self, folder: str, info: CycleInfo) -> None:
        try:
            if not self._writer.put((folder, info)):
                self._tell_once(folder, "the disk does not answer")
        except OSError as error:
            self._tell_once(folder, str(error))  # The next record tries again.

    def close(self) -> None:
        """Writes the waiting records; gives up after two seconds."""
        self._writer.close(CLOSE_TIMEOUT_S)

    def _write_all(self, waiting: list[tuple[str, CycleInfo]]) -> None:
        for folder, info in waiting:
            try:
                self._write(Path(folder), info)
            except OSError as error:
                self._tell_once(folder, error.strerror or str(error))

    def _write(self, folder: Path, info: CycleInfo) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        if (str(folder), info.stem) not in self._tidied:
            self._tidied.add((str(folder), info.stem))
            end_left_over(folder, info)
        name = cycle_info_name(info.stem, info.attempt, info.cycle)
        _replace(folder / name, document(info))
        link = Path(current_cycle_info(str(folder), info.stem))
        if info.ended_at_ns is None and not (link.is_symlink() and os.readlink(link) == name):
            beside = folder / f".{link.name}.{os.getpid()}"
            with contextlib.suppress(FileNotFoundError):
                beside.unlink()
            beside.symlink_to(name)
            beside.replace(link)

    def _tell_once(self, folder: str, why: str) -> None:
        if not self._has_failed:
            self._has_failed = True
            _log.warning("cannot write cycle info in %s: %s; check --ft-cycle-info-dir", folder, why)


def document(info: CycleInfo) -> dict[str, object]:
    """Returns the record as programs read it."""
    return {
        "job_id": info.job_id,
        "attempt_index": info.attempt,
        "cycle_number": info.cycle,
        "cycle_start_time": _utc(info.started_at_ns),
        "cycle_end_time": _utc(info.ended_at_ns) if info.ended_at_ns is not None else "",
        "cycle_log_file": info.log_path,
        "active_nodes": info.active_nodes,
        "standby_nodes": info.standby_nodes,
        "active_ranks": info.active_ranks,
        "generation": info.generation,
    }


def end_left_over(folder: Path, newest: CycleInfo) -> None:
    """Adds an end to older records of the job: the time when its log, or else the record itself, was last written."""
    own = cycle_info_name(newest.stem, newest.attempt, newest.cycle)
    for path in folder.glob(f"{newest.stem}.*.*"):
        if path.name == own or path.is_symlink():
            continue
        try:
            read = records.content(path, bytes_max=RECORD_BYTES_MAX)
            told = records.decoded(read, _Told)
            if told.cycle_end_time or told.job_id != newest.job_id:
                continue
            last_ns = path.stat().st_mtime_ns
            with contextlib.suppress(OSError, ValueError):
                last_ns = max(last_ns, Path(told.cycle_log_file).stat().st_mtime_ns)
            ended = {"cycle_end_time": _utc(last_ns), "generation": told.generation + 1}
            _replace(path, records.decoded(read, dict[str, object]) | ended)
        except (OSError, ValueError, OverflowError):
            continue  # It is not ours, or unreadable, or of a time that no calendar has.


def _replace(path: Path, record: object) -> None:
    beside = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        beside.write_text(json.dumps(record, indent=2) + "\n", encoding="utf-8")
        beside.replace(path)
    except OSError:
        with contextlib.suppress(OSError):
            beside.unlink()
        raise


def _utc(at_ns: int) -> str:
    moment = datetime.fromtimestamp(at_ns // 10**9, UTC)
    return f"{moment:%Y-%m-%dT%H:%M:%S}.{at_ns // 10**6 % 1000:03}Z"
