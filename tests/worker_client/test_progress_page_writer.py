"""The order of the writes: a reader at any instant sees a state that was true."""

from __future__ import annotations

import os

import pytest

from tests.worker_client.recorded_page import NAMES
from worker_client.progress_page_writer import PageUnusableError, ProgressPage
from worker_client.rank_progress import Progress


def test_the_snapshot_of_a_private_page():
    progress = Progress()
    progress.begin()
    page = ProgressPage.private()
    progress.adopt(page, NAMES)
    progress.sections.start("setup")
    progress.heartbeats.beat()
    snapshot = page.snapshot()
    assert [slot for slot, _ in snapshot.open_sections] == [1]
    assert snapshot.heartbeats == 1
    assert snapshot.initialised_ns <= snapshot.open_sections[0][1] <= snapshot.heartbeat_ns


def test_a_memfd_that_is_too_small_is_refused():
    descriptor = os.memfd_create("small", os.MFD_ALLOW_SEALING)
    try:
        with pytest.raises(PageUnusableError, match="too small"):
            ProgressPage.shared(descriptor)
    finally:
        os.close(descriptor)
