"""In which control group does all of one user live, and how much may it use there?"""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path

from supervisor.config.user_service import UserShares

DOOR_GROUP = "service"  # for root's own process: a group that divides its resources has no process itself
CPU_PERIOD_US = 100_000
CONTROLLERS = ("memory", "pids", "cpu")
DELEGATED = ("", "cgroup.procs", "cgroup.threads", "cgroup.subtree_control")


def _files(shares: UserShares) -> dict[str, str]:
    """By the names of cgroup v2."""
    return {
        "memory.max": str(int(shares.memory_gib * 2**30)) if shares.memory_gib else "max",
        "pids.max": str(shares.tasks) if shares.tasks else "max",
        "cpu.max": f"{int(shares.cpus * CPU_PERIOD_US)} {CPU_PERIOD_US}" if shares.cpus else f"max {CPU_PERIOD_US}",
    }


class UserCgroups:
    """One group for each user below the service's own, where systemd has delegated that. Never raises."""

    def __init__(self, shares: UserShares, own: Path | None) -> None:
        """`own`: the group of this process, if we may divide it, else None. This process moves one floor down in it."""
        self._shares = shares
        self._own = own
        self.fault = "systemd has delegated none to this service" if own is None else ""
        if own is not None:
            self._divide(own)

    def set_shares(self, shares: UserShares) -> None:
        """For users who are here, too."""
        self._shares = shares
        if self._own is not None and not self.fault:
            for group in self._own.glob("user-*"):
                self._limit(group)

    def of(self, uid: int) -> str:
        """The user's group, made at need, which the user may divide further; "" where there can't be one."""
        if self._own is None or self.fault:
            return ""
        group = self._own / f"user-{uid}"
        try:
            group.mkdir(exist_ok=True)
            for name in DELEGATED:
                os.chown(group / name, uid, -1)
        except OSError as error:
            self.fault = f"{group}: {error.strerror or error}"
            return ""
        self._limit(group)
        return str(group)

    def _divide(self, own: Path) -> None:
        try:
            (own / DOOR_GROUP).mkdir(exist_ok=True)
            (own / DOOR_GROUP / "cgroup.procs").write_text(str(os.getpid()))
        except OSError as error:
            self.fault = f"{own}: {error.strerror or error}"
            return
        for controller in CONTROLLERS:
            with suppress(OSError):  # one that this node, or systemd, does not give us
                (own / "cgroup.subtree_control").write_text(f"+{controller}")

    def _limit(self, group: Path) -> None:
        for name, value in _files(self._shares).items():
            try:
                (group / name).write_text(value)
            except OSError as error:
                if not value.startswith("max"):
                    self.fault = f"{group / name}: {error.strerror or error}"


def delegated_cgroup() -> Path | None:
    """The v2 group of this process, if systemd has left it to the service (Delegate=yes); None: hands off."""
    own = _own_cgroup()
    if own is not None:
        for name in ("trusted.delegate", "user.delegate"):
            with suppress(OSError):
                if os.getxattr(own, name) == b"1":
                    return own
    return None


def _own_cgroup() -> Path | None:
    with suppress(OSError):
        path = next(line[3:] for line in Path("/proc/self/cgroup").read_text().splitlines() if line.startswith("0::"))
        for line in Path("/proc/self/mountinfo").read_text().splitlines():
            left, _, right = line.partition(" - ")
            if right.startswith("cgroup2 "):
                root, point = left.split(" ")[3:5]
                inside = path[len(root) :] if root != "/" and path.startswith(root) else path
                return Path(point) / inside.strip("/")
    return None
