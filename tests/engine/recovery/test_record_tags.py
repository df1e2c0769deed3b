"""Can what an earlier version kept of a job be read, whatever has been renamed or moved since?

`kept/` holds an example of each kind of record as each version wrote it. A file of an earlier version never changes.
The file of this version is rewritten by `python -m tests.engine.recovery.test_record_tags`: read the difference. A
line may get or lose fields, and lines may come; a line that goes, or changes its tag, is a record that the next
version can't read.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import cast

import msgspec
import pytest

from supervisor.core.job_phases import Running
from supervisor.core.leader_ledger import Ledger
from supervisor.core.node import rank_monitor
from supervisor.edges.machine.journal.journal_reader import report_from_json, report_to_json
from supervisor.engine.recovery import record_text, snapshot_texts
from supervisor.engine.recovery.earlier_record_tags import EARLIER
from supervisor.engine.recovery.record_tags import KINDS, TAGS
from supervisor.ports.reports import JobReport
from tests.engine.recovery.record_samples import kinds, sample

KEPT = Path(__file__).with_name("kept")
THIS_VERSION = KEPT / "tags-1.jsonl"


def lines(path: Path) -> list[str]:
    return path.read_text().splitlines()


def written_now() -> list[str]:
    return [record_text.write(sample(kind)) for kind in sorted(kinds(), key=TAGS.__getitem__)]


def test_each_record_that_can_be_kept_has_a_tag_and_no_tag_is_left_over() -> None:
    assert set(kinds()) == set(TAGS)
    assert len(TAGS) == len(KINDS), "a class has two tags"


def test_no_tag_names_a_module_or_a_class() -> None:
    assert all(tag == tag.lower() and ":" not in tag for tag in KINDS)


def test_records_are_written_as_the_file_of_this_version_says() -> None:
    assert lines(THIS_VERSION) == written_now(), "see the head of this file"


@pytest.mark.parametrize("path", sorted(KEPT.glob("*.jsonl")), ids=lambda path: path.stem)
def test_each_kind_of_record_is_read_as_each_version_wrote_it(path: Path) -> None:
    for line in lines(path):
        tag = json.loads(line)["="]
        record = record_text.read(line)
        assert type(record) is KINDS[EARLIER.get(tag, tag)], line
        _check_same(json.loads(record_text.write(record)), json.loads(line))


def test_the_state_of_a_running_job_is_read_as_each_version_kept_it() -> None:
    for path in sorted(KEPT.glob("job-*.json")):
        restored = snapshot_texts.restored(json.loads(path.read_text()))
        machines = restored.snapshot.machines
        assert restored.record.spec.command == ("t.py",), path
        assert isinstance(machines.job.phase, Running), path
        assert all(isinstance(each, rank_monitor.Watching) for each in machines.monitors), path
        assert len(machines.monitors) == len(restored.record.pids) == 2, path


def test_the_ledger_and_a_report_of_the_journal_are_read_as_each_version_wrote_them() -> None:
    """They have no tags: their types are known, and they carry the names of fields alone."""
    ledgers = sorted(KEPT.glob("ledger-*.json"))
    for path in ledgers:
        read = msgspec.json.decode(path.read_bytes(), type=Ledger)
        _check_same(json.loads(msgspec.json.encode(read)), json.loads(path.read_text()))
    assert msgspec.json.decode(ledgers[-1].read_bytes(), type=Ledger) == sample(Ledger)
    reports = sorted(KEPT.glob("report-*.json"))
    for path in reports:
        report = report_from_json(path.read_text())
        _check_same(json.loads(report_to_json(report, recorded_by="a")), json.loads(path.read_text()))
    assert report_from_json(reports[-1].read_text()) == sample(JobReport)


def _check_same(now: object, then: object) -> None:
    """Compares what was read with what was written, but for fields that one of the two versions does not have."""
    if isinstance(now, dict) and isinstance(then, dict):
        mine, other = cast("dict[str, object]", now), cast("dict[str, object]", then)
        for name in mine.keys() & other.keys():
            _check_same(mine[name], EARLIER.get(str(other[name]), other[name]) if name == "=" else other[name])
    elif isinstance(now, list) and isinstance(then, list):
        for mine, other in zip(cast("list[object]", now), cast("list[object]", then), strict=True):
            _check_same(mine, other)
    else:
        assert now == then


if __name__ == "__main__":
    THIS_VERSION.write_text("".join(f"{line}\n" for line in written_now()))
