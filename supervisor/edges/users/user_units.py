"""How does systemd start the supervisor of one user, and how are the resources of all the user's processes limited?

Each supervisor gets its own unit, an instance of a template, in a slice of the user's. So the service that requests it
can give up nearly all rights: jobs are not its descendants.
"""

from __future__ import annotations

import logging
import math
import re
import subprocess
from collections.abc import Iterable, Sequence
from pathlib import Path

from supervisor.config.user_service import UserShares
from supervisor.edges.machine.processes.peer_identity import Identity, Limits
from supervisor.edges.users.user_folders import Record, UserFolder
from supervisor.errors import NotNowError

SYSTEMCTL_TIMEOUT_S = 60.0  # for a supervisor that starts on a busy node
SLICE = "holdfast-users"
NO_LIMIT = "infinity"
SHOW_TIMEOUT_S = 5.0
OWN_CGROUPS = Path("/proc/self/cgroup")
SPAN_UNITS_S = {
    "us": 1e-6, "ms": 1e-3, "s": 1, "min": 60, "h": 3600, "d": 86_400, "w": 604_800, "month": 2_629_800, "y": 31_557_600
}  # fmt: skip
SET_BEFORE = Path("/run/systemd/system.control")  # where `systemctl set-property --runtime` writes

_log = logging.getLogger("holdfast.users")


class UserUnits:
    """The units of users' supervisors, as root's process sees them."""

    def __init__(self, template: str, shares: UserShares) -> None:
        """`template`: holdfast-user@"""
        self._template = template
        self._shares = shares

    def start(self, identity: Identity, limits: Limits, folder: UserFolder, arguments: Sequence[str]) -> Record:
        """Starts a unit; returns once it serves. Blocks. Raises HoldfastError.

        The record for `unit_start` is in a folder of root's.
        """
        unit = self.name_of(identity)
        folder.make(identity)
        places = ("--socket-dir", str(folder.own), "--state-dir", str(folder.state_dir))
        former = folder.record()
        variables = former.variables if former is not None else {}  # Else `unit_start` looks them up.
        try:
            folder.note(Record(identity, limits, arguments=(*places, *arguments), variables=variables))
            self._limit(identity.uid)
            _systemctl("start", unit)
        except (OSError, subprocess.SubprocessError) as error:
            if former is None:  # It has no jobs, and must not begin to serve after its record is gone.
                self._try("stop", "--no-block", unit)
            raise NotNowError(
                f"cannot start the supervisor of user id {identity.uid}: {_reason(error)}; see journalctl -u {unit}"
            ) from error
        return folder.record() or Record(identity, limits)

    def kill(self, record: Record) -> None:
        """Kills the supervisor; its jobs continue. Blocks. Never raises."""
        self._kill(record.identity, "main")

    def kill_all(self, record: Record) -> None:
        """Kills all processes of the unit, and lets systemd start none again. Blocks. Never raises."""
        self._try("stop", "--no-block", self.name_of(record.identity))
        self._kill(record.identity, "all")

    def _kill(self, identity: Identity, which: str) -> None:
        self._try("kill", f"--kill-who={which}", "--signal=SIGKILL", self.name_of(identity))

    def _try(self, *arguments: str) -> None:
        try:
            _systemctl(*arguments)
        except (OSError, subprocess.SubprocessError) as error:
            _log.error("systemctl %s: %s", " ".join(arguments), _reason(error))

    def set_shares(self, shares: UserShares, uids: Iterable[int]) -> None:
        """Applies the limits to these users now, and to others when they come. Blocks. Never raises."""
        self._shares = shares
        for uid in sorted(set(uids)):
            try:
                self._limit(uid)
            except (OSError, subprocess.SubprocessError) as error:
                _log.error("cannot limit what user id %s uses: %s", uid, _reason(error))

    def name_of(self, identity: Identity) -> str:
        return f"{self._template}{instance_of(identity)}.service"

    def _limit(self, uid: int) -> None:
        if properties := _properties(self._shares, f"{SLICE}-{uid}.slice"):
            _systemctl("set-property", "--runtime", f"{SLICE}-{uid}.slice", *properties)


def instance_of(identity: Identity) -> str:
    """Returns the instance name. Its dash is a level of systemd's slices: all groups of a user share one slice."""
    return identity.name.replace(".", "-", 1)


def _properties(shares: UserShares, slice_name: str) -> list[str]:
    """Returns the properties of a slice that are set, and those that an earlier call has set.

    A limit never set here may be set by a file of the slice. What a call has set is in force until the next reboot, and
    systemd shows it by a file.
    """
    rows = (
        ("MemoryMax", shares.memory_gib, str(int(shares.memory_gib * 2**30)), NO_LIMIT),
        ("TasksMax", shares.tasks, str(shares.tasks), NO_LIMIT),
        ("CPUQuota", shares.cpus, f"{shares.cpus * 100:g}%", ""),
    )
    folder = SET_BEFORE / f"{slice_name}.d"
    return [
        f"{name}={text if limit else without}"
        for name, limit, text, without in rows
        if limit or (folder / f"50-{name}.conf").exists()
    ]


def stop_timeout_s() -> float | None:
    """Returns TimeoutStopSec= of the unit that this process belongs to; None: no unit, or unknown. Blocks."""
    try:
        lines = OWN_CGROUPS.read_text().splitlines()
        groups = [line for line in lines if line.startswith("0::") or ":name=systemd:" in line]
        units = [unit for unit in (line.rpartition("/")[2] for line in groups) if unit.endswith(".service")]
        if not units:
            return None
        return _span_s(_systemctl("show", "--property=TimeoutStopUSec", "--value", units[0], timeout_s=SHOW_TIMEOUT_S))
    except (OSError, ValueError, subprocess.SubprocessError) as error:
        _log.warning("cannot read TimeoutStopSec= of this service: %s", error)
        return None


def _span_s(text: str) -> float:
    """Returns a time as systemctl shows it, such as "11min 40s". Raises ValueError."""
    if text.strip() == NO_LIMIT:
        return math.inf
    parts = [re.fullmatch(r"([0-9.]+)([a-z]+)", part) for part in text.split()]
    if not parts or not all(part and part[2] in SPAN_UNITS_S for part in parts):
        raise ValueError(f"systemctl shows {text!r}")
    return sum(float(part[1]) * SPAN_UNITS_S[part[2]] for part in parts if part)


def _systemctl(*arguments: str, timeout_s: float | None = None) -> str:
    """Runs systemctl and returns what it prints. Raises OSError, or SubprocessError if systemd refuses."""
    return subprocess.run(
        ["systemctl", "--quiet", "--no-ask-password", *arguments],
        check=True, stdin=subprocess.DEVNULL, capture_output=True, timeout=timeout_s or SYSTEMCTL_TIMEOUT_S,
    ).stdout.decode()  # fmt: skip


def _reason(error: OSError | subprocess.SubprocessError) -> str:
    if isinstance(error, subprocess.CalledProcessError):
        said: bytes = error.stderr
        return " ".join(said.decode(errors="replace").split()) or f"systemctl ended with {error.returncode}"
    return str(error)
