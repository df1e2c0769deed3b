from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.slurm import slurm_lab
from tests.slurm.slurm_lab import SlurmLab


@pytest.fixture(scope="session")
def _lab(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SlurmLab]:  # pyright: ignore[reportUnusedFunction]
    if why := slurm_lab.missing():
        pytest.skip(f"cannot start Slurm: {why}")
    with slurm_lab.slurm_lab(tmp_path_factory.mktemp("slurm")) as running:
        yield running


@pytest.fixture
def slurm(_lab: SlurmLab) -> Iterator[SlurmLab]:
    """The lab with idle nodes and without jobs, whatever the previous test did."""
    for number, node in list(_lab.lab.nodes.items()):
        if not node.is_alive:
            _lab.boot_again(number)
    _lab.until_idle()
    yield _lab
    _lab.ask("scancel", "--user=trainer", "--signal=KILL", "--full", check=False)
    _lab.ask("scancel", "--user=trainer", check=False)
