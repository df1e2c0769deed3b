"""Does a file or folder appear whole or not at all, and only while this rank may write it?"""

from __future__ import annotations

import errno
import math
import os
import re
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.worker_client.fake_supervisor import FakeSupervisor
from worker_client import LeaseLostError, commit, commit_record, committing, fencing_token, fencing_tokens, lease_check
from worker_client.rank_monitor_client import RankMonitorClient

EPOCH = 1_800_000_000_000


@pytest.fixture(autouse=True)
def _no_iteration() -> Iterator[None]:  # pyright: ignore[reportUnusedFunction]
    before = fencing_tokens.iteration()
    fencing_tokens.begin_iteration(0, 0)
    yield
    fencing_tokens.begin_iteration(*before)


@pytest.fixture
def leased(supervisor: FakeSupervisor, monkeypatch: pytest.MonkeyPatch) -> FakeSupervisor:
    monkeypatch.setenv("HOLDFAST_FENCING_EPOCH", str(EPOCH))
    monkeypatch.setattr(lease_check, "WAIT_S", 0.3)
    supervisor.lease_s = math.inf
    return supervisor


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """Returns a path in a folder of its own."""
    (tmp_path / "checkpoints").mkdir()
    return tmp_path / "checkpoints" / "last.pt"


def write(path: Path, text: str, then: Callable[[], object] = lambda: None) -> None:
    """Commits the text. `then` runs in the block, after the text was written."""
    with commit(path) as temporary:
        temporary.write_text(text)
        then()


def write_folder(path: Path, then: Callable[[], object]) -> None:
    """Commits a folder of two files. `then` runs between the two."""
    with commit(path) as temporary:
        temporary.mkdir()
        (temporary / "shard-0").touch()
        then()
        (temporary / "shard-1").touch()


def left_beside(path: Path) -> list[str]:
    return sorted(each.name for each in path.parent.iterdir() if each != path)


# --- whole or not at all -------------------------------------------------------------------------------------------


@pytest.mark.usefixtures("no_supervisor")
def test_without_a_supervisor_a_file_is_replaced_whole_and_nothing_is_left(path: Path):
    assert fencing_token() == 0
    write(path, "10")
    with commit(str(path)) as temporary:
        assert temporary.parent == path.parent
        assert temporary.name.endswith("last.pt"), "writers that look at the ending find it"
        temporary.write_text("40")
        assert path.read_text() == "10"
    assert path.read_text() == "40"
    assert left_beside(path) == []


