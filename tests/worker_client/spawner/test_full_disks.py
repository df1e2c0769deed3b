"""A rank that a full disk has made fail: which file system is full is said with its end, and how much is free."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path

import pytest
from holdfast_wire.spawner_link import StreamPlan

from tests.worker_client.spawner.rig import Rig, worker
from worker_client.spawner import full_disks

Script = Callable[..., str]


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[Path]:
    folder = tmp_path / "disk"
    folder.mkdir()
    if subprocess.run(["mount", "-t", "tmpfs", "-o", "size=512k", "none", folder], check=False).returncode:
        pytest.skip("this user may not mount")
    yield folder
    subprocess.run(["umount", "-l", folder], check=True)


def full(disk: Path, what: str) -> str:
    return f"the file system {disk}, which holds {what}, is full (0 bytes free)"


def test_a_disk_that_took_what_the_rank_said_is_named(script: Script, disk: Path) -> None:
    """Its output is redirected there, so its last words are lost with it."""
    out, errors = (StreamPlan(console=False, file=str(disk / name), direct=True) for name in ("out", "err"))
    with Rig(script("print('x' * (1 << 20), flush=True)")) as rig:
        (end,) = rig.run(worker(stdout=out, stderr=errors))
    assert (end.code, end.error) == (1, full(disk, "its log"))


def test_a_disk_that_an_argument_names_is_named_after_the_error(script: Script, disk: Path, tmp_path: Path) -> None:
    path = str(disk / "checkpoint")
    fills = f"f = open({path!r}, 'wb', buffering=0)\nwhile True: f.write(bytes(1 << 20))"
    with Rig(script(fills), f"--save={disk}/later/checkpoint", "20") as rig:
        (end,) = rig.run(worker(stderr=StreamPlan(console=False, file=str(tmp_path / "err"))))
    assert end.error == f"OSError: [Errno 28] No space left on device; {full(disk, 'what its command names')}"


def test_a_rank_that_speaks_of_a_quota_is_helped_in_the_same_way(script: Script, disk: Path, tmp_path: Path) -> None:
    fill(disk)
    fails = "import errno, os\nraise OSError(errno.EDQUOT, os.strerror(errno.EDQUOT))"
    with Rig(script(fails), f"--save={disk}") as rig:
        (end,) = rig.run(worker(stderr=StreamPlan(console=False, file=str(tmp_path / "err"))))
    assert end.error == f"OSError: [Errno 122] Disk quota exceeded; {full(disk, 'what its command names')}"


def test_a_quota_that_its_folder_alone_has_is_not_taken_for_a_full_disk(
    disk: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """df shows what is left of a project's quota for its folder, as the system counts it there."""
    project, real = disk / "project", os.statvfs
    project.mkdir()
    fill(disk)
    whole = os.statvfs(project)
    nothing_free = os.statvfs_result((*whole[:2], whole.f_blocks // 2, *whole[3:]))
    (disk / "filler").unlink()

    def asked(path: str) -> os.statvfs_result:
        return nothing_free if path == str(project) else real(path)

    monkeypatch.setattr(os, "statvfs", asked)
    assert full_disks.named((), ["train", f"--save={project}/new"]) == (
        f"a quota on the file system {disk}, which holds what its command names, is reached (0 bytes free)"
    )


def test_a_full_disk_of_which_a_folder_alone_can_be_written_is_not_taken_for_a_quota(disk: Path) -> None:
    out = disk / "out"
    out.mkdir()
    subprocess.run(["mount", "--bind", out, out], check=True)
    subprocess.run(["mount", "-o", "remount,bind,ro", disk], check=True)
    fill(out)
    assert full_disks.named((), ["train", f"--save={out}"]) == full(disk, "what its command names")


def test_a_full_disk_that_nobody_complained_of_is_not_named(script: Script, disk: Path, tmp_path: Path) -> None:
    fill(disk)
    with Rig(script("raise ValueError('no such step')"), f"--save={disk}") as rig:
        (end,) = rig.run(worker(stderr=StreamPlan(console=False, file=str(tmp_path / "err"))))
    assert end.error == "ValueError: no such step"


def test_only_what_is_full_is_named(disk: Path, tmp_path: Path) -> None:
    arguments = ("train", "a=1", f"--data={tmp_path}", "x\0y", f"{disk}/no/folder", *["--out=/"] * 100)
    assert full_disks.named([str(tmp_path / "log")], arguments) == ""
    fill(disk)
    assert full_disks.named([str(tmp_path / "log")], arguments) == full(disk, "what its command names")
    assert full_disks.named([str(disk / "log")], arguments) == full(disk, "what its command names")
    (disk / "log").touch()
    assert full_disks.named([str(disk / "log")], arguments) == full(disk, "its log")


def test_what_torch_makes_of_a_full_disk_is_known_too() -> None:
    assert full_disks.says_so("RuntimeError: PytorchStreamWriter failed writing file data/0: file write failed")
    assert full_disks.says_so("OSError: [Errno 28] No space left on device: '/x'")
    assert not full_disks.says_so("RuntimeError: NCCL error")


def fill(disk: Path) -> None:
    descriptor = os.open(disk / "filler", os.O_WRONLY | os.O_CREAT)
    try:
        with suppress(OSError):
            while os.write(descriptor, bytes(4096)):
                pass
    finally:
        os.close(descriptor)
