"""Is a log read in bounded time and memory, whatever it is, and nothing but a regular file in its place?"""

from __future__ import annotations

import errno
import os
from pathlib import Path

import pytest
from holdfast_wire.run_mark import run_time

from supervisor.edges.machine.clock import Clock
from supervisor.programs.attribution import log_file as module
from supervisor.programs.attribution.log_file import LINE_BYTES_MAX, LogFile

NOW_S = Clock().now_s


def read(path: Path, *, tail_lines: int = 10) -> LogFile:
    log = LogFile(str(path), tail_lines=tail_lines)
    log.read_on(NOW_S, to_the_end=True)
    return log


def test_holes_are_skipped_and_data_around_them_are_read(tmp_path: Path) -> None:
    path = tmp_path / "log"
    with path.open("wb") as file:
        file.write(b"0: first\n")
        file.seek(30 << 30)
        file.write(b"0: middle\n")
        file.truncate(60 << 30)
    begun_s = NOW_S()
    log = read(path)
    assert NOW_S() - begun_s < 5
    assert log.tail[0] == "0: first"
    assert any(line.endswith("0: middle") for line in log.tail)
    assert log.skipped_bytes > 59 << 30


def test_of_too_much_the_beginning_and_the_end_are_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "FIRST_BYTES_MAX", 1_000)
    monkeypatch.setattr(module, "LAST_BYTES", 100)
    path = tmp_path / "log"
    path.write_text("".join(f"0: {number:06}\n" for number in range(1_000)))
    log = read(path, tail_lines=1_000)
    assert log.tail[0] == "0: 000000"
    assert log.tail[-1] == "0: 000999"
    assert log.skipped_bytes == 10_000 - 1_100
    assert 100 <= len(log.tail) <= 112


def test_of_what_takes_too_long_the_end_is_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "FIRST_S", 2.5)
    monkeypatch.setattr(module, "READ_BYTES", 1_000)
    monkeypatch.setattr(module, "LAST_BYTES", 100)
    path = tmp_path / "log"
    path.write_text("".join(f"0: {number:06}\n" for number in range(1_000)))
    clock = iter(range(1_000))
    log = LogFile(str(path), tail_lines=1)
    log.read_on(lambda: float(next(clock)), to_the_end=True)
    assert log.tail[-1] == "0: 000999"
    assert log.skipped_bytes > 5_000


def test_of_a_line_without_end_only_its_beginning_is_kept(tmp_path: Path) -> None:
    path = tmp_path / "log"
    path.write_bytes(b"0: " + b"x" * (64 << 20) + b"\n0: next\n")
    begun_s = NOW_S()
    log = read(path)
    assert NOW_S() - begun_s < 5
    assert [line[:7] for line in log.tail] == ["0: xxxx", "0: next"]
    assert len(log.tail[0]) <= LINE_BYTES_MAX
    assert log.skipped_bytes == 0


def test_a_log_that_grows_meanwhile_is_read_to_where_it_ended(tmp_path: Path) -> None:
    path = tmp_path / "log"
    path.write_text("0: a\n")

    def now_s() -> float:
        with path.open("a") as file:  # at every look at the clock
            file.write("0: more\n" * 1_000)
        return 0.0

    log = LogFile(str(path), tail_lines=10)
    log.read_on(now_s, to_the_end=False)
    assert list(log.tail) == ["0: a"]


def test_only_a_regular_file_in_its_place_is_opened(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "fifo")
    (tmp_path / "folder").mkdir()
    (tmp_path / "link").symlink_to("/etc/passwd")
    for path in (*tmp_path.iterdir(), Path("/dev/zero"), Path("/dev/ptmx")):
        with pytest.raises(OSError, match="it is not a regular file"):
            read(path)


def test_a_folder_that_became_a_link_leads_nowhere(tmp_path: Path) -> None:
    (tmp_path / "outside").mkdir()
    (tmp_path / "outside" / "log").write_text("0: of somebody else\n")
    (tmp_path / "inside").symlink_to(tmp_path / "outside")  # after the service found the path's real place
    with pytest.raises(OSError, match="it is not where its path says") as refused:
        read(tmp_path / "inside" / "log")
    assert refused.value.errno is None


def test_what_is_missing_is_said(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError) as missing:
        read(tmp_path / "log")
    assert missing.value.errno == errno.ENOENT


def test_a_log_is_judged_by_the_lines_of_the_newest_run(tmp_path: Path) -> None:
    path = tmp_path / "log"
    path.write_text("0: torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2 GiB\n" * 3 + "1: cut o")
    log = read(path)
    assert log.analysis.judgement().findings[0].kind == "gpu_out_of_memory"
    mark = f"\n[holdfast: the run of {run_time(1_764_419_405_123)} begins here]\n"
    with path.open("a") as file:
        file.write(f"{mark}0: OSError: [Errno 28] No space left on device{mark}1: OSError: [Errno 28] x\n")  # two nodes
    log.read_on(NOW_S, to_the_end=True)
    for each in (log, read(path)):
        assert [finding.kind for finding in each.analysis.judgement().findings] == ["full_disk"]
        assert each.analysis.ranks == {0, 1}
        assert [line[:8] for line in each.tail] == ["[holdfas", "0: OSErr", "[holdfas", "1: OSErr"]
    assert log.analysis.lines == 9


@pytest.mark.parametrize("is_new_file", [True, False])
def test_a_log_that_was_written_anew_is_read_from_its_beginning(tmp_path: Path, *, is_new_file: bool) -> None:
    """As after a user has removed the logs and typed the same command again, or a launcher has truncated them."""
    path = tmp_path / "log"
    path.write_text("0: OSError: [Errno 28] No space left on device\n" * 10)
    log = read(path)
    if is_new_file:
        path.rename(tmp_path / "log.1")
    path.write_text("0: all is well\n")
    log.read_on(NOW_S, to_the_end=True)
    assert list(log.tail) == ["0: all is well"]
    assert log.analysis.lines == read(path).analysis.lines