@pytest.fixture
def no_supervisor(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("HOLDFAST_FENCING_EPOCH", raising=False)


@pytest.mark.usefixtures("no_supervisor")
@pytest.mark.parametrize("before", [None, [], ["old", "shard-0"]])
@pytest.mark.parametrize("can_exchange", [True, False])
def test_a_folder_is_replaced_whole(
    path: Path, before: list[str] | None, can_exchange: bool, monkeypatch: pytest.MonkeyPatch
):
    if before is not None:
        path.mkdir()
        for name in before:
            (path / name).write_text("before")
    if not can_exchange:  # as on NFS

        def cannot(one: Path, other: Path) -> bool:
            return False

        monkeypatch.setattr(committing, "_exchange", cannot)
    with commit(path) as temporary:
        (temporary / "deep").mkdir(parents=True)
        (temporary / "shard-0").write_text("now")
        (temporary / "deep" / "link").symlink_to("nowhere")
    assert sorted(each.name for each in path.iterdir()) == ["deep", "shard-0"]
    assert (path / "shard-0").read_text() == "now"
    assert left_beside(path) == []


@pytest.mark.usefixtures("no_supervisor")
def test_an_exception_between_the_two_renames_leaves_what_was_there(path: Path, monkeypatch: pytest.MonkeyPatch):
    """As the script's own handler of SIGTERM raises it, where a file system cannot exchange two folders."""
    path.mkdir()
    (path / "shard-0").write_text("before")
    rename = Path.rename

    def cannot(one: Path, other: Path) -> bool:
        return False

    def rename_then_exit(self: Path, target: Path) -> Path:
        there = rename(self, target)
        if self == path:
            raise SystemExit(143)
        return there

    monkeypatch.setattr(committing, "_exchange", cannot)
    monkeypatch.setattr(Path, "rename", rename_then_exit)

    def write_folder() -> None:
        with commit(path) as temporary:
            temporary.mkdir()
            (temporary / "shard-0").write_text("now")

    with pytest.raises(SystemExit):
        write_folder()
    assert (path / "shard-0").read_text() == "before"
    assert left_beside(path) == []


@pytest.mark.usefixtures("no_supervisor")
def test_an_exception_in_the_block_changes_nothing(path: Path):
    write(path, "10")

    def interrupt() -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        write_folder(path, interrupt)
    assert path.read_text() == "10"
    assert left_beside(path) == []


def test_a_block_that_writes_nothing_is_a_mistake(leased: FakeSupervisor, path: Path):
    with pytest.raises(FileNotFoundError, match="there is nothing at the temporary path"), commit(path):
        pass


@pytest.mark.usefixtures("no_supervisor")
def test_a_file_takes_no_folders_place(path: Path):
    (path / "deep").mkdir(parents=True)
    with pytest.raises(IsADirectoryError):
        write(path, "40")
    assert (path / "deep").is_dir()
    assert left_beside(path) == []


@pytest.mark.usefixtures("no_supervisor")
def test_a_folder_takes_no_files_place(path: Path):
    path.write_text("old")
    told = "a file is there, and a folder was written; remove it first"
    with pytest.raises(NotADirectoryError, match=told), commit(path) as temporary:
        temporary.mkdir()
    assert path.read_text() == "old"
    assert os.listdir(path.parent) == [path.name]


@pytest.mark.parametrize("given", ["", ".", "..", "/", "{here}", "../{name}/"])
def test_the_working_folder_is_never_replaced(path: Path, given: str, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.chdir(path.parent)
    path.write_text("precious")
    named = given.format(here=path.parent, name=path.parent.name)
    told = "it is the working folder, or holds it"
    with pytest.raises(ValueError, match=told), commit(named) as temporary:
        temporary.mkdir()
    assert path.read_text() == "precious"


@pytest.mark.usefixtures("no_supervisor")
def test_a_device_or_pipe_is_never_replaced(path: Path):
    """Root would take /dev/null from the whole node."""
    os.mkfifo(path)
    with pytest.raises(OSError, match="a device, a pipe or a socket is there, and would be replaced"), commit(path):
        pytest.fail("the block has begun")
    assert path.is_fifo()
    assert left_beside(path) == []


@pytest.mark.usefixtures("no_supervisor")
def test_a_link_is_replaced_and_what_it_leads_to_stays(path: Path):
    path.symlink_to(os.devnull)
    write(path, "40")
    assert path.read_text() == "40"
    assert not path.is_symlink()
    assert Path(os.devnull).is_char_device()


def test_a_path_that_cant_be_written_is_refused_before_the_work(path: Path):
    for place, told in (
        (path.with_name("n" * 213), "its name is longer than 212 bytes; shorten it"),
        (path / "a" / "b", f"there is no folder {path / 'a'}; make it first"),
    ):
        with pytest.raises(OSError, match=re.escape(told)), commit(place):
            raise AssertionError("the block must not begin")
    write(path.with_name("n" * 212), "as long as it may be")


def test_a_script_whose_working_folder_is_gone_commits_by_an_absolute_path(
    path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    (gone := tmp_path / "gone").mkdir()
    monkeypatch.chdir(gone)
    gone.rmdir()
    write(path, "whole")
    assert path.read_text() == "whole"


def test_what_is_renamed_and_its_folder_are_on_the_disk(path: Path, monkeypatch: pytest.MonkeyPatch):
    order: list[str] = []
    sync, replace = os.fsync, committing._replace  # pyright: ignore[reportPrivateUsage]

    def note_sync(descriptor: int) -> None:
        order.append(Path(os.readlink(f"/proc/self/fd/{descriptor}")).name.split("-part-")[-1])
        sync(descriptor)

    def note_rename(temporary: Path, place: Path, token: int) -> None:
        order.append("rename")
        replace(temporary, place, token)

    monkeypatch.setattr(os, "fsync", note_sync)
    monkeypatch.setattr(committing, "_replace", note_rename)
    with commit(path) as temporary:
        (temporary / "deep").mkdir(parents=True)
        (temporary / "deep" / "shard").touch()
    assert order == ["shard", "deep", "last.pt", "rename", "checkpoints"]


def test_a_rank_that_is_killed_in_the_block_leaves_what_was_there(path: Path):
    path.write_text("10")
    script = (
        "import os, signal, sys; from worker_client import commit\n"
        "with commit(sys.argv[1]) as temporary: temporary.write_text('40'); os.kill(os.getpid(), signal.SIGKILL)"
    )
    assert subprocess.run([sys.executable, "-c", script, str(path)], check=False).returncode == -9
    assert path.read_text() == "10"


# --- only while this rank may --------------------------------------------------------------------------------------


def test_under_a_supervisor_a_rank_commits_and_the_record_says_so(leased: FakeSupervisor, path: Path):
    write(path, "10")
    write(path, "40")
    assert path.read_text() == "40"
    assert left_beside(path) == [commit_record.record_path(path).name]


def test_a_rank_whose_lease_has_ended_does_not_begin(leased: FakeSupervisor, path: Path):
    leased.lease_s = -1
    with pytest.raises(LeaseLostError, match="this rank's lease has ended"):
        write(path, "10")
    assert left_beside(path) == []


def test_a_rank_whose_lease_ends_in_the_block_does_not_rename(leased: FakeSupervisor, path: Path):
    leased.lease_s = 60
    write(path, "10")
    with pytest.raises(LeaseLostError, match="this rank's lease has ended"):
        write(path, "40", lambda: leased.extend_lease(-1))
    assert path.read_text() == "10"


def test_a_lease_that_ends_between_the_check_and_the_rename_is_told_after_it(
    leased: FakeSupervisor, path: Path, monkeypatch: pytest.MonkeyPatch
):
    leased.lease_s = 60
    replace = committing._replace  # pyright: ignore[reportPrivateUsage]

    def late(temporary: Path, place: Path, token: int) -> None:
        leased.extend_lease(-1)
        replace(temporary, place, token)

    monkeypatch.setattr(committing, "_replace", late)
    with pytest.raises(LeaseLostError, match="this rank's lease has ended"):
        write(path, "40")


@pytest.mark.parametrize("moment", ["in the block", "after the last check"])
def test_a_later_groups_file_stays(leased: FakeSupervisor, path: Path, moment: str, monkeypatch: pytest.MonkeyPatch):
    """Also if this rank was paused right before its rename, with a lease that seems to hold."""

    def later_group() -> None:
        with monkeypatch.context() as of_it:
            of_it.setenv("HOLDFAST_CYCLE", "3")
            write(path, "40")

    replace = committing._replace  # pyright: ignore[reportPrivateUsage]

    def late(temporary: Path, place: Path, token: int) -> None:
        monkeypatch.setattr(committing, "_replace", replace)
        later_group()
        replace(temporary, place, token)

    write(path, "9")
    if moment == "after the last check":
        monkeypatch.setattr(committing, "_replace", late)
    with pytest.raises(LeaseLostError, match="a later group of ranks writes there"):
        write(path, "10", later_group if moment == "in the block" else lambda: None)
    assert path.read_text() == "40"
    assert left_beside(path) == [commit_record.record_path(path).name]
    with pytest.raises(LeaseLostError, match="a later group of ranks writes there"):
        write(path, "11")


def test_a_folder_that_a_later_group_has_removed_under_the_writer_is_no_missing_file(
    leased: FakeSupervisor, path: Path, monkeypatch: pytest.MonkeyPatch
):
    def later_group() -> None:
        with monkeypatch.context() as of_it:
            of_it.setenv("HOLDFAST_CYCLE", "3")
            write(path, "40")

    with pytest.raises(LeaseLostError, match="a later group of ranks writes there"):
        write_folder(path, later_group)
    assert path.read_text() == "40"


def test_what_was_begun_in_an_earlier_iteration_of_the_wrapper_is_not_renamed(leased: FakeSupervisor, path: Path):
    fencing_tokens.begin_iteration(1, 0)
    write(path, "10")
    before = fencing_token()
    with pytest.raises(LeaseLostError, match="the Wrapper has begun another iteration"):
        write(path, "12", lambda: fencing_tokens.begin_iteration(1, 1))
    assert fencing_token() > before
    assert path.read_text() == "10"
    write(path, "40")
    assert path.read_text() == "40"


def test_a_full_disk_is_the_scripts_to_handle(leased: FakeSupervisor, path: Path, monkeypatch: pytest.MonkeyPatch):
    write(path, "10")

    def full(*_: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(OSError, match="No space left"):
        write(path, "40")
    assert path.read_text() == "10"
    assert left_beside(path) == [commit_record.record_path(path).name]


def test_a_commit_beside_a_client_uses_its_connection_and_leaves_it(
    leased: FakeSupervisor, path: Path, new_client: Callable[[], RankMonitorClient]
):
    new_client().init_workload_monitoring()
    write(path, "10")
    assert len(leased.connections) == 1
    assert not leased.client().is_closed
