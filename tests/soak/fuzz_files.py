"""Which readers of files take what a stranger may have put there? See fuzz_targets.py for all others.

A reader gets the input as the file's content, or something else in the file's place.
"""

from __future__ import annotations

import json
import os
import random
import socket
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import cast

import anyio
import msgspec

from supervisor.config.healthd_file import read_healthd_file
from supervisor.config.resolve import parse_run
from supervisor.core.facts import JobState
from supervisor.edges.machine import records
from supervisor.edges.machine.folders import private_registry
from supervisor.edges.machine.folders.cordon_file import CordonFile
from supervisor.edges.machine.job_files import checkpoint_file
from supervisor.edges.machine.journal import journal_reader
from supervisor.edges.machine.logs import cycle_info
from supervisor.edges.machine.processes import job_claims
from supervisor.edges.users import user_folders
from supervisor.edges.users.user_folders import UserFolder
from supervisor.edges.workers.spawner.spawner_discovery import SpawnerFiles, SpawnerIdentity
from supervisor.engine.recovery import snapshot_texts
from supervisor.engine.recovery.record_text import UnreadableError
from supervisor.errors import HoldfastError
from supervisor.ports.reports import CycleInfo, JobReport
from tests.engine.recovery.test_snapshot_texts import SPEC, KeepingSpawner, OneSpawner
from tests.engine.world import World
from tests.soak.fuzz import Target
from worker_client.spawner import error_file

IN_PLACE_SHARE = 0.02  # of the inputs of a file: something else is in its place
FAR_S = 10**12  # the time of a file, in the year 33658
YAML = b"""fault_tolerance:
  rank_heartbeat_timeout: 30.5
  rank_section_timeouts: {step: 3, warmup: null}
  attribution_endpoint: localhost
  log_level: info
"""


class _InFile:
    """Writes an input to a file before it is read. Now and then, something else is in the place of a file of ours."""

    def __init__(self, path: Path, read: Callable[[], object], *, is_ours: bool) -> None:
        self._path, self._read, self._is_ours = path, read, is_ours
        self._dice = random.Random(0)
        path.parent.mkdir(parents=True, exist_ok=True)

    def read(self, data: bytes) -> None:
        if self._is_ours and self._dice.random() < IN_PLACE_SHARE:
            self._put_something_else()
        else:
            self._path.write_bytes(data)
        try:
            self._read()
        finally:
            if self._path.is_dir() and not self._path.is_symlink():
                self._path.rmdir()
            else:
                self._path.unlink(missing_ok=True)

    def _put_something_else(self) -> None:
        match self._dice.randrange(7):
            case 0:
                os.mkfifo(self._path)
            case 1:
                self._path.mkdir()
            case 2:
                self._path.symlink_to(self._dice.choice(("/dev/zero", "/dev/full", "/etc", self._path.name, "/none")))
            case 3:
                with socket.socket(socket.AF_UNIX) as listener:
                    listener.bind(str(self._path))
            case 4:
                with self._path.open("wb") as file:
                    file.truncate(1 << 40)
            case 5:
                self._path.write_bytes(b"{}")
                os.utime(self._path, (FAR_S, FAR_S))
            case _:
                return


