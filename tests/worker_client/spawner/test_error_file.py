"""What @record writes becomes one line and a time; anything else becomes nothing."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from worker_client.spawner import error_file


def _write(path: Path, body: object, *, modified_at_unix_s: float = 1000.5) -> str:
    path.write_text(body if isinstance(body, str) else json.dumps(body))
    os.utime(path, (modified_at_unix_s, modified_at_unix_s))
    return str(path)


def _record(message: object, timestamp: object = "1000") -> dict[str, object]:
    return {"message": {"message": message, "extraInfo": {"py_callstack": "x", "timestamp": timestamp}}}


TRACEBACK = "Traceback (most recent call last):\n  File x\nKeyError: 'a'\n"


@pytest.mark.parametrize(
    ("body", "expected"),
    [
        (_record("ValueError: bad"), ("ValueError: bad", 1000.5)),
        (_record("ValueError: bad", "990"), ("ValueError: bad", 990.0)),  # copied later: its own time counts
        (_record("ValueError: bad", None), ("ValueError: bad", 1000.5)),
        (_record("RuntimeError: first\nmore"), ("RuntimeError: first", 1000.5)),
        (_record(TRACEBACK), ("KeyError: 'a'", 1000.5)),
        (_record("a\x1b[31mb\u2028"), ("a [31mb", 1000.5)),
        ({"message": "by a signal handler"}, ("by a signal handler", 1000.5)),
        ({"message": "x", "timestamp": 5}, ("x", 1000.5)),
        (_record("x", "nan"), ("x", 1000.5)),
        (_record(""), None),
        (_record(5), None),
        ([], None),
        ("", None),
        ("not json", None),
        ("[" * 100_000, None),
        ({"message": {"extraInfo": []}}, None),
    ],
)
def test_a_line_and_a_time(tmp_path: Path, body: object, expected: tuple[str, float] | None):
    assert error_file.read(_write(tmp_path / "error.json", body)) == expected


def test_lines_are_bounded_and_so_are_files(tmp_path: Path):
    told = error_file.read(_write(tmp_path / "error.json", _record("x" * 10_000)))
    assert told is not None
    assert len(told[0]) == error_file.LINE_CHARACTERS_MAX
    assert error_file.read(_write(tmp_path / "error.json", _record("x" * error_file.FILE_BYTES_MAX))) is None


def test_what_is_no_file_does_not_block(tmp_path: Path):
    os.mkfifo(tmp_path / "pipe")
    for path in (tmp_path / "pipe", tmp_path, tmp_path / "missing", "/dev/zero", "a\0b"):
        assert error_file.read(str(path)) is None


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    st.recursive(
        st.none() | st.text() | st.floats(),
        lambda inner: st.dictionaries(st.sampled_from(["message", "extraInfo", "timestamp"]), inner) | st.lists(inner),
        max_leaves=8,
    )
)
def test_any_json_is_read_or_refused(tmp_path: Path, body: object):
    told = error_file.read(_write(tmp_path / "error.json", json.dumps(body)))
    assert told is None or (told[0] and "\n" not in told[0])


def test_torchs_own_record_is_understood(tmp_path: Path):
    path = tmp_path / "error.json"
    script = (
        "from torch.distributed.elastic.multiprocessing.errors import ErrorHandler\n"
        "ErrorHandler().record_exception(ValueError('loss is NaN'))"
    )
    environment = {**os.environ, "TORCHELASTIC_ERROR_FILE": str(path)}
    subprocess.run([sys.executable, "-c", script], env=environment, check=True, timeout=100)
    told = error_file.read(str(path))
    assert told == ("ValueError: loss is NaN", path.stat().st_mtime)
