"""What is written where, and what becomes of a service without control groups. Under a real systemd: tests/deploy."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from supervisor.config.user_service import UserShares
from supervisor.edges.users.user_cgroups import DELEGATED, UserCgroups, delegated_cgroup

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="only root gives a group to somebody else")


def _group(path: Path) -> Path:
    """As the kernel makes it."""
    path.mkdir(exist_ok=True)
    for name in (*filter(None, DELEGATED), "memory.max", "pids.max", "cpu.max"):
        (path / name).touch()
    return path


def test_a_user_gets_a_group_with_limits_and_may_divide_it(tmp_path: Path):
    own = _group(tmp_path / "own")
    _group(own / "service")
    _group(own / "user-54321")
    groups = UserCgroups(UserShares(memory_gib=1.5, tasks=100, cpus=2.5), own)
    group = Path(groups.of(54321))
    assert group == own / "user-54321"
    assert {name: (group / name).read_text() for name in ("memory.max", "pids.max", "cpu.max")} == {
        "memory.max": "1610612736",
        "pids.max": "100",
        "cpu.max": "250000 100000",
    }
    assert [(group / name).stat().st_uid for name in DELEGATED] == [54321] * len(DELEGATED)
    assert (group / "memory.max").stat().st_uid == 0  # a user can't raise the own limits
    assert (own / "service" / "cgroup.procs").read_text() == str(os.getpid())
    assert groups.fault == ""


def test_new_limits_hold_for_users_who_are_there(tmp_path: Path):
    own = _group(tmp_path / "own")
    _group(own / "service")
    _group(own / "user-54321")
    groups = UserCgroups(UserShares(), own)
    groups.of(54321)
    groups.set_shares(UserShares(tasks=7))
    assert (own / "user-54321" / "pids.max").read_text() == "7"


def test_without_groups_users_are_served_all_the_same(tmp_path: Path):
    assert UserCgroups(UserShares(), None).of(54321) == ""
    broken = UserCgroups(UserShares(), tmp_path / "not-there")
    assert broken.of(54321) == ""
    assert "not-there" in broken.fault


def test_a_group_that_nobody_has_delegated_is_left_alone():
    assert delegated_cgroup() is None  # the tests' own
