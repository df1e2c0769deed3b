"""May a process be forked, or would a worker notice?"""

from __future__ import annotations

import threading
import warnings
from pathlib import Path

import pytest

from worker_client.spawner import fitness


class TestFitness:
    def test_files_beside_the_script_that_would_be_hidden(self, tmp_path: Path) -> None:
        loaded = {"json", "json.decoder", "numpy", "select", "queue"}
        assert fitness.shadowed(loaded, str(tmp_path)) == ""
        assert fitness.shadowed(loaded, "") == ""
        (tmp_path / "queue").mkdir()  # without __init__.py a folder does not win over a library module
        (tmp_path / "other.py").touch()
        assert fitness.shadowed(loaded, str(tmp_path)) == ""
        (tmp_path / "queue" / "__init__.py").touch()
        assert "the package queue beside the script" in fitness.shadowed(loaded, str(tmp_path))
        (tmp_path / "json.py").touch()
        assert "json.py beside the script would be hidden" in fitness.shadowed(loaded, str(tmp_path))

    def test_a_thread_is_named(self) -> None:
        release = threading.Event()
        thread = threading.Thread(target=release.wait, name="watcher")
        thread.start()
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                assert "runs the thread" in fitness.foreign_thread()
        finally:
            release.set()
            thread.join()

    def test_no_cuda_context_here(self) -> None:
        assert fitness.cuda_context() == ""

    def test_an_open_device_is_one(self, monkeypatch: pytest.MonkeyPatch) -> None:
        def read_link(path: str) -> str:
            return "/dev/nvidiactl" if path.endswith("/1") else "/x"

        monkeypatch.setattr("os.readlink", read_link)
        assert "opened /dev/nvidiactl" in fitness.cuda_context()