def files(folder: Path) -> Iterator[Target]:
    def in_file(
        name: str,
        corpus: Sequence[bytes],
        path: Path,
        read: Callable[[], object],
        *errors: type[BaseException],
        share: float = 0.3,
        is_ours: bool = True,
    ) -> Target:
        return Target(name, corpus, _InFile(path, read, is_ours=is_ours).read, errors, share)

    place = SpawnerFiles(folder / "spawners", "s")
    identity = [msgspec.json.encode(SpawnerIdentity("j", "boot", 1, 2, 3))]
    yield in_file("records of spawners", identity, place.record_path, place.identity, OSError)
    user = UserFolder(folder / "user", folder / "state")
    record = (
        b'{"identity": {"uid": 1, "gid": 1, "groups": []}, "limits": [], "pid": 3, "started_ticks": 4, "arguments": []}'
    )
    yield in_file("records of users' supervisors", [record], user.path / user_folders.RECORD, user.record)
    holder = [b'{"pid": 1, "started_ticks": 2, "since_ns": 3}']
    yield in_file("holders of claims", holder, folder / "h", lambda: _holder(folder / "h"), OSError)
    entry = msgspec.json.encode({"path": "/x", "pid": 1, "started_at_ns": 2, "started_ticks": 3, "job_id": "j"})
    yield in_file("registered supervisors", [entry], folder / "e", lambda: _entry(folder / "e"))
    cordon = CordonFile(folder)
    yield in_file("reasons of cordons", [b"a disk"], cordon._paths[0], cordon.read)  # pyright: ignore[reportPrivateUsage]
    info = CycleInfo("7", 0, 2, 10**18, None, "/l", "n0", "", "0-1", 0, "cycle_info.7")
    older = folder / "info" / "cycle_info.7.0.1"
    yield in_file(
        "records of cycles", [json.dumps(cycle_info.document(info)).encode()], older,
        lambda: cycle_info.end_left_over(older.parent, info),
    )  # fmt: skip
    said = [b'{"message": {"message": "ValueError: x", "extraInfo": {"timestamp": "17"}}}', b'{"message": "x"}']
    yield in_file(
        "error files of ranks", said, folder / "error.json", lambda: error_file.read(str(folder / "error.json"))
    )
    yield in_file("iterations", [b"17"], folder / "i", lambda: checkpoint_file.read_iteration(str(folder / "i")))
    yield from _journal_rows()
    states = _kept_states()
    yield Target("kept states", states, _read_state, (UnreadableError,), 0.5)
    run = ("--ft-cfg-path", str(folder / "job.yaml"), "t.py")
    yield in_file(
        "YAML of jobs", [YAML], folder / "job.yaml",
        lambda: parse_run(run, environ={}, cwd="/", count_gpus=lambda _: 0),
        HoldfastError, share=0.1, is_ours=False,
    )  # fmt: skip
    healthd = b"healthcheck_path: /bin/true\nsocket_path: /run/x.sock\ntimeout: 3\nlog_level: info\n"
    path = folder / "healthd.yaml"
    yield in_file(
        "YAML of healthd",
        [healthd],
        path,
        lambda: read_healthd_file(str(path)),
        HoldfastError,
        share=0.1,
        is_ours=False,
    )


def _holder(path: Path) -> object:
    return records.read(path, job_claims.Holder, bytes_max=job_claims.HOLDER_BYTES_MAX)


def _entry(path: Path) -> object:
    return private_registry._read_entry(path)  # pyright: ignore[reportPrivateUsage]


def _journal_rows() -> Iterator[Target]:
    report = JobReport("j", JobState.RUNNING, 5, reason="r", command=("t.py",))
    text = journal_reader.report_to_json(report, recorded_by='{"pid": 1, "started_ticks": 2}').encode()

    def read(data: bytes) -> None:
        shown = data.decode(errors="replace")
        journal_reader.true_report(("j", 5, shown, 7.0))
        journal_reader._event_from_row("j", (1, 2, 0, 0, "n", None, "k", "r", shown))  # pyright: ignore[reportPrivateUsage]

    yield Target("rows of the journal", [text, b'[["a", "b"]]'], read, share=0.5)


def _kept_states() -> list[bytes]:
    """Returns what the spawner of a running job keeps, as one JSON object of texts."""

    async def kept() -> dict[str, str]:
        spawner = KeepingSpawner()
        with TemporaryDirectory() as folder:
            async with anyio.create_task_group() as tasks:
                world = World(tasks, Path(folder), spawners=OneSpawner(spawner), keeps=True)
                await world.job_service.submit(SPEC, {"A": "b"})
                await world.settle()
                tasks.cancel_scope.cancel()
        return spawner.texts

    texts = anyio.run(kept)
    nested = {name: json.loads(text) if text[:1] in "[{" else text for name, text in texts.items()}
    return [json.dumps(nested).encode(), json.dumps(texts).encode()]


def _read_state(data: bytes) -> None:
    """Reads what a spawner keeps. That these are texts by name, its link has checked."""
    try:
        found: object = json.loads(data)
    except (ValueError, RecursionError):
        found = {snapshot_texts.SPEC: data.decode(errors="replace"), snapshot_texts.STATE: "{}"}
    texts = cast("dict[str, object]", found) if isinstance(found, dict) else {snapshot_texts.STATE: found}
    snapshot_texts.restored({name: each if isinstance(each, str) else json.dumps(each) for name, each in texts.items()})
