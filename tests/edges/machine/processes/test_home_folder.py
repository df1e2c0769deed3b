"""The folder at home is the user's own, for this node and this boot alone."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from supervisor.edges.machine.processes import home_folder, process_table


def test_the_last_place_is_a_folder_at_home_for_this_node_and_boot(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    found = home_folder.home_dir({"HOME": str(tmp_path)})
    assert found is not None
    assert found.parent == tmp_path
    assert list(tmp_path.iterdir()) == []
    node = found.name[: -home_folder.BOOT_DIGITS]
    for name in (found.name, f"{node}01234567", ".holdfast-ffffffff-01234567", f"{node}mine"):
        (tmp_path / name).mkdir()
    (tmp_path / f"{node}76543210").symlink_to(tmp_path)
    assert home_folder.earlier_home_dirs({"HOME": str(tmp_path)}) == [tmp_path / f"{node}01234567"]
    monkeypatch.setattr(process_table, "boot_id", lambda: "89abcdef-0000")
    assert home_folder.home_dir({"HOME": str(tmp_path)}) == tmp_path / f"{node}89abcdef"


@pytest.mark.parametrize("home", ["", "relative", "/nowhere", "/proc/version"])
def test_without_a_home_there_is_no_last_place(home: str):
    assert home_folder.home_dir({"HOME": home}) is None


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root")
def test_the_home_of_somebody_else_is_not_taken(tmp_path: Path):
    os.chown(tmp_path, 4321, 4321)
    assert home_folder.home_dir({"HOME": str(tmp_path)}) is None
