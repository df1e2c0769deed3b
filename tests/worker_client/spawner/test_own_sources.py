"""A name means the file that the import system would take; unusual files are ignored."""

from __future__ import annotations

import os
import sys
import time
import warnings
from pathlib import Path

import pytest

from worker_client.spawner.own_sources import Limits, OwnSources, UnreadableError


def sources(folder: Path, *more: Path, **limits: int | float) -> OwnSources:
    return OwnSources([str(folder), *map(str, more)], Limits(**limits))  # pyright: ignore[reportArgumentType]


def write(path: Path, content: str | bytes = "") -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(content.encode() if isinstance(content, str) else content)
    return path


def path_of(found: OwnSources, name: str) -> str:
    source = found.module(name)
    return source.path if source is not None else ""


class TestWhichFile:
    def test_a_package_wins_over_a_module_and_the_first_folder_over_the_second(self, tmp_path: Path) -> None:
        first, second = tmp_path / "1", tmp_path / "2"
        package = write(first / "both" / "__init__.py")
        write(first / "both.py")
        inner = write(first / "both" / "deep" / "mod.py")
        write(second / "both.py")
        other = write(second / "other.py")
        found = sources(first, second)
        assert path_of(found, "both") == str(package)
        assert path_of(found, "both.deep.mod") == str(inner)
        assert path_of(found, "other") == str(other)
        assert found.has("both.deep")
        assert found.module("both.deep") is None, "a folder alone runs nothing"
        assert not found.has("both.no")

    @pytest.mark.parametrize("name", ["sys", "no_such", "", ".", "a-b", "a..b", "numpy"])
    def test_what_is_no_own_module(self, tmp_path: Path, name: str) -> None:
        write(tmp_path / "sys.py")
        assert not sources(tmp_path).has(name)

    def test_a_folder_of_data_does_not_hide_an_installed_package(self, tmp_path: Path) -> None:
        write(tmp_path / "numpy" / "data.txt")
        assert not sources(tmp_path).has("numpy")

    def test_a_compiled_module_wins_and_tells_nothing(self, tmp_path: Path) -> None:
        write(tmp_path / "fast.py", "import torch")
        write(tmp_path / f"fast{__import__('importlib.machinery').machinery.EXTENSION_SUFFIXES[0]}")
        found = sources(tmp_path)
        assert found.has("fast")
        assert found.module("fast") is None

    def test_a_folder_that_comes_later(self, tmp_path: Path) -> None:
        late = write(tmp_path / "late" / "mod.py")
        found = sources(tmp_path / "1")
        assert not found.has("mod")
        found.add_folder(str(tmp_path / "late"), first=True)
        assert path_of(found, "mod") == str(late)


class TestOddFiles:
    @pytest.mark.parametrize(
        "content",
        [
            "def f(:",
            "\0",
            "# -*- coding: nonsense -*-",
            b"\xff\xfe\x00",
            "x = " + "(" * 500,
            b"# coding: ascii\n'\xe9'",
        ],
    )
    def test_what_cannot_be_parsed_is_as_nothing(self, tmp_path: Path, content: str | bytes) -> None:
        path = write(tmp_path / "odd.py", content)
        assert sources(tmp_path).module("odd") is None
        with pytest.raises(UnreadableError, match=r"odd\.py cannot be read"):
            sources(tmp_path).script(str(path))

    @pytest.mark.parametrize("content", [b"\xef\xbb\xbfimport x", b"# coding: latin-1\n'\xe9'", b"import x\r\ny=1\r\n"])
    def test_what_can(self, tmp_path: Path, content: bytes) -> None:
        write(tmp_path / "odd.py", content)
        assert sources(tmp_path).module("odd") is not None

    def test_pipes_devices_folders_and_lost_links_are_never_opened(self, tmp_path: Path) -> None:
        os.mkfifo(tmp_path / "pipe.py")
        (tmp_path / "device.py").symlink_to("/dev/zero")
        (tmp_path / "lost.py").symlink_to(tmp_path / "nowhere")
        (tmp_path / "circle.py").symlink_to(tmp_path / "circle.py")
        (tmp_path / "folder.py").mkdir()
        found = sources(tmp_path)
        began_s = time.monotonic()
        for name in ("pipe", "device", "lost", "circle", "folder"):
            assert found.module(name) is None
            with pytest.raises(UnreadableError):
                found.script(str(tmp_path / f"{name}.py"))
        assert time.monotonic() - began_s < 5

    def test_a_compilation_warns_nobody(self, tmp_path: Path) -> None:
        write(tmp_path / "odd.py", r"x = '\d' is 'y'")
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            assert sources(tmp_path).module("odd") is not None
        assert sys.modules["warnings"] is warnings


class TestLimits:
    def test_files_bytes_and_time(self, tmp_path: Path) -> None:
        for number in range(4):
            write(tmp_path / f"m{number}.py", f"x = {number:0100}".replace("= 0", "= 1"))
        names = [f"m{number}" for number in range(4)]

        def read(**limits: int | float) -> int:
            found = sources(tmp_path, **limits)
            return sum(found.module(name) is not None for name in names)

        assert read() == 4
        assert read(files=2) == 2
        assert read(file_bytes=50) == 0
        assert read(all_bytes=250) == 2
        assert read(time_s=-1.0) == 0
