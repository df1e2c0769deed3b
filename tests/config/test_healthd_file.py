"""What may the health service's file contain?"""

from __future__ import annotations

from pathlib import Path

import pytest

from supervisor.config.healthd_file import HealthdSettings, read_healthd_file
from supervisor.errors import ConfigurationError, HoldfastError


def read(folder: Path, text: str) -> HealthdSettings:
    (folder / "nvhcd.yaml").write_text(text)
    return read_healthd_file(str(folder / "nvhcd.yaml"))


def test_the_documented_keys(tmp_path: Path) -> None:
    text = "socket_path: /run/x.sock\nhealthcheck_path: /usr/local/sbin/check.sh\nlog_level: debug\ntimeout: 60\n"
    assert read(tmp_path, text) == HealthdSettings("/usr/local/sbin/check.sh", "/run/x.sock", "debug", 60.0)
    assert read(tmp_path, "healthcheck_path: /c") == HealthdSettings("/c", "/var/run/nvhcd.sock", "info", 120.0)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", "healthcheck_path is missing; write healthcheck_path: PATH"),
        ("socket_path: /run/x.sock", "healthcheck_path is missing"),
        ("healthcheck_path: check.sh", "line 1.*write an absolute path"),
        ("healthcheck_path: /c\nsocketpath: /s", "line 2: there is no key socketpath; write socket_path"),
        ("healthcheck_path: /c\ntimeout: soon", "line 2"),
        ("- /c", "its top is not a mapping"),
    ],
)
def test_mistakes_are_told_with_their_line(tmp_path: Path, text: str, words: str) -> None:
    with pytest.raises(HoldfastError, match=words):
        read(tmp_path, text)


def test_a_file_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match=r"cannot read .*nvhcd\.yaml: No such file"):
        read_healthd_file(str(tmp_path / "nvhcd.yaml"))
