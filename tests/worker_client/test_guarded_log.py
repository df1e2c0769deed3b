"""Does a filter of the script that raises reach the client?"""

from __future__ import annotations

import logging
from pathlib import Path

import pytest

from tests.worker_client.inprocess.ranks import ran
from worker_client.guarded_log import GuardedLog


class Rank(logging.Filter):
    """Like the many that ask torch for the rank of a group that is not there."""

    def filter(self, record: logging.LogRecord) -> bool:
        raise ValueError("Default process group has not been initialized")


def test_a_line_is_lost_and_nothing_else(caplog: pytest.LogCaptureFixture):
    log, refused = GuardedLog("holdfast.test"), Rank()
    caplog.handler.addFilter(refused)
    for say in (log.debug, log.info, log.warning, log.error, log.exception):
        say("a %s", "word")
    caplog.handler.removeFilter(refused)
    assert caplog.records == []
    log.warning("a %s", "word")
    (record,) = caplog.records
    assert (record.getMessage(), record.name, record.filename) == ("a word", "holdfast.test", Path(__file__).name)


def test_all_ranks_restart_whatever_the_script_s_filter_raises(tmp_path: Path):
    job = ran(tmp_path, "a_filter_raises", 2)
    for rank in (0, 1):
        assert job.told(rank, "fn", "returned") == ["fn", "fn", "returned"]
