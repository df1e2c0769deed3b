"""Which folder has a node's part of the job's own etcd, and what removes it?"""

from __future__ import annotations

import errno
import os
from pathlib import Path

import anyio
import pytest

from supervisor.core.etcd_membership import Published
from supervisor.edges.peers.election import member_folder
from supervisor.edges.peers.election.member_folder import LOCK, UNUSED_S, MemberFolder, Membership

MEMBERSHIP = Membership(7, 0, 8, at_endpoint=True)
KNOWN = Published(5, ("10.0.0.1:2379",), ("n1",))


def _made(place: Path, job_id: str = "job", node: str = "n1", *, goes_on: bool = False) -> MemberFolder:
    return MemberFolder(place, job_id, node, goes_on=goes_on)


async def test_the_next_supervisor_finds_what_this_one_knew_and_a_new_run_does_not(tmp_path: Path):
    first = _made(tmp_path)
    await first.keep(MEMBERSHIP)
    await first.keep_known(KNOWN)
    first.close()
    bare = _made(tmp_path, goes_on=True)
    assert bare.kept is None  # without its data, it is no member any more
    (bare.path / "data").mkdir()
    bare.close()
    second = _made(tmp_path, goes_on=True)
    for name in ("member", "members"):
        (second.path / name).unlink()
        os.mkfifo(second.path / name)  # The disk hangs from now on: whoever opens these waits for a writer.
    assert (second.kept, second.known) == (MEMBERSHIP, KNOWN)
    second.close()
    third = _made(tmp_path)
    assert (third.kept, third.known) == (None, None)
    assert [each.name for each in third.path.iterdir()] == [LOCK]
    await third.remove()
    assert list((tmp_path / "etcd").iterdir()) == []


async def test_nodes_of_one_job_that_share_a_home_have_folders_of_their_own(tmp_path: Path):
    one, other = _made(tmp_path), _made(tmp_path, node="n2")
    assert one.path != other.path
    assert one.path.stat().st_mode & 0o077 == 0
    await one.remove()
    assert other.path.is_dir()
    other.close()


def test_a_folder_that_another_process_uses_is_refused(tmp_path: Path):
    one = _made(tmp_path)
    with pytest.raises(OSError, match="another run of this job on this node uses it"):
        _made(tmp_path)
    one.close()
    _made(tmp_path).close()


def test_what_killed_runs_have_left_is_removed_once_nobody_comes_back(tmp_path: Path):
    used, new, old = (_made(tmp_path, job_id) for job_id in ("used", "new", "old"))
    for each in (used, new, old):
        (each.path / "data").mkdir()
    for each in (used, old):
        past_s = (each.path / LOCK).stat().st_mtime - UNUSED_S - 1.0
        os.utime(each.path / LOCK, (past_s, past_s))
    new.close()
    old.close()
    _made(tmp_path).close()
    assert used.path.is_dir()
    assert new.path.is_dir()
    assert not old.path.parent.exists()
    used.close()


async def test_a_folder_in_use_stays_where_locks_hold_on_one_node_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    """As on BeeGFS: another node gets the lock, too, and only the file's time says that the folder is in use."""

    def granted(descriptor: int, *, or_unknown: bool = True) -> bool:
        return True

    used = _made(tmp_path, "used")
    past_s = (used.path / LOCK).stat().st_mtime - UNUSED_S - 1.0
    os.utime(used.path / LOCK, (past_s, past_s))
    async with anyio.create_task_group() as tasks:
        with monkeypatch.context() as soon:
            soon.setattr(member_folder, "UNUSED_S", 0.1)
            tasks.start_soon(used.stay_in_use)
            with anyio.fail_after(30.0):
                while (used.path / LOCK).stat().st_mtime == past_s:  # noqa: ASYNC110 - a file tells nobody
                    await anyio.sleep(0.01)
        tasks.cancel_scope.cancel()
    monkeypatch.setattr(member_folder, "_locked", granted)
    _made(tmp_path).close()
    assert used.path.is_dir()
    used.close()


async def test_a_disk_that_hangs_holds_up_nobody_who_keeps_something_on_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(member_folder, "WRITE_TIMEOUT_S", 0.1)
    folder = _made(tmp_path)
    hangs = folder.path / "member.new"
    os.mkfifo(hangs)  # Opening it for writing waits for a reader.
    await folder.keep(MEMBERSHIP)
    await folder.keep_known(KNOWN)
    assert not (folder.path / "members").exists(), "an earlier write is stuck"
    os.close(os.open(hangs, os.O_RDONLY | os.O_NONBLOCK))
    await folder.remove()


async def test_data_that_can_not_be_removed_ends_no_job(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
):
    folder = _made(tmp_path)
    await folder.keep(MEMBERSHIP)
    (folder.path / "data").mkdir()

    def unlink(path: Path, missing_ok: bool = False) -> None:
        raise OSError(errno.EROFS, os.strerror(errno.EROFS), str(path))

    with monkeypatch.context() as read_only:
        read_only.setattr(Path, "unlink", unlink)
        await folder.remove_data()
    assert "cannot remove what the job's own etcd has left" in caplog.text
    assert "Read-only file system" in caplog.text
    folder.close()
    again = _made(tmp_path, goes_on=True)
    assert again.kept is None
    await again.remove()
