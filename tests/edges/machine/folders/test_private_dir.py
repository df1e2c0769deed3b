"""A private supervisor has its own folder; a killed one's folder is removed, a live one's never."""

from __future__ import annotations

import errno
import os
import subprocess
import sys
import tempfile
from collections.abc import Generator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from unittest import mock

import pytest

from supervisor.edges.machine.folders import default_dirs, private_dir, socket_claim, write_probe
from supervisor.edges.machine.folders.socket_claim import SocketDirClaim
from supervisor.edges.machine.processes import home_folder
from supervisor.errors import ConfigurationError, ExhaustedError

HOLDER = """
import pathlib, sys
from supervisor.edges.machine.folders.socket_claim import SocketDirClaim
claim = SocketDirClaim(pathlib.Path(sys.argv[1]))
print(flush=True); sys.stdin.read()
"""


@pytest.fixture(autouse=True)
def temp(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Generator[Path]:
    """The only shared temporary directory; pytest's own would make socket paths too long."""
    with tempfile.TemporaryDirectory() as name:
        monkeypatch.setenv("HOME", str(tmp_path / "none"))
        monkeypatch.setattr(default_dirs, "SHARED_TEMPS", (Path(name),))
        monkeypatch.setattr(default_dirs, "RUNTIME_DIRS", tmp_path / "none")
        yield Path(name)


@contextmanager
def served(path: Path) -> Generator[subprocess.Popen[bytes]]:
    """Holds a supervisor's claim on the folder, in a process that is killed at the end."""
    holder = subprocess.Popen([sys.executable, "-c", HOLDER, str(path)], stdin=-1, stdout=-1)
    assert holder.stdout is not None
    assert holder.stdout.readline() == b"\n"
    try:
        yield holder
    finally:
        holder.kill()
        holder.communicate()


def test_it_is_fresh_closed_and_short_enough(temp: Path, tmp_path: Path):
    first, second = private_dir.make({}), private_dir.make({})
    assert first != second
    assert first.stat().st_mode & 0o777 == 0o700
    assert list(first.iterdir()) == []
    deep = tmp_path / ("d" * 100)
    deep.mkdir()
    assert private_dir.make({"TMPDIR": str(deep)}).parent == temp
    chosen = tmp_path / "t"
    chosen.mkdir()
    assert private_dir.make({"TMPDIR": str(chosen)}).parent == chosen
    assert private_dir.make({"TMPDIR": str(tmp_path / "missing")}).parent == temp


def test_without_any_place_it_says_which_were_tried(temp: Path):
    default_dirs.SHARED_TEMPS = (temp / "none",)
    with pytest.raises(ConfigurationError, match=rf"{temp}/none: No such file or directory.*; set TMPDIR"):
        private_dir.make({})


def test_a_place_that_is_full_now_may_allow_one_later(temp: Path):
    default_dirs.SHARED_TEMPS = (temp, temp / "none")
    full = OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
    with (
        mock.patch.object(write_probe, "write", side_effect=full),
        pytest.raises(ExhaustedError, match=f"{temp}: No space left on device; {temp}/none: No such file"),
    ):
        private_dir.make({})


def test_folders_of_killed_supervisors_go_and_those_of_living_ones_stay(temp: Path):
    dead, living, starting, unclaimed = (private_dir.make({}) for _ in range(4))
    (starting / "supervisor.lock").touch()  # opened, but not locked yet
    with served(dead):
        (dead / "worker").mkdir()
        (dead / "worker" / "tokens").touch()
    with served(living) as holder:
        private_dir.sweep({})
        assert not dead.exists()
        assert living.exists()
        assert starting.exists()
        assert unclaimed.exists()
        holder.kill()
        holder.wait()
        private_dir.sweep({})
        assert not living.exists()


def test_a_folder_whose_supervisor_was_killed_while_it_probed_goes_once_it_is_old():
    unused, used = private_dir.make({}), private_dir.make({})
    for folder in (unused, used):
        (folder / f"{write_probe.PROBE}1").touch()
    (used / "kept").touch()
    private_dir.sweep({})
    assert unused.exists(), "it could still be loading"
    for folder in (unused, used):
        os.utime(folder, (0, 0))
    private_dir.sweep({})
    assert not unused.exists()
    assert used.exists()


def test_folders_that_look_like_ours_and_are_not_stay(temp: Path, tmp_path: Path):
    for name in (f"holdfast-{os.geteuid()}", "holdfast-10001000", "holdfast-mine", "holdfast-training", "other"):
        with served(temp / name):
            pass
    with served(tmp_path / "victim"):
        (temp / "holdfast-r0123456789").symlink_to(tmp_path / "victim")
    private_dir.sweep({})
    assert len(list(temp.iterdir())) == 6
    assert (tmp_path / "victim" / "supervisor.lock").exists()


def test_a_folder_of_another_user_stays(temp: Path):
    if os.geteuid() != 0:
        pytest.skip("only root can give a directory away")
    theirs = private_dir.make({})
    with served(theirs):
        pass
    os.chown(theirs, 4321, 4321)
    private_dir.sweep({})
    assert theirs.exists()


def test_a_sweep_beside_supervisors_that_start_and_end_harms_none(temp: Path):
    """Each folder exists for as long as its claim is held."""
    stop = temp / "stop"
    script = (
        "import sys, pathlib; from supervisor.edges.machine.folders import private_dir, default_dirs\n"
        "default_dirs.SHARED_TEMPS = (pathlib.Path(sys.argv[1]),)\n"
        "print(flush=True)\n"
        "while not pathlib.Path(sys.argv[2]).exists(): private_dir.sweep({})"
    )
    sweeper = subprocess.Popen([sys.executable, "-c", script, str(temp), str(stop)], stdout=-1)
    assert sweeper.stdout is not None
    sweeper.stdout.readline()
    try:
        for _ in range(300):
            path = private_dir.make({})
            claim = SocketDirClaim(path)
            (path / "file").touch()
            assert (path / "supervisor.lock").exists()
            claim.close()
    finally:
        stop.touch()
        sweeper.communicate()
    assert sweeper.returncode == 0
    for _ in range(300 // private_dir.SWEPT_MAX + 1):  # one that got little CPU time has left many
        private_dir.sweep({})
    assert [each.name for each in temp.iterdir()] == ["stop"]


def test_two_that_remove_the_same_folder_take_nothing_of_one_that_is_made_again(temp: Path):
    """The second has opened the lock of the first supervisor, and locks it once a third one serves there."""
    path = temp / "holdfast-r0123456789"
    with served(path):
        pass
    opened = os.open
    raced = False

    def slow(name: Path, *arguments: int) -> int:
        nonlocal raced
        descriptor = opened(name, *arguments)
        if not raced:
            raced = True
            assert private_dir.remove_if_dead(path)
            stack.enter_context(served(path))
        return descriptor

    with ExitStack() as stack, mock.patch.object(socket_claim.os, "open", slow):
        assert not private_dir.remove_if_dead(path)
        assert raced
        assert (path / "supervisor.lock").exists()


def test_where_nothing_else_can_be_written_it_is_at_home_and_goes_after_the_boot(
    temp: Path, monkeypatch: pytest.MonkeyPatch
):
    (temp / "home").mkdir()
    environment = {"HOME": str(temp / "home")}
    monkeypatch.setattr(default_dirs, "SHARED_TEMPS", (temp / "none",))
    made = private_dir.make(environment)
    home = home_folder.home_dir(environment)
    assert home is not None
    assert made.parent == home
    assert home.stat().st_mode & 0o777 == 0o700
    earlier = home.rename(home.with_name(f"{home.name[: -home_folder.BOOT_DIGITS]}01234567"))
    with served(earlier / made.name):  # on another node of the same name
        private_dir.sweep(environment)
        assert (earlier / made.name).exists()
    private_dir.sweep(environment)
    assert not earlier.exists()
    home.mkdir(mode=0o755)
    with pytest.raises(ConfigurationError, match="others may enter it"):
        private_dir.make(environment)
