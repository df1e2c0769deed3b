"""A real disk fills up under a real process: that costs history, never the process, and heals with free space."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from supervisor.edges.machine.journal.journal_reader import open_reader
from tests.edges.machine.journal.journal_samples import sequences

pytestmark = pytest.mark.timeout(120)

# SQLite allocates pages of 4 KiB: with smaller blocks, an allocated page may still lack space on the disk.
SMALL_BLOCKS = """
set -e
truncate -s 4M image
mke2fs -q -F -t ext4 -b 1024 -O ^has_journal image
mkdir disk
mount -o loop image disk
mkdir -m 700 disk/state
"$@" && cp -r disk/state kept
"""

PROCESS = """
import sys
from pathlib import Path
from supervisor.edges.machine.journal import journal
from tests.edges.machine.journal.journal_samples import Alarms, event, report, started

def fill(but_for=0):
    room = disk / "room"
    room.write_bytes(bytes(but_for))
    with (disk / "filler").open("wb", buffering=0) as file:
        try:
            while file.write(bytes(1024)):
                pass
        except OSError:
            pass
    room.unlink()

journal.RETRY_S = 0.1
disk, alarms = Path("disk"), Alarms()
with started(disk / "state") as first:
    first.save(report("early"))
for room_kib in range(0, 96, 3):  # A supervisor that starts when there is hardly any room left.
    fill(but_for=1024 * room_kib)
    with started(disk / "state", Alarms()) as cramped:
        cramped.save(report("early"))
        cramped.record(event(1, "early"))
        cramped.flush(0.5)
    (disk / "filler").unlink()
writer = journal.Journal(disk / "state", on_alarm=alarms)
writer.start()
writer.save(report())
last = 1
writer.record(event(last))
assert writer.flush(10)
for _ in range(600):  # SQLite keeps room in files that have grown: what is written there meets the full disk later.
    writer.save(report())
    assert writer.flush(10)
for round in range(3):
    fill()
    for _ in range(500):
        last += 1
        writer.record(event(last, reason="x" * 200))
        writer.flush(0.0)
    alarms.wait(lambda heard: len(heard) == 2 * round + 1)
    assert "cannot write journal" in alarms[-1] and "jobs run on" in alarms[-1], alarms
    assert len(writer.events("train", limit=10_000)) == last
    (disk / "filler").unlink()
    alarms.wait(lambda heard: len(heard) == 2 * round + 2)
    assert "is written again; 0 events were lost" in alarms[-1], alarms
    assert writer.flush(10)
assert writer.close()
print(last)
"""


FROZEN = """
import subprocess, time
from pathlib import Path
from supervisor.edges.machine.journal.journal import Journal
from tests.edges.machine.journal.journal_samples import event, report, sequences, unexpected

journal = Journal(Path("disk/state"), on_alarm=unexpected)
journal.start()
journal.save(report())
assert journal.flush(10)
subprocess.run(["fsfreeze", "-f", "disk"], check=True)
try:
    began = time.monotonic()
    for sequence in range(1, 1001):
        journal.record(event(sequence))
        journal.save(report())
    assert sequences(journal) == list(range(1, 1001))
    assert time.monotonic() - began < 2.0
    assert not journal.close(0.5)
    assert time.monotonic() - began < 4.0
finally:
    subprocess.run(["fsfreeze", "-u", "disk"], check=True)
"""

needs_a_disk = pytest.mark.skipif(
    os.geteuid() != 0 or shutil.which("mke2fs") is None, reason="needs to mount a file system"
)


def run_on_a_disk_of_its_own(folder: Path, script: str) -> str:
    """Returns the script's output; the state directory is then in folder/kept."""
    root = Path(__file__).parents[4]
    done = subprocess.run(
        ["unshare", "-m", "sh", "-c", SMALL_BLOCKS, "sh", sys.executable, "-c", script],
        cwd=folder, env={**os.environ, "PYTHONPATH": f"{root}:{root}/proto"}, capture_output=True, text=True,
        timeout=100, check=False,
    )  # fmt: skip
    assert done.returncode == 0, (done.returncode, done.stderr)
    return done.stdout


@needs_a_disk
def test_a_file_system_that_does_not_answer_holds_up_neither_recording_nor_closing(tmp_path: Path) -> None:
    run_on_a_disk_of_its_own(tmp_path, FROZEN)


@needs_a_disk
def test_a_disk_that_fills_up_ends_nobody_and_loses_nothing_that_memory_holds(tmp_path: Path) -> None:
    last = int(run_on_a_disk_of_its_own(tmp_path, PROCESS))
    with open_reader(tmp_path / "kept") as reader:
        assert sequences(reader) == list(range(1, last + 1))
