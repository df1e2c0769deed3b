"""Does the soak see what must never happen? A lost step, a process started again, words of others in what came in."""

from __future__ import annotations

import time
from pathlib import Path

from tests.soak import neighbours
from tests.soak.neighbours import Neighbour


def neighbour(folder: Path) -> Neighbour:
    return Neighbour("ann", 1, "job-of-ann", folder, 1, "secret")


def test_a_lost_step_and_a_new_process_and_a_pause_of_a_job_are_found(tmp_path: Path):
    job, now_s = neighbour(tmp_path), time.monotonic()
    late_s = now_s + 2 * neighbours.STALL_S
    lines = [f"0 7 1 {now_s}", f"0 7 2 {now_s}", f"0 7 4 {now_s}", f"1 8 1 {now_s}", f"1 8 2 {late_s}", "1 8"]
    (tmp_path / "0.ledger").write_text("\n".join(lines))
    job.look()
    job.look()
    found = [text.split(":")[0] for text in job.wrong]
    assert found == [
        "rank 0 of job-of-ann went from step 2 to 4",
        "rank 0 of job-of-ann was started again",
        f"rank 0 of job-of-ann did not step for {late_s - now_s:.1f} s",
    ]
    assert job.last[0].number == 2  # the last line is not complete


def test_an_ordinary_ledger_is_right(tmp_path: Path):
    job, now_s = neighbour(tmp_path), time.monotonic()
    (tmp_path / "0.ledger").write_text("".join(f"0 7 {step} {now_s}\n" for step in range(1, 100)))
    job.look()
    assert not job.wrong
