"""Does the file hold what was saved last, however long the texts are, and at what cost?"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from worker_client.spawner.kept_state_file import WHOLE_BYTES_MAX, KeptFile


def lines(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_bytes().splitlines()]


def test_short_texts_are_written_as_a_whole_without_the_environment(tmp_path: Path) -> None:
    path = tmp_path / "kept"
    file = KeptFile(str(path))
    for text in ("1", "2"):
        file.note({"a": text})
        file.save({"a": text, "environment": "secret"}, {"taken": 3})
        assert lines(path) == [{"texts": {"a": text}, "taken": 3}]


def test_of_long_texts_only_changes_are_added_until_they_are_as_long_as_the_rest(tmp_path: Path) -> None:
    path = tmp_path / "kept"
    file = KeptFile(str(path))
    long = "x" * (2 * WHOLE_BYTES_MAX)
    file.save({"a": long, "b": "0"}, {"taken": 0})
    file.note({"b": "1", "environment": "secret"})
    file.save({"a": long, "b": "1"}, {"taken": 1})
    assert lines(path) == [{"texts": {"a": long, "b": "0"}, "taken": 0}, {"texts": {"b": "1"}, "taken": 1}]
    file.save({"a": long, "b": "1"}, {"taken": 2})
    assert lines(path)[2:] == [{"texts": {}, "taken": 2}]
    file.note({"a": long})
    file.save({"a": long, "b": "1"}, {"taken": 3})
    assert len(lines(path)) == 4
    file.save({"a": long, "b": "1"}, {"taken": 4})
    assert lines(path) == [{"texts": {"a": long, "b": "1"}, "taken": 4}]


def test_a_file_that_is_not_as_it_should_be_is_written_again_as_a_whole(tmp_path: Path) -> None:
    path = tmp_path / "kept"
    file = KeptFile(str(path))
    long = "x" * (2 * WHOLE_BYTES_MAX)
    file.save({"a": long}, {})
    path.unlink()
    file.note({"b": "1"})
    file.save({"a": long, "b": "1"}, {})
    assert lines(path) == [{"texts": {"a": long, "b": "1"}}]
    path.unlink()
    KeptFile(str(tmp_path / "missing" / "kept")).save({"a": "1"}, {})
    KeptFile("").save({"a": "1"}, {})
    assert not list(tmp_path.iterdir())
