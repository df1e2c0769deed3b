"""What does a command say about a supervisor that does not answer: where it is, and what its process does?"""

from __future__ import annotations

from pathlib import Path

from supervisor.edges.machine.processes import process_table
from supervisor.edges.machine.processes.unresponsive_process import process_state
from supervisor.errors import ExhaustedError


def silence(socket_path: Path, pid: int, why: str) -> str:
    """Returns a sentence with a remedy. `pid` 0: unknown."""
    entry = process_table.look_up(pid) if pid else None
    told = f"cannot ask the supervisor at {socket_path}: {why}"
    if entry is None or entry.has_ended:
        return f"{told}; try again"
    remedy = f"kill -CONT {pid} continues it" if entry.state == "T" else "try again"
    return f"{told}; its process {pid} {process_state(pid)}; {remedy}"


class Silence:
    """The supervisors of this user that did not answer one command, each with its sentence."""

    def __init__(self) -> None:
        self._told: dict[Path, str] = {}

    def add(self, socket_path: Path, sentence: str) -> bool:
        """Returns whether this is news."""
        is_new = socket_path not in self._told
        self._told.setdefault(socket_path, sentence)
        return is_new

    @property
    def exit_code(self) -> int:
        """Returns the exit code of a list: it says whether something may be missing."""
        return ExhaustedError.exit_code if self._told else 0

    def check(self, what: str) -> None:
        """Raises ExhaustedError if somebody is silent who may know better. `what` completes "cannot …"."""
        if self._told:
            places = " or ".join(map(str, self._told))
            raise ExhaustedError(
                f"cannot {what}: the supervisor at {places}, which may know more, does not answer; try again"
            )
