"""The sockets and logs of a supervisor are in the folders of its place."""

from __future__ import annotations

from pathlib import Path

from supervisor.engine.output_plan import Console
from supervisor.wiring.supervisor_paths import Place


def test_sockets_are_in_the_socket_folder_and_logs_in_the_state_folder(tmp_path: Path):
    place = Place(tmp_path / "s", tmp_path / "state", Console(present=False), private=True)
    assert place.control_socket.parent == tmp_path / "s"
    assert place.worker_socket.is_relative_to(tmp_path / "s")
    assert place.log_dir.is_relative_to(tmp_path / "state")
