"""Does a cycle's record get its end if no supervisor is left to write it?"""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.worker_client.spawner.conftest import Script
from tests.worker_client.spawner.rig import Rig, worker
from worker_client.spawner.cycle_end_record import complete


def record(folder: Path, *, cycle: int = 2, end: str = "") -> Path:
    path = folder / f"cycle_info.j.0.{cycle}"
    path.write_text(json.dumps({"cycle_number": cycle, "cycle_end_time": end, "generation": 0, "job_id": "j"}))
    (folder / "cycle_info.j.current").symlink_to(path.name)
    return folder / "cycle_info.j.current"


def test_a_spawner_whose_supervisor_has_died_ends_the_record_of_its_cycle(script: Script, tmp_path: Path) -> None:
    link = record(tmp_path)
    with Rig(script("import time; time.sleep(60)")) as rig:
        rig.spawn(worker(NVRX_CURRENT_CYCLE_INFO=str(link)), cycle=2)
        rig.socket.close()
        rig.process.wait(30)
    found = json.loads(link.read_text())
    assert found["cycle_end_time"].endswith("Z")
    assert (found["generation"], found["job_id"]) == (1, "j")
    assert sorted(path.name for path in tmp_path.glob("*cycle_info*")) == ["cycle_info.j.0.2", "cycle_info.j.current"]


def test_a_spawner_that_is_told_to_end_leaves_it_to_the_supervisor(script: Script, tmp_path: Path) -> None:
    link = record(tmp_path)
    with Rig(script("")) as rig:
        rig.run(worker(NVRX_CURRENT_CYCLE_INFO=str(link)), cycle=2)
        rig.end()
    assert json.loads(link.read_text())["cycle_end_time"] == ""


@pytest.mark.parametrize(("cycle", "end"), [(3, ""), (2, "2026-11-22T16:38:04.739Z")])
def test_a_record_of_another_cycle_and_one_that_has_its_end_stay(tmp_path: Path, cycle: int, end: str) -> None:
    link = record(tmp_path, cycle=cycle, end=end)
    before = link.read_text()
    complete(str(link), 2)
    assert link.read_text() == before


def test_what_is_no_record_stays(tmp_path: Path) -> None:
    for content in ("", "[]", "{}", '{"cycle_number": 2, "cycle_end_time": "", "generation": "x"}'):
        (tmp_path / "f").write_text(content)
        complete(str(tmp_path / "f"), 2)
        assert (tmp_path / "f").read_text() == content
    complete(str(tmp_path / "nothing"), 2)
