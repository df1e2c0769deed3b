from __future__ import annotations

import pytest


@pytest.fixture(scope="session", autouse=True)
def _alone(no_supervisor_of_the_node: None) -> None:  # pyright: ignore[reportUnusedFunction]
    """Prevents the use of a node's supervisor: each test here starts jobs."""
