"""Whose is a cgroup, and what if none can be made or joined?"""

from __future__ import annotations

import errno
import os
import subprocess
import sys
from pathlib import Path

import pytest

from worker_client.spawner import cgroup


def test_two_spawners_with_the_same_pid_in_two_pid_namespaces_have_cgroups_of_their_own() -> None:
    """Like two nodes of one job in containers on one machine: each kills only its own cycle."""
    make = (
        "import sys; from worker_client.spawner.cgroup import CycleCgroups as c; "
        "print(c('twice', wanted=True).folder, flush=True); sys.stdin.read()"
    )
    command = ["unshare", "--pid", "--fork", "--mount-proc", sys.executable, "-c", make]
    # Both live at the same time: an ended namespace's number is reused.
    both = [
        subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        for _ in range(2)
    ]
    lines = [each.stdout.readline().strip() for each in both if each.stdout is not None]
    refusals = [each.communicate()[1] for each in both]
    folders = [Path(line) for line in lines if line]
    try:
        if len(folders) < 2:
            pytest.skip(f"needs root, namespaces and cgroup v2: {refusals[0]}")
        assert folders[0] != folders[1]
    finally:
        for folder in set(folders):
            folder.rmdir()


def test_where_no_process_more_is_allowed_no_group_is_made(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse() -> int:
        raise BlockingIOError(errno.EAGAIN, "Resource temporarily unavailable")

    monkeypatch.setattr(os, "fork", refuse)
    assert not cgroup._can_join(str(tmp_path))  # pyright: ignore[reportPrivateUsage]
