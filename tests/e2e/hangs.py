"""What do tests of hangs check? The verdict, its moment, and the evidence."""

from __future__ import annotations

import os
from collections.abc import Generator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import cast

from tests.e2e.launch import SCRIPTS, Launch

MONITORED = str(SCRIPTS / "monitored.py")
BY_FRAMES = {"HOLDFAST_NO_SHARED_PAGE": "1"}
BUSY_S = 2.0  # delays of a busy machine; measured values are reported beside it
EARLY_S = 0.001  # the wall clock may be slewed by this much against the monotonic one during a test
CGROUPS = Path("/sys/fs/cgroup")


def told(launch: Launch, kind: str) -> list[dict[str, object]]:
    return [event for event in launch.events() if event["kind"] == kind]


def at_unix_s(event: dict[str, object]) -> float:
    return datetime.fromisoformat(str(event["at"])).timestamp()


def overshoot_s(event: dict[str, object], since: dict[str, object], limit_s: float) -> float:
    """Returns the delay of the verdict after the limit; negative: early. `since`: traced just before the silence."""
    return at_unix_s(event) - float(str(since["at_unix"])) - limit_s


@dataclass(frozen=True)
class Verdict:
    """The single hang of a job."""

    event: dict[str, object]
    stacks: dict[str, object]

    @property
    def reason(self) -> str:
        return str(self.event["reason"])

    @property
    def groups(self) -> list[tuple[str, str]]:
        """Returns (ranks, stack), the unusual ones first."""
        return [(name, text) for name, text in self.details.items() if name.startswith("rank")]

    @property
    def details(self) -> dict[str, str]:
        return cast("dict[str, str]", self.stacks["details"])


def verdict(launch: Launch) -> Verdict:
    (event,) = told(launch, "hang_detected")
    (stacks,) = told(launch, "stacks_collected")
    return Verdict(event, stacks)


@contextmanager
def v1_cgroup(controller: str, name: str) -> Generator[Path]:
    """Makes a cgroup in a v1 hierarchy, emptied and removed at the end."""
    folder = CGROUPS / controller / name
    folder.mkdir()
    try:
        yield folder
    finally:
        with suppress(OSError):
            (folder / "freezer.state").write_text("THAWED")
        parent = folder.parent / "cgroup.procs"
        for pid in (folder / "cgroup.procs").read_text().split():
            with suppress(OSError):
                parent.write_text(pid)
        folder.rmdir()


def has_v1(controller: str) -> bool:
    folder = CGROUPS / controller
    return (folder / "cgroup.procs").exists() and os.access(folder, os.W_OK)
