"""Who owns which folder, and what happens if something is in the way?"""

from __future__ import annotations

import errno
import os
import stat
from pathlib import Path

import pytest

from supervisor.edges.machine.processes.peer_identity import Identity
from supervisor.edges.users.user_folders import Record, UserFolders
from supervisor.errors import ConfigurationError, ExhaustedError

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="only root makes folders for somebody else")

ALICE = Identity(54321, 54321, (54330,))


@pytest.fixture
def folders(tmp_path: Path) -> UserFolders:
    made = UserFolders(tmp_path / "run", tmp_path / "state")
    made.make()
    return made


def _owner_and_mode(path: Path) -> tuple[int, int]:
    found = path.lstat()
    return found.st_uid, stat.S_IMODE(found.st_mode)


def test_a_user_owns_the_inner_folder_alone(folders: UserFolders):
    folder = folders.of(ALICE)
    folder.make(ALICE)
    assert _owner_and_mode(folder.own) == (0, 0o700), "nobody has opened it when a file system is mounted there"
    folder.give(ALICE)
    folder.make(ALICE)
    folder.listen().close()
    assert _owner_and_mode(folder.path) == (0, 0o711)
    assert _owner_and_mode(folder.own) == (54321, 0o700)
    assert _owner_and_mode(folder.state_dir) == (54321, 0o700)
    assert _owner_and_mode(folder.handover_socket) == (0, 0o600)


def test_users_with_other_groups_have_other_folders_and_one_state(folders: UserFolders):
    other = Identity(54321, 54321, ())
    assert folders.of(ALICE).path != folders.of(other).path
    assert folders.of(ALICE).state_dir == folders.of(other).state_dir


@pytest.mark.parametrize("in_the_way", ["own", "state"])
def test_a_link_in_the_place_of_a_folder_is_not_followed(folders: UserFolders, in_the_way: str, tmp_path: Path):
    """Root must change neither the owner nor the mode of its target, even if that belongs to the user."""
    folder = folders.of(ALICE)
    folder.path.mkdir()
    target = tmp_path / "elsewhere"
    target.mkdir(mode=0o750)
    os.chown(target, 54321, 54321)
    (folder.own if in_the_way == "own" else folder.state_dir).symlink_to(target)
    with pytest.raises(ConfigurationError, match="remove what is in its place"):
        folder.make(ALICE)
    assert _owner_and_mode(target) == (54321, 0o750)


def test_a_full_disk_is_no_wrong_configuration(folders: UserFolders, monkeypatch: pytest.MonkeyPatch):
    """After that, systemd would not start the service again."""

    def mkdir(*_: object, **__: object) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr("pathlib.Path.mkdir", mkdir)
    with pytest.raises(ExhaustedError, match="No space left on device; free space on that disk"):
        folders.make()
    with pytest.raises(ExhaustedError, match="No space left on device; free space on that disk"):
        folders.of(ALICE).make(ALICE)


def test_a_folder_of_another_user_is_not_taken(folders: UserFolders):
    folder = folders.of(ALICE)
    folder.make(ALICE)
    os.chown(folder.own, 54322, 54322)
    with pytest.raises(ConfigurationError, match="it belongs to user id 54322, not 54321"):
        folder.make(ALICE)


def test_a_service_folder_of_somebody_else_is_refused(tmp_path: Path):
    (tmp_path / "run").mkdir()
    os.chown(tmp_path / "run", 54321, 54321)
    with pytest.raises(ConfigurationError, match="it must be a directory of root"):
        UserFolders(tmp_path / "run", tmp_path / "state").make()


def test_records_are_found_again_until_they_are_forgotten(folders: UserFolders):
    folder = folders.of(ALICE)
    folder.make(ALICE)
    record = Record(ALICE, (("NOFILE", 5, 7),), pid=1, started_ticks=2)
    folder.note(record)
    assert list(folders.recorded()) == [record]
    folder.forget()
    assert list(folders.recorded()) == []


def test_a_record_of_another_folder_counts_for_nothing(folders: UserFolders):
    folder = folders.of(ALICE)
    folder.make(ALICE)
    folder.note(Record(Identity(54322, 54322, ()), ()))
    assert list(folders.recorded()) == []
