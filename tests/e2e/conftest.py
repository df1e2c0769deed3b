import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from tests.e2e.launch import Launch, launched

Start = Callable[..., Launch]


@pytest.fixture(scope="session", autouse=True)
def _alone(no_supervisor_of_the_node: None) -> None:  # pyright: ignore[reportUnusedFunction]
    """Prevents the use of a node's supervisor: each test here starts jobs."""


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Start]:
    """Starts `holdfast run` with the arguments; ends it with all its processes after the test."""
    with ExitStack() as stack:

        def begin(*arguments: str, environment: dict[str, str] | None = None, python: str = sys.executable) -> Launch:
            folder = tmp_path / f"run{len(list(tmp_path.iterdir()))}"
            folder.mkdir()
            return stack.enter_context(launched(folder, *arguments, environment=environment, python=python))

        yield begin
