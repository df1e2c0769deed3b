"""Are learned timeouts kept from run to run, and does a file that is lost or damaged never end a training?"""

from __future__ import annotations

import json
import logging
from collections.abc import Callable
from pathlib import Path

import pytest

from worker_client import state_file
from worker_client.rank_monitor_client import RankMonitorClient

NewClient = Callable[[], RankMonitorClient]
STATE = {"initial_rank_heartbeat_timeout": 5.0}


@pytest.fixture
def warnings(caplog: pytest.LogCaptureFixture) -> pytest.LogCaptureFixture:
    caplog.set_level(logging.WARNING, logger="holdfast")
    return caplog


def test_what_one_run_has_saved_the_next_one_loads(
    tmp_path: Path, new_client: NewClient, warnings: pytest.LogCaptureFixture
):
    first, second = new_client(), new_client()
    state = first.state_dict()
    folder = tmp_path / "made" / "for it"
    state_file.save(first, folder)
    state_file.load(second, folder)
    assert second.state_dict() == state
    assert json.loads((folder / state_file.STATE_FILE).read_text()) == state
    assert [path.name for path in folder.iterdir()] == [state_file.STATE_FILE], "no draft is left"
    assert not warnings.records


def test_a_first_run_finds_nothing_and_says_nothing(
    tmp_path: Path, new_client: NewClient, warnings: pytest.LogCaptureFixture
):
    state_file.load(new_client(), tmp_path)
    assert not warnings.records


@pytest.mark.parametrize("content", ["", "{", "[]", "{}", '"text"'])
def test_a_damaged_file_is_warned_about_and_ignored(
    tmp_path: Path, new_client: NewClient, warnings: pytest.LogCaptureFixture, content: str
):
    (tmp_path / state_file.STATE_FILE).write_text(content)
    client = new_client()
    before = client.state_dict()
    state_file.load(client, tmp_path)
    assert client.state_dict() == before
    assert f"cannot load learned timeouts from {tmp_path / state_file.STATE_FILE}" in warnings.text


def test_a_disk_that_takes_nothing_keeps_the_last_state(
    tmp_path: Path, new_client: NewClient, warnings: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
):
    (tmp_path / state_file.STATE_FILE).write_text("of an earlier run")

    def refuse(_path: Path, _text: str) -> int:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(Path, "write_text", refuse)
    state_file.save(new_client(), tmp_path)
    assert (tmp_path / state_file.STATE_FILE).read_text() == "of an earlier run"
    assert "No space left on device" in warnings.text


def test_the_job_s_script_is_told_that_the_training_is_complete(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.delenv(state_file.FINISHED_VARIABLE, raising=False)
    state_file.mark_finished()
    monkeypatch.setenv(state_file.FINISHED_VARIABLE, str(tmp_path / "finished"))
    state_file.mark_finished()
    assert (tmp_path / "finished").exists()


def test_where_it_cannot_be_told_a_warning_says_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, warnings: pytest.LogCaptureFixture
):
    monkeypatch.setenv(state_file.FINISHED_VARIABLE, str(tmp_path / "no" / "finished"))
    state_file.mark_finished()
    assert "cannot mark the training as finished" in warnings.text
