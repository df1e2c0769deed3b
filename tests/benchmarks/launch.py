"""How does the bench run one launcher? It reads its events as they come, and ends all that it started."""

from __future__ import annotations

import contextlib
import json
import os
import select
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from pathlib import Path
from types import TracebackType
from typing import Self

from tests.benchmarks import processes
from tests.benchmarks.subjects import PLUGIN, JobOptions, Subject, job_id
from tests.programs.torchrun.installed import entry_point

STOP_GRACE_S = 8.0
OUTPUT_LINES_TOLD = 6


class RunFailedError(Exception):
    """Raised when a run does not reach what its row needs; the row notes it and goes on."""


@dataclass(frozen=True, slots=True)
class Event:
    name: str
    rank: int
    cycle: int
    pid: int
    at_ns: int
    fields: dict[str, str]

    @classmethod
    def parse(cls, line: str) -> Event:
        name, rank, cycle, pid, at_ns, *fields = line.split()
        return cls(name, int(rank), int(cycle), int(pid), int(at_ns), dict(entry.split("=", 1) for entry in fields))


@dataclass(frozen=True, slots=True)
class Told:
    """One event of a supervisor's own record, with its time converted to CLOCK_MONOTONIC."""

    kind: str
    rank: int | None
    cycle: int
    at_ns: int

    @classmethod
    def parse(cls, line: str, boot_ns: int) -> Told:
        entry = json.loads(line)
        since_epoch = datetime.fromisoformat(entry["at"]) - datetime.fromtimestamp(0, UTC)
        unix_ns = since_epoch // timedelta(microseconds=1) * 1000
        return cls(entry["kind"], entry["rank"], entry["cycle"], unix_ns - boot_ns)


