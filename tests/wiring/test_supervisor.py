"""What a supervisor opens is its own: if another one already serves there, it changes nothing."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from pathlib import Path

import anyio
import pytest

from supervisor.edges.machine.folders import socket_dir
from supervisor.edges.machine.folders.socket_claim import SocketDirClaim
from supervisor.edges.machine.folders.token_files import TokenFiles
from supervisor.engine.output_plan import Console
from supervisor.errors import InUseError
from supervisor.wiring.place import Place
from supervisor.wiring.supervisor import open_supervisor


@pytest.fixture
def folder() -> Iterator[Path]:
    """Yields a folder whose path leaves room for a socket's."""
    with tempfile.TemporaryDirectory() as name:
        yield Path(name)


def test_one_that_finds_its_folder_served_takes_no_tokens_away(folder: Path, tmp_path: Path):
    claim = SocketDirClaim(folder)
    socket_dir.make_closed(folder / "worker")
    token, path = TokenFiles(socket_dir.tokens_dir(folder)).issue("job", 0)

    async def serve() -> None:
        async with open_supervisor(Place(folder, tmp_path / "state", Console(present=False), private=False)):
            pytest.fail("two serve one folder")

    with pytest.raises(InUseError, match="serves it"):
        anyio.run(serve)
    assert path.read_bytes() == token
    claim.close()
