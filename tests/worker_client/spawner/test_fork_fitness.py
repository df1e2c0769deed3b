"""May a process be forked, or would a worker notice?"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from worker_client.spawner import fork_fitness

THREAD = """
import sys, threading
from worker_client.spawner import fork_fitness
named = threading.Event()
def run():
    with open(f"/proc/self/task/{threading.get_native_id()}/comm", "w") as file: file.write(sys.argv[1])
    named.set()
    threading.Event().wait()
threading.Thread(target=run, daemon=True).start()
named.wait()
print(fork_fitness.foreign_thread())
"""


class TestFitness:
    def test_files_beside_the_script_that_would_be_hidden(self, tmp_path: Path) -> None:
        loaded = {"json", "json.decoder", "numpy", "select", "queue"}
        assert fork_fitness.shadowed(loaded, str(tmp_path)) == ""
        assert fork_fitness.shadowed(loaded, "") == ""
        (tmp_path / "queue").mkdir()  # without __init__.py a folder does not win over a library module
        (tmp_path / "other.py").touch()
        assert fork_fitness.shadowed(loaded, str(tmp_path)) == ""
        (tmp_path / "queue" / "__init__.py").touch()
        assert "the package queue beside the script" in fork_fitness.shadowed(loaded, str(tmp_path))
        (tmp_path / "json.py").touch()
        assert "json.py beside the script would be hidden" in fork_fitness.shadowed(loaded, str(tmp_path))

    @pytest.mark.parametrize(("name", "is_foreign"), [("watcher", True), ("jemalloc_bg_thd", False)])
    def test_a_thread_is_named_unless_its_library_survives_a_fork(self, name: str, is_foreign: bool) -> None:
        done = subprocess.run([sys.executable, "-c", THREAD, name], capture_output=True, text=True, check=True)
        assert ("runs the thread" in done.stdout) == is_foreign

    def test_no_cuda_context_here(self) -> None:
        assert fork_fitness.cuda_context() == ""

    def test_an_open_device_is_one(self, monkeypatch: pytest.MonkeyPatch) -> None:
        def read_link(path: str) -> str:
            return "/dev/nvidiactl" if path.endswith("/1") else "/x"

        monkeypatch.setattr("os.readlink", read_link)
        assert "opened /dev/nvidiactl" in fork_fitness.cuda_context()
