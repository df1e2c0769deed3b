"""Under which conditions were the figures taken? Machine, versions, load; nothing that names a person or a place."""

from __future__ import annotations

import importlib.metadata
import os
import platform
import subprocess
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path

from supervisor import __version__

LOAD_QUIET = 0.5  # of runs that did not measure what others used
OTHERS_QUIET = 0.1  # cores


@dataclass(slots=True)
class Conditions:
    date: str
    commit: str
    processor: str
    cpus: int
    memory_gib: float
    kernel: str
    python: str
    versions: dict[str, str] = field(default_factory=dict[str, str])
    load_before: float = 0.0  # the last minute's load, in which an earlier run of the bench counts too
    others_cores: float | None = None  # CPU that processes which are not the bench's used, and what the host kept back
    took_s: float = 0.0
    quick: bool = False
    only: list[str] = field(default_factory=list[str])
    absent: dict[str, str] = field(default_factory=dict[str, str])  # subject → why it was not measured

    @classmethod
    def now(cls) -> Conditions:
        memory_bytes = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
        return cls(
            date=datetime.now(UTC).strftime("%Y-%m-%d %H:%M UTC"),
            commit=_commit(),
            processor=_processor(),
            cpus=len(os.sched_getaffinity(0)),
            memory_gib=round(memory_bytes / 2**30, 1),
            kernel=platform.release(),
            python=platform.python_version(),
            versions={"holdfast": __version__, "torch": _version("torch")},
            load_before=os.getloadavg()[0],
        )

    @property
    def is_quiet(self) -> bool:
        if self.others_cores is None:
            return self.load_before <= LOAD_QUIET
        return self.others_cores <= OTHERS_QUIET

    @property
    def others(self) -> str:
        """Returns what is known of the CPU that was not the bench's."""
        if self.others_cores is None:
            return f"load before {self.load_before:.2f}"
        return f"{self.others_cores:.2f} cores"


def _version(distribution: str) -> str:
    try:
        return importlib.metadata.version(distribution)
    except importlib.metadata.PackageNotFoundError:
        return "not installed"


def _processor() -> str:
    for line in Path("/proc/cpuinfo").read_text().splitlines():
        if line.startswith("model name"):
            return line.partition(":")[2].strip()
    return platform.machine()


def _commit() -> str:
    """Returns the measured commit, with "+" if the tree has other changes; "" outside a repository."""
    here = Path(__file__).parent
    try:
        commit = subprocess.run(
            ["git", "describe", "--always", "--dirty=+", "--exclude=*"],
            check=True,
            capture_output=True,
            text=True,
            cwd=here,
        )
    except (OSError, subprocess.CalledProcessError):
        return ""
    return commit.stdout.strip()
