"""What is systemd asked? A fake systemctl records it. With a real one: tests/deploy/test_users_unit.py."""

from __future__ import annotations

import math
import os
from pathlib import Path

import pytest

from supervisor.config.user_service import UserShares
from supervisor.edges.machine.processes.peer_identity import Identity
from supervisor.edges.users import user_units
from supervisor.edges.users.user_folders import Record, UserFolders
from supervisor.edges.users.user_supervisors import end_timeout_s
from supervisor.edges.users.user_units import UserUnits
from supervisor.errors import NotNowError

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="only root makes folders for somebody else")

ALICE = Identity(54321, 54321, (54330,))
INSTANCE = ALICE.name.replace(".", "-")
# It leaves a file for each property, as the real one does.
SYSTEMCTL = """#!/bin/sh
echo "$*" >> {0}/asked
[ "$3" = set-property ] || exit 0
folder={0}/control/$5.d
mkdir -p $folder
shift 5
for property; do : > "$folder/50-${{property%%=*}}.conf"; done
"""
ASKED = "--quiet --no-ask-password"


@pytest.fixture
def asked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Returns a file with a line for each call of systemctl."""
    systemctl = tmp_path / "systemctl"
    systemctl.write_text(SYSTEMCTL.format(tmp_path))
    systemctl.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=":")
    monkeypatch.setattr(user_units, "SET_BEFORE", tmp_path / "control")
    return tmp_path / "asked"


@pytest.fixture
def folders(tmp_path: Path) -> UserFolders:
    made = UserFolders(tmp_path / "run", tmp_path / "state")
    made.make()
    return made


def test_a_unit_is_started_after_what_it_is_to_be_was_noted(asked: Path, folders: UserFolders):
    folder = folders.of(ALICE)
    record = UserUnits("holdfast-user@", UserShares()).start(ALICE, (("NOFILE", 1, 2),), folder, ["--log-gib-max", "3"])
    assert asked.read_text() == f"{ASKED} start holdfast-user@{INSTANCE}.service\n"
    assert record == folder.record()
    assert (record.identity, record.limits, record.pid) == (ALICE, (("NOFILE", 1, 2),), 0)
    places = ("--socket-dir", str(folder.own), "--state-dir", str(folder.state_dir))
    assert record.arguments == (*places, "--log-gib-max", "3")
    folder.note_process(12, 34, {})
    assert [(each.pid, each.started_ticks) for each in folders.recorded()] == [(12, 34)]


def test_the_slice_of_a_user_has_the_limits_and_a_reload_changes_them(asked: Path, folders: UserFolders):
    units = UserUnits("holdfast-user@", UserShares(memory_gib=1.5, cpus=2.5))
    units.start(ALICE, (), folders.of(ALICE), [])
    units.set_shares(UserShares(memory_gib=1.5, tasks=7), [54321, 54321])
    limit = f"{ASKED} set-property --runtime holdfast-users-54321.slice"
    assert asked.read_text().splitlines() == [
        f"{limit} MemoryMax=1610612736 CPUQuota=250%",
        f"{ASKED} start holdfast-user@{INSTANCE}.service",
        f"{limit} MemoryMax=1610612736 TasksMax=7 CPUQuota=",
    ]


def test_a_restart_and_a_later_start_take_back_what_is_no_longer_set(asked: Path, folders: UserFolders):
    UserUnits("holdfast-user@", UserShares(memory_gib=1.5)).start(ALICE, (), folders.of(ALICE), [])
    asked.unlink()
    restarted = UserUnits("holdfast-user@", UserShares())
    restarted.set_shares(UserShares(), [54321, 54322])
    restarted.start(ALICE, (), folders.of(ALICE), [])
    limit = f"{ASKED} set-property --runtime holdfast-users-54321.slice"
    assert asked.read_text().splitlines() == [
        f"{limit} MemoryMax=infinity",
        f"{limit} MemoryMax=infinity",
        f"{ASKED} start holdfast-user@{INSTANCE}.service",
    ]


def test_what_systemd_says_is_the_reason(tmp_path: Path, folders: UserFolders, monkeypatch: pytest.MonkeyPatch):
    systemctl = tmp_path / "systemctl"
    systemctl.write_text("#!/bin/sh\necho 'Unit holdfast-user@.service not found.' >&2; exit 5\n")
    systemctl.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=":")
    units = UserUnits("holdfast-user@", UserShares())
    with pytest.raises(NotNowError) as caught:
        units.start(ALICE, (), folders.of(ALICE), [])
    assert str(caught.value) == (
        "cannot start the supervisor of user id 54321: Unit holdfast-user@.service not found.; "
        f"see journalctl -u holdfast-user@{INSTANCE}.service"
    )


def test_a_supervisor_is_killed_by_systemd_and_never_started_again_if_all_is_to_end(asked: Path):
    units = UserUnits("holdfast-user@", UserShares())
    units.kill(Record(ALICE, ()))
    units.kill_all(Record(ALICE, ()))
    unit = f"holdfast-user@{INSTANCE}.service"
    assert asked.read_text().splitlines() == [
        f"{ASKED} kill --kill-who=main --signal=SIGKILL {unit}",
        f"{ASKED} stop --no-block {unit}",
        f"{ASKED} kill --kill-who=all --signal=SIGKILL {unit}",
    ]


@pytest.mark.parametrize(
    ("shown", "expected_s", "jobs_s"),
    [
        ("1min 30s", 90, 70),
        ("11min 40s", 700, 680),
        ("1h 1.5s", 3601.5, 3580),
        ("infinity", math.inf, 3580),
        ("10s", 10, 5),
        ("soon", None, 70),
        ("", None, 70),
    ],
)
def test_the_time_that_jobs_have_at_the_end_follows_the_unit_of_the_service(
    asked: Path, monkeypatch: pytest.MonkeyPatch, shown: str, expected_s: float | None, jobs_s: float
):
    """Jobs with a long --workers-stop-timeout were killed after 70 s, whatever TimeoutStopSec= was."""
    cgroups = asked.parent / "cgroup"
    cgroups.write_text("4:memory:/other.service\n0::/machine.slice/system.slice/holdfast.service\n")
    monkeypatch.setattr(user_units, "OWN_CGROUPS", cgroups)
    (asked.parent / "systemctl").write_text(f"#!/bin/sh\necho \"$*\" >> {asked}\necho '{shown}'\n")
    assert user_units.stop_timeout_s() == expected_s
    assert asked.read_text() == f"{ASKED} show --property=TimeoutStopUSec --value holdfast.service\n"
    assert end_timeout_s(user_units.stop_timeout_s()) == jobs_s


def test_a_service_that_no_unit_runs_has_no_such_limit(asked: Path, monkeypatch: pytest.MonkeyPatch):
    cgroups = asked.parent / "cgroup"
    cgroups.write_text("0::/user.slice/user-0.slice/session-3.scope\n")
    monkeypatch.setattr(user_units, "OWN_CGROUPS", cgroups)
    assert user_units.stop_timeout_s() is None
    assert not asked.exists()


def test_a_kill_that_systemd_refuses_is_no_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("PATH", str(tmp_path))
    UserUnits("holdfast-user@", UserShares()).kill_all(Record(ALICE, ()))


def test_a_first_start_that_takes_too_long_leaves_no_unit_that_nobody_knows(
    asked: Path, folders: UserFolders, monkeypatch: pytest.MonkeyPatch
):
    """It would begin to serve at a socket that is removed with its record; one that has jobs is waited for."""
    units = UserUnits("holdfast-user@", UserShares())
    (asked.parent / "systemctl").write_text(f'#!/bin/sh\necho "$*" >> {asked}\n[ "$3" != start ] || exec sleep 60\n')
    monkeypatch.setattr(user_units, "SYSTEMCTL_TIMEOUT_S", 0.2)
    start, stop = (f"{ASKED} {verb} holdfast-user@{INSTANCE}.service" for verb in ("start", "stop --no-block"))
    for expected in ([start, stop], [start]):
        with pytest.raises(NotNowError):
            units.start(ALICE, (), folders.of(ALICE), [])
        assert asked.read_text().splitlines() == expected
        asked.unlink()
