"""How is a machine asked for its files, variables and programs? Every question has a deadline or cannot hang."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import BinaryIO

import msgspec

from supervisor.edges.machine.clock import Clock
from supervisor.edges.machine.journal.timed_reads import SilentDiskError, TimedReads
from supervisor.edges.machine.processes import process_table as process_table  # With it, Popen stops no other thread.

ANSWER_TIMEOUT_S = 5.0
END_TIMEOUT_S = 1.0  # after SIGKILL


class Answer(msgspec.Struct, frozen=True):
    """The output of a program. `fault` says why there is none; "" if it ended with 0."""

    stdout: str = ""
    fault: str = ""
    is_late: bool = False  # it may have answered later


class Machine:
    """The machine that we run on; with another `root`, a test plays one."""

    def __init__(self, root: Path = Path("/"), environ: Mapping[str, str] | None = None) -> None:
        self.root = root
        self.environ = dict(os.environ if environ is None else environ)

    def path(self, name: str) -> Path:
        return self.root / name.lstrip("/")

    def text(self, name: str) -> str:
        """Returns the stripped text of a kernel file; "" if it is missing or unreadable."""
        try:
            return self.path(name).read_text(errors="replace").strip()
        except OSError:
            return ""

    def names(self, folder: str) -> list[str]:
        """Returns the sorted names in a folder; [] if it does not exist."""
        try:
            return sorted(os.listdir(self.path(folder)))
        except OSError:
            return []

    def overload(self) -> float:
        """Returns the load of the last minute if it exceeds the number of CPUs; else 0."""
        load = self.text("/proc/loadavg").partition(" ")[0]
        value = float(load) if load.replace(".", "", 1).isdigit() else 0.0
        return value if value > (os.cpu_count() or 1) else 0.0

    def program(self, name: str, *, also_beside_python: bool = True) -> str:
        """Returns the path of a program; "" if it is not in our Python's folder or PATH, or their disks are silent."""
        path = self.environ.get("PATH", os.defpath)
        if also_beside_python:
            path = f"{Path(sys.executable).parent}{os.pathsep}{path}"
        try:
            found = TimedReads().read(
                lambda: shutil.which(name, path=path), place=Path(name), within_s=ANSWER_TIMEOUT_S
            )
        except SilentDiskError:
            return ""
        return found or ""

    def ask(self, command: Sequence[str], *, timeout_s: float = ANSWER_TIMEOUT_S) -> Answer:
        """Runs a program that only reads. Blocks for little more than `timeout_s`, even if nothing can end the program.

        A driver or a disk may keep it in the kernel, also before it has started: then it is left.
        """
        # In memory: the disk of temporary files may be what does not answer.
        out_fd, err_fd = os.memfd_create("stdout"), os.memfd_create("stderr")
        with open(out_fd, "w+b") as out, open(err_fd, "w+b") as err:
            late = Answer(fault=f"no answer within {timeout_s:g} s", is_late=True)
            clock = Clock()
            until_s = clock.now_s() + timeout_s

            def start() -> subprocess.Popen[bytes]:
                process = subprocess.Popen(
                    list(command), stdin=subprocess.DEVNULL, stdout=out, stderr=err, env=self.environ
                )
                if clock.now_s() > until_s:
                    _end(process)  # Nobody waits for it any more.
                return process

            try:
                process = TimedReads().read(start, place=command[0], within_s=timeout_s)
            except SilentDiskError:
                return late
            except OSError as error:
                return Answer(fault=f"it cannot be started ({error.strerror})")
            left_s = until_s - clock.now_s()
            if left_s < 0:
                _end(process)  # as `start` may have done: its exit code says nothing
                return late
            try:
                code = process.wait(left_s)
            except subprocess.TimeoutExpired:
                _end(process)
                return late
            stdout, stderr = (_text(file) for file in (out, err))
        if code:
            said = stderr.strip().splitlines()
            return Answer(stdout, said[-1] if said else f"it ended with exit code {code}")
        return Answer(stdout)


def _end(process: subprocess.Popen[bytes]) -> None:
    process.kill()
    with suppress(subprocess.TimeoutExpired):
        process.wait(END_TIMEOUT_S)


def _text(file: BinaryIO) -> str:
    file.seek(0)
    return file.read().decode(errors="replace")
