"""Which file system holds a folder?"""

from __future__ import annotations

from pathlib import Path

from supervisor.edges.machine.network_folders import file_system


def test_a_file_system_is_named_by_its_closest_mount(tmp_path: Path):
    mountinfo = tmp_path / "mountinfo"
    mountinfo.write_text(
        "1 1 8:1 / / rw - ext4 /dev/sda rw\n"
        "2 1 0:9 / /srv rw,relatime shared:1 - nfs4 server:/srv rw\n"
        "3 1 0:8 / /srv/a\\040b rw - lustre x rw\n"
        f"4 1 0:7 / {tmp_path}/far rw - wekafs x rw\n"
    )
    (tmp_path / "near").symlink_to(tmp_path / "far")
    assert file_system(Path("/var"), mountinfo) == "ext4"
    assert file_system(Path("/srv/me"), mountinfo) == "nfs4"
    assert file_system(Path("/srv/a b/c"), mountinfo) == "lustre"
    assert file_system(tmp_path / "near", mountinfo) == "wekafs"
    assert file_system(tmp_path, tmp_path / "none") == ""
