"""Does the kernel report which directory has changed, and nothing if none has?"""

from __future__ import annotations

import contextlib
import ctypes
import errno
import select
import shutil
from pathlib import Path

import anyio
import pytest

from supervisor.edges.machine.folders import inotify
from supervisor.edges.machine.folders.inotify import RENAMED_OR_DELETED, Changes, DirectoryWatch


def test_it_names_the_changed_directories(tmp_path: Path) -> None:
    one, two = tmp_path / "one", tmp_path / "two"
    one.mkdir()
    two.mkdir()
    with contextlib.closing(DirectoryWatch()) as watch:
        watch.add(one)
        watch.add(two)
        watch.add(two)
        assert watch.take() == Changes()
        (two / "file").write_text("x")
        assert select.select([watch.fileno()], [], [], 10)[0]
        assert watch.take() == Changes(frozenset({two}))
        (one / "file").write_text("x")
        assert watch.take() == Changes(frozenset({one}))


def test_it_names_the_directories_that_were_made_in_them(tmp_path: Path) -> None:
    with contextlib.closing(DirectoryWatch()) as watch:
        watch.add(tmp_path)
        (tmp_path / "new").mkdir()
        (tmp_path / "file").write_text("x")
        (tmp_path / "link").symlink_to(tmp_path)
        assert watch.take() == Changes(frozenset({tmp_path}), frozenset({tmp_path / "new"}))


def test_what_is_removed_costs_no_watch_and_is_not_heard_of(tmp_path: Path) -> None:
    folders = [tmp_path / name for name in ("kept", "let go", "deleted")]
    with contextlib.closing(DirectoryWatch()) as watch:
        for folder in folders:
            folder.mkdir()
            watch.add(folder)
        _, let_go, deleted = folders
        (let_go / "file").write_text("x")
        watch.remove(let_go)
        watch.remove(let_go)
        deleted.rmdir()
        assert watch.take() == Changes(frozenset({deleted}))
        assert [folder in watch for folder in folders] == [True, False, False]
        assert _watches(watch) == 1
        deleted.mkdir()
        watch.add(deleted)
        (deleted / "file").write_text("x")
        assert watch.take() == Changes(frozenset({deleted}))


def _watches(watch: DirectoryWatch) -> int:
    return Path(f"/proc/self/fdinfo/{watch.fileno()}").read_text().count("inotify wd:")


def test_a_lost_directory_is_an_error(tmp_path: Path) -> None:
    with contextlib.closing(DirectoryWatch()) as watch, pytest.raises(FileNotFoundError):
        watch.add(tmp_path / "absent")


@pytest.mark.parametrize(
    ("call", "number", "remedy"),
    [
        ("inotify_init1", errno.EMFILE, "raise fs.inotify.max_user_instances"),
        ("inotify_add_watch", errno.ENOSPC, "raise fs.inotify.max_user_watches"),
    ],
)
def test_an_error_names_the_limit_that_is_used_up(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, call: str, number: int, remedy: str
) -> None:
    def refuse(*_: object) -> int:
        ctypes.set_errno(number)
        return -1

    monkeypatch.setattr(inotify._libc, call, refuse)  # pyright: ignore[reportPrivateUsage]
    with pytest.raises(OSError, match=remedy) as raised:
        DirectoryWatch(tmp_path)
    assert raised.value.errno == number


@pytest.mark.parametrize("what", ["delete", "replace", "rmdir"])
async def test_it_tells_of_what_is_renamed_or_deleted(tmp_path: Path, what: str) -> None:
    path = tmp_path / "sock"
    path.mkdir()
    (path / "a").touch()
    with contextlib.closing(DirectoryWatch(path, changes=RENAMED_OR_DELETED)) as watch:
        with anyio.move_on_after(0.05) as nothing:
            await watch.changed()
        assert nothing.cancelled_caught
        match what:
            case "delete":
                (path / "a").unlink()
            case "replace":
                (path / "b").touch()
                (path / "b").rename(path / "a")
            case _:
                shutil.rmtree(path)
        with anyio.fail_after(10):
            await watch.changed()
    with pytest.raises(OSError, match="missing"):
        DirectoryWatch(tmp_path / "missing")
