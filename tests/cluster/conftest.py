from __future__ import annotations

import pytest

from tests.cluster import lab


@pytest.fixture(scope="session", autouse=True)
def _alone(no_supervisor_of_the_node: None) -> None:  # pyright: ignore[reportUnusedFunction]
    """Prevents the use of a node's supervisor: most tests here start jobs."""


@pytest.fixture(scope="session")
def namespaces() -> None:
    if why := lab.missing():
        pytest.skip(f"cannot tear a network of nodes apart: {why}")
