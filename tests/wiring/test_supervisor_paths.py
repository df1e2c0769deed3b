"""The sockets and logs of a supervisor are in the folders of its place."""

from __future__ import annotations

from pathlib import Path

from supervisor.engine.output_plan import Console
from supervisor.wiring.supervisor_paths import SupervisorPaths


def test_sockets_are_in_the_socket_folder_and_logs_in_the_state_folder(tmp_path: Path):
    paths = SupervisorPaths(tmp_path / "s", tmp_path / "state", Console(present=False), private=True)
    assert paths.control_socket.parent == tmp_path / "s"
    assert paths.worker_socket.is_relative_to(tmp_path / "s")
    assert paths.log_dir.is_relative_to(tmp_path / "state")
