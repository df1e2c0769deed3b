"""People see of their workers what torchrun shows, byte for byte: terminal, pipe, --tee, --redirects."""

import os
import signal
import sys
from pathlib import Path

import pytest

from tests.e2e.launch import COOKIE, SCRIPTS, assert_nothing_left, launched
from tests.e2e.terminal import COLUMNS, LINES, on_terminal
from tests.e2e.torchrun import TORCHRUN, Outcome, outcome, torchrun

PRINTING = str(SCRIPTS / "printing.py")
HOLDFAST = (sys.executable, "-m", "supervisor", "run")

pytestmark = pytest.mark.timeout(180)


def both(tmp_path: Path, *arguments: str) -> tuple[Outcome, Outcome]:
    """Returns (our outcome, torchrun's), each in a folder of that name."""
    ours, theirs = tmp_path / "ours", tmp_path / "theirs"
    ours.mkdir()
    theirs.mkdir()
    environment = {"OMP_NUM_THREADS": "1"}
    with launched(ours, *arguments, environment=environment) as launch:
        got = outcome(launch)
        assert_nothing_left(launch)
    return got, torchrun(theirs, *arguments, environment=environment)


def environment(tmp_path: Path) -> dict[str, str]:
    """Has a name that identifies the launch's processes, and only places in `tmp_path`."""
    (tmp_path / "runtime").mkdir(mode=0o700)
    mine = {"HOLDFAST_STATE_DIR": str(tmp_path / "state"), "XDG_RUNTIME_DIR": str(tmp_path / "runtime")}
    return {**os.environ, **mine, "TERM": "xterm-256color", COOKIE: tmp_path.name}


def test_in_a_pipe_the_bytes_are_torchruns(tmp_path: Path) -> None:
    got, expected = both(tmp_path, "--nproc-per-node", "1", PRINTING)
    assert got == expected
    assert b"\rstep 5/5 of 0\n" in got.stderr


def test_tee_prefixes_and_keeps_and_the_filter_shows_one_rank(tmp_path: Path) -> None:
    got, expected = both(
        tmp_path, "--nproc-per-node", "2", "--tee", "3", "--local-ranks-filter", "1", "--log-dir", "logs", PRINTING
    )
    assert got.code == expected.code == 0
    # There are two intended differences: bytes that are not text stay as they are, and a last line gets its end.
    assert got.stdout == expected.stdout.replace("\ufffd".encode(), b"\xff") + b"\n"
    assert b"[default1]:terminal" in got.stdout
    assert b"[default0]:" not in got.stdout + got.stderr
    # torchrun puts prefixes and line ends into lines that it reads half written, so these are left out.
    assert words(got.stderr) == words(expected.stderr) != b""
    assert all(line.startswith(b"[default1]:step ") for line in got.stderr.split(b"\n") if line.strip(b"[default1]:"))
    assert kept(tmp_path / "ours") == kept(tmp_path / "theirs")


def test_redirects_go_to_files_only(tmp_path: Path) -> None:
    got, expected = both(tmp_path, "--nproc-per-node", "2", "--redirects", "3", "--log-dir", "logs", PRINTING)
    assert got == expected == Outcome(0, b"", b"")
    files = kept(tmp_path / "ours")
    assert files == kept(tmp_path / "theirs")
    assert len(files) == 4


def words(output: bytes) -> bytes:
    return output.replace(b"[default1]:", b"").replace(b"\n", b"")


def kept(folder: Path) -> dict[str, bytes]:
    """Returns the content of stdout.log and stderr.log of each rank, by the rank's own name."""
    found: dict[str, bytes] = {}
    for path in (folder / "logs").rglob("std*.log"):
        content = path.read_bytes()
        rank = content.rpartition(b" of ")[2].strip().decode()
        found[f"{path.name} {rank}"] = content
    return found


def test_on_a_terminal_the_worker_has_the_terminal(tmp_path: Path) -> None:
    env = environment(tmp_path) | {"TERM": "dumb"}  # Else a slow machine shows how long it has loaded torch.
    code, got = on_terminal([*HOLDFAST, "--nproc-per-node", "1", PRINTING], cwd=tmp_path, env=env)
    their_code, expected = on_terminal([*TORCHRUN, "--nproc-per-node", "1", PRINTING], cwd=tmp_path, env=env)
    assert code == their_code == 0
    assert got == expected
    assert got.startswith(b"terminal True True True\r\n%dx%d\r\n\x1b[31mred" % (COLUMNS, LINES))


def test_ctrl_c_on_the_terminal_ends_the_job_once(tmp_path: Path) -> None:
    script = "import time\ntry: print('ready'); time.sleep(600)\nfinally: print('cleaned up')"
    (tmp_path / "waiting.py").write_text(script)
    code, got = on_terminal(
        [*HOLDFAST, "--nproc-per-node", "1", "waiting.py"],
        cwd=tmp_path, env=environment(tmp_path), type_after=(b"ready", b"\x03"),
    )  # fmt: skip
    assert code == 128 + signal.SIGINT
    assert got.count(b"cleaned up") == 1
    assert got.count(b"KeyboardInterrupt") == 1


def test_a_ctrl_c_on_the_terminal_waits_as_long_as_torchrun_and_says_for_whom(tmp_path: Path) -> None:
    handler = "signal.signal(signal.SIGINT, lambda *_: (time.sleep(0.2), os._exit(5)))"
    (tmp_path / "saving.py").write_text(f"import os, signal, time\n{handler}\nprint('ready')\ntime.sleep(600)\n")
    command = [*HOLDFAST, "--nproc-per-node", "1", "saving.py"]
    code, got = on_terminal(command, cwd=tmp_path, env=environment(tmp_path), type_after=(b"ready", b"\x03"))
    assert code == 128 + signal.SIGINT
    assert b"holdfast: run got SIGINT: rank 0 has 30 s to end; another one kills it at once" in got
    assert got.count(b"got SIGINT") == 1, "the end does not tell again who asked for it"
