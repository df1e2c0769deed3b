"""Does a cordon outlive the process, and what happens if the disk takes nothing?"""

from __future__ import annotations

import logging
import os
import threading
from pathlib import Path

import anyio
import pytest

from supervisor.edges.machine import network_folders
from supervisor.edges.machine.folders import cordon_file
from supervisor.edges.machine.folders.cordon_file import CordonFile


async def test_a_cordon_is_read_until_it_is_lifted(tmp_path: Path):
    assert CordonFile(tmp_path).read() == ""
    await CordonFile(tmp_path).keep("bad memory · Überlauf")
    assert CordonFile(tmp_path).read() == "bad memory · Überlauf"
    await CordonFile(tmp_path).keep("second thoughts")
    assert CordonFile(tmp_path).read() == "second thoughts"
    await CordonFile(tmp_path).keep("")
    assert CordonFile(tmp_path).read() == ""
    assert os.listdir(tmp_path) == []


async def test_nodes_that_share_the_folder_are_cordoned_one_by_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    def network(path: Path) -> str:
        del path
        return "nfs4"

    names = iter(["n1", "n2", "n2", "n1"])
    monkeypatch.setattr(network_folders.platform, "node", lambda: next(names))
    monkeypatch.setattr(network_folders, "file_system", network)
    first, second = CordonFile(tmp_path), CordonFile(tmp_path)
    await first.keep("bad memory")
    assert (first.read(), second.read()) == ("bad memory", "")
    (tmp_path / "cordoned").write_text("by an earlier version")
    assert CordonFile(tmp_path).read() == "by an earlier version"
    await CordonFile(tmp_path).keep("")
    assert os.listdir(tmp_path) == []


async def test_a_folder_that_is_gone_is_a_warning(tmp_path: Path, caplog: pytest.LogCaptureFixture):
    with caplog.at_level(logging.WARNING, "holdfast"):
        await CordonFile(tmp_path / "none").keep("bad memory")
    assert "cannot note that the node is cordoned" in caplog.text
    assert "No such file or directory" in caplog.text


async def test_a_cordon_outlives_a_change_of_the_folder(tmp_path: Path, caplog: pytest.LogCaptureFixture):
    """The state directory was full or read-only at a start, or is again writable."""
    usual, stand_in = tmp_path / "state", tmp_path / "stand-in"
    stand_in.mkdir()
    await CordonFile(usual, stand_in).keep("bad memory")
    assert os.listdir(stand_in) == ["cordoned"]
    usual.mkdir()
    assert CordonFile(usual, stand_in).read() == "bad memory"
    await CordonFile(usual, stand_in).keep("bad memory")
    await CordonFile(usual, stand_in).keep("")
    assert os.listdir(usual) == os.listdir(stand_in) == []
    assert CordonFile(usual, stand_in).read() == ""
    assert not caplog.text


async def test_a_cordon_that_no_folder_takes_lies_in_a_stand_in_made_for_it(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
):
    """The disk has filled since the start: often that is why the node is cordoned."""
    gone, stand_in = tmp_path / "gone", tmp_path / "stand-in"
    stand_in.mkdir()
    kept = CordonFile(gone, stand_in=lambda: stand_in)
    await kept.keep("its disk is full")
    assert CordonFile(gone, stand_in).read() == "its disk is full"
    await kept.keep("")
    assert CordonFile(gone, stand_in).read() == ""
    (warning,) = caplog.messages
    assert warning.startswith(f"the node's cordon is noted in {stand_in}, which may not outlive")


async def test_a_disk_that_does_not_answer_is_a_warning(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(cordon_file, "KEPT_WITHIN_S", 0.05)
    os.mkfifo(tmp_path / "cordoned.new")  # opening it for writing waits for a reader
    with caplog.at_level(logging.WARNING, "holdfast"), anyio.fail_after(10):
        await CordonFile(tmp_path).keep("bad memory")
    assert "the disk does not answer" in caplog.text
    reader = threading.Thread(target=(tmp_path / "cordoned.new").read_bytes)
    reader.start()
    reader.join(10)