@dataclass(slots=True)
class Run:
    """A launcher's run; start it with `with`. At the end of `with`, every process that it started is gone."""

    subject: Subject
    workload: str
    options: JobOptions
    output: int | None = None  # a descriptor for the launcher's output; None: a file that failures quote
    variables: dict[str, str] = field(default_factory=dict[str, str])
    events: list[Event] = field(default_factory=list[Event])
    launched_ns: int = 0
    _folder: tempfile.TemporaryDirectory[str] | None = None
    _launcher: subprocess.Popen[bytes] | None = None
    _launcher_pidfd: int = -1
    _pipe: int = -1
    _go: int = -1
    _tail: str = ""

    def __enter__(self) -> Self:
        self._folder = tempfile.TemporaryDirectory(prefix="bench-")
        folder = self.folder
        for name in ("events", "go"):
            os.mkfifo(folder / name)
        (folder / "faults").touch()
        if self.subject.rendezvous == PLUGIN:
            entry_point(folder)
        # Opened to read and write, so that writers never wait and the pipe never ends.
        self._pipe = os.open(folder / "events", os.O_RDWR | os.O_NONBLOCK | os.O_CLOEXEC)
        self._go = os.open(folder / "go", os.O_RDWR | os.O_CLOEXEC)
        command = self.subject.command(self.workload, self.options)
        with (folder / "output").open("wb") as output:
            target = output.fileno() if self.output is None else self.output
            self.launched_ns = time.monotonic_ns()
            self._launcher = subprocess.Popen(
                command,
                env=self._environment(),
                cwd=folder,
                stdin=subprocess.DEVNULL,
                stdout=target,
                stderr=target,
                start_new_session=True,
            )
        self._launcher_pidfd = os.pidfd_open(self._launcher.pid)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        assert self._launcher is not None
        assert self._folder is not None
        if self._launcher.poll() is None and kind is None:
            self._launcher.send_signal(signal.SIGTERM)
            with contextlib.suppress(subprocess.TimeoutExpired):  # then it is killed below, with the rest
                self._launcher.wait(STOP_GRACE_S)
        processes.end_descendants()
        self._launcher.wait()
        for descriptor in (self._launcher_pidfd, self._pipe, self._go):
            os.close(descriptor)
        self._folder.cleanup()

    @property
    def folder(self) -> Path:
        """The launcher's working directory: empty at the start, removed at the end."""
        assert self._folder is not None
        return Path(self._folder.name)

    @property
    def pid(self) -> int:
        """The launcher's process id."""
        assert self._launcher is not None
        return self._launcher.pid

    def await_events(self, name: str, count: int, *, cycle: int | None = None, limit_s: float) -> list[Event]:
        """Returns the first `count` events of that name (of one cycle), oldest first. Raises RunFailedError."""

        def found() -> list[Event]:
            return [event for event in self.events if event.name == name and cycle in (None, event.cycle)]

        which = "" if cycle is None else f" of cycle {cycle}"
        self._await(lambda: len(found()) >= count, f'"{name}"{which} from {count} ranks', limit_s)
        return found()[:count]

    def await_recovery(self, name: str, *, limit_s: float) -> list[Event]:
        """Returns that event from every rank of the first later cycle in which all ranks reached it."""

        def complete() -> list[Event]:
            for cycle in sorted({event.cycle for event in self.events} - {0}):
                newest = {each.rank: each for each in self.events if each.name == name and each.cycle == cycle}
                if len(newest) >= self.options.world_size:
                    return list(newest.values())
            return []

        return self.await_found(complete, f'"{name}" from all ranks of a later cycle', limit_s=limit_s)

    def await_found(self, find: Callable[[], list[Event]], what: str, *, limit_s: float) -> list[Event]:
        """Returns what `find` finds among the events, as soon as it finds something. Raises RunFailedError."""
        self._await(lambda: bool(find()), what, limit_s)
        return find()

    def take_until(self, at_s: float) -> bool:
        """Takes events as they come until `at_s` on the monotonic clock; False if the launcher ended before."""
        while (left_s := at_s - time.monotonic()) > 0:
            woken = select.select([self._pipe, self._launcher_pidfd], [], [], left_s)[0]
            self._take_events()
            if self._launcher_pidfd in woken:
                return False
        return True

    def await_exit(self, *, limit_s: float) -> int:
        """Returns the launcher's exit code, below 0 for a signal. Raises RunFailedError."""
        assert self._launcher is not None
        self._await(lambda: False, "", limit_s, until_exit=True)
        return self._launcher.wait()

    def go(self) -> None:
        """Lets the rank that waits for it continue."""
        os.write(self._go, b"g")

    def told_by_supervisor(self) -> list[Told]:
        """Returns the events that our supervisor recorded, once the launcher has ended; only holdfast has them."""
        command = [str(self.subject.program), "events", job_id(self.workload), "-o", "jsonl"]
        done = subprocess.run(command, env=self._environment(), check=False, capture_output=True, text=True, timeout=60)
        if done.returncode:
            raise RunFailedError(f"{self.subject.label}: {done.stderr.strip()}")
        boot_ns = time.time_ns() - time.monotonic_ns()
        return [Told.parse(line, boot_ns) for line in done.stdout.splitlines()]

    def output_tail(self) -> str:
        """Returns the last lines that the launcher and its workers printed."""
        path = self.folder / "output"
        return "\n".join(path.read_text(errors="replace").splitlines()[-OUTPUT_LINES_TOLD:])

    def _await(self, ready: Callable[[], bool], what: str, limit_s: float, *, until_exit: bool = False) -> None:
        give_up_at_s = time.monotonic() + limit_s
        self._take_events()
        while not ready():
            left_s = give_up_at_s - time.monotonic()
            awaited = [self._pipe, self._launcher_pidfd]
            woken = select.select(awaited, [], [], max(0.0, left_s))[0]
            self._take_events()
            if self._launcher_pidfd in woken:
                if until_exit or ready():
                    return
                raise RunFailedError(f"{self.subject.label} ended before {what}\n{self.output_tail()}")
            if not woken:
                wanted = "its end" if until_exit else what
                raise RunFailedError(f"{self.subject.label}: no {wanted} within {limit_s:g} s\n{self.output_tail()}")

    def _take_events(self) -> None:
        while True:
            try:
                read = os.read(self._pipe, 65536).decode()
            except BlockingIOError:
                return
            *lines, self._tail = (self._tail + read).split("\n")
            self.events += map(Event.parse, lines)

    def _environment(self) -> dict[str, str]:
        """Returns the bench's environment without another launcher's leftovers, with state in the run's folder."""
        folder = str(self.folder)
        kept = {
            name: value
            for name, value in os.environ.items()
            if not name.startswith(("PET_", "TORCHELASTIC_", "HOLDFAST_", "FT_", "NVRX_", "SLURM_", "MASTER_"))
            and name != "PYTHONDONTWRITEBYTECODE"  # nobody trains with it, and it makes each start compile again
        }
        bin_folder = str(self.subject.program.parent)
        return {
            **kept,
            "PATH": f"{bin_folder}:{kept.get('PATH', os.defpath)}",
            "BENCH_EVENTS": f"{folder}/events",
            "BENCH_GO": f"{folder}/go",
            "XDG_RUNTIME_DIR": folder,
            "XDG_STATE_HOME": folder,
            "HOLDFAST_STATE_DIR": folder,
            **({"BENCH_FAULTS": f"{folder}/faults"} if self.options.nodes > 1 else {}),
            **({"PYTHONPATH": f"{folder}/installed"} if self.subject.rendezvous == PLUGIN else {}),
            **self.subject.variables(self.options),
            **self.variables,
        }


def say(text: str) -> None:
    """Prints the progress of the bench."""
    sys.stderr.write(f"{text}\n")
    sys.stderr.flush()
