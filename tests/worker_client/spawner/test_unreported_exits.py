"""Is a worker's exit kept for the next supervisor, whatever the disk does?"""

from __future__ import annotations

import stat
from pathlib import Path

import pytest
from holdfast_wire import spawner_link
from holdfast_wire.spawner_link import Exited

from worker_client.spawner.unreported_exits import UnreportedExits

EXITED = Exited(cycle=1, local_rank=2, pid=77, code=None, signal=9, core_dumped=True, out_of_memory=False, at_ns=5)


def test_each_exit_is_a_line_that_the_next_supervisor_reads_like_a_message(tmp_path: Path) -> None:
    records = UnreportedExits(str(tmp_path), "job-1")
    for pid in (77, 78):
        records.write(EXITED._replace(pid=pid))
    file = tmp_path / "job-1.exits.jsonl"
    read = [spawner_link.decode(line) for line in file.read_bytes().splitlines()]
    assert read == [EXITED, EXITED._replace(pid=78)]
    assert stat.S_IMODE(file.stat().st_mode) == 0o600


@pytest.mark.parametrize("job_id", ["a/b", "../up", "job 1", "é:x"])
def test_a_job_s_file_stays_in_its_folder_whatever_its_name(tmp_path: Path, job_id: str) -> None:
    folder = tmp_path / "records"
    folder.mkdir()
    UnreportedExits(str(folder), job_id).write(EXITED)
    assert len(list(folder.iterdir())) == 1
    assert list(tmp_path.iterdir()) == [folder]


def test_a_disk_that_fails_costs_the_record_only(tmp_path: Path) -> None:
    UnreportedExits(str(tmp_path / "no-such-folder"), "job-1").write(EXITED)
    assert list(tmp_path.iterdir()) == []


def test_without_a_folder_nothing_is_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    UnreportedExits("", "job-1").write(EXITED)
    assert list(tmp_path.iterdir()) == []
