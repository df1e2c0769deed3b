"""Files about cycles: complete at any moment, linked, and ended even after a supervisor has died."""

from __future__ import annotations

import json
import os
import threading
import time
from pathlib import Path
from typing import Any

import msgspec
import pytest

from supervisor.edges.machine.logs.cycle_info import CycleInfoFiles, document, end_left_over
from supervisor.ports.reports import CycleInfo

RUNS = CycleInfo(
    "11", 0, 2, 1_700_000_000_123_456_789, None, "/l/t_cycle2.log", "n[1-2]", "n3", "0-7,8-15", 0, "cycle_info.11"
)


def read(path: Path) -> dict[str, Any]:
    return json.loads(path.read_text())


def write(folder: Path, *records: CycleInfo) -> None:
    files = CycleInfoFiles()
    for record in records:
        files.keep(str(folder), record)
    files.close()


def test_a_record_has_the_documented_fields(tmp_path: Path) -> None:
    write(tmp_path / "new" / "folder", RUNS)
    folder = tmp_path / "new" / "folder"
    assert sorted(os.listdir(folder)) == ["cycle_info.11.0.2", "cycle_info.11.current"]
    assert os.readlink(folder / "cycle_info.11.current") == "cycle_info.11.0.2"
    assert read(folder / "cycle_info.11.current") == {
        "job_id": "11",
        "attempt_index": 0,
        "cycle_number": 2,
        "cycle_start_time": "2023-11-14T22:13:20.123Z",
        "cycle_end_time": "",
        "cycle_log_file": "/l/t_cycle2.log",
        "active_nodes": "n[1-2]",
        "standby_nodes": "n3",
        "active_ranks": "0-7,8-15",
        "generation": 0,
    }


def test_the_link_follows_the_newest_cycle_and_stays_when_it_ends(tmp_path: Path) -> None:
    ended = msgspec.structs.replace(RUNS, ended_at_ns=1_700_000_060_000_000_000, generation=1)
    newer = msgspec.structs.replace(RUNS, cycle=3)
    write(tmp_path, RUNS, ended, newer)
    assert read(tmp_path / "cycle_info.11.0.2")["cycle_end_time"] == "2023-11-14T22:14:20.000Z"
    assert os.readlink(tmp_path / "cycle_info.11.current") == "cycle_info.11.0.3"


def test_a_record_that_a_dead_supervisor_left_open_gets_the_time_of_its_last_line(tmp_path: Path) -> None:
    log = tmp_path / "t_cycle2.log"
    log.write_text("0: last words\n")
    write(tmp_path, msgspec.structs.replace(RUNS, log_path=str(log)))
    at_s = int(time.time()) + 60
    os.utime(log, (at_s, at_s))
    others = tmp_path / "cycle_info.11.0.1", tmp_path / "cycle_info.12.0.0"
    others[0].write_text("not JSON")
    others[1].write_text(json.dumps(document(msgspec.structs.replace(RUNS, job_id="12"))))
    task = msgspec.structs.replace(RUNS, stem="cycle_info.11_1")  # the array has the same id
    write(tmp_path, task)
    write(tmp_path, msgspec.structs.replace(RUNS, attempt=1, cycle=0))
    record = read(tmp_path / "cycle_info.11.0.2")
    assert record["cycle_end_time"] == time.strftime("%Y-%m-%dT%H:%M:%S.000Z", time.gmtime(at_s))
    assert record["generation"] == 1
    assert others[0].read_text() == "not JSON"
    assert read(others[1])["cycle_end_time"] == read(tmp_path / "cycle_info.11_1.0.2")["cycle_end_time"] == ""
    assert read(tmp_path / "cycle_info.11.current")["attempt_index"] == 1


def test_the_newest_record_is_left_open(tmp_path: Path) -> None:
    write(tmp_path, RUNS)
    end_left_over(tmp_path, RUNS)
    assert read(tmp_path / "cycle_info.11.0.2")["cycle_end_time"] == ""


def test_a_folder_that_can_not_be_written_is_one_warning(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    (tmp_path / "file").write_text("")
    write(tmp_path / "file", RUNS, RUNS)
    told = [record.message for record in caplog.records]
    assert told == [f"cannot write cycle info in {tmp_path}/file: File exists; check --ft-cycle-info-dir"]


def no_thread(_: threading.Thread) -> None:
    raise RuntimeError("can't start new thread")


def test_without_a_thread_there_is_one_warning_and_the_next_record_tries_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    files = CycleInfoFiles()
    with monkeypatch.context() as patch:
        patch.setattr(threading.Thread, "start", no_thread)
        files.keep(str(tmp_path), RUNS)
        files.keep(str(tmp_path), RUNS)
    assert caplog.text.count("ulimit -u") == 1
    files.keep(str(tmp_path), RUNS)
    files.close()
    assert (tmp_path / "cycle_info.11.0.2").exists()
