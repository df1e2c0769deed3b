"""Are the control groups of a process found wherever a node mounts them?"""

from __future__ import annotations

from pathlib import Path

import pytest

from supervisor.edges.machine.processes.control_group import own_groups

V1 = "30 29 0:26 / /sys/fs/cgroup/memory rw - cgroup cgroup rw,memory\n"
V2 = "31 29 0:27 / /sys/fs/cgroup/unified rw - cgroup2 cgroup2 rw\n"
IN_CONTAINER = "32 29 0:28 /docker/1 /sys/fs/cgroup ro shared:9 - cgroup2 cgroup rw,nsdelegate\n"


@pytest.mark.parametrize(
    ("groups", "mounts", "controller", "found"),
    [
        ("4:memory:/a\n", V1, "", []),
        ("4:memory:/a\n0::/b.slice/c\n", V1 + V2, "", ["unified/b.slice/c", "unified/b.slice", "unified"]),
        ("4:memory:/a\n0::/b\n", V1 + V2, "memory", ["memory/a", "memory"]),
        ("4:cpu,memory:/\n0::/b\n", V1 + V2, "memory", ["memory"]),
        ("4:memory:/a\n0::/b\n", V1 + V2, "pids", ["unified/b", "unified"]),
        ("4:memory:/a\n0::/b\n", V2, "memory", []),
        ("0::/system.slice/a\n", V1, "", []),
        ("0::/docker/1/b\n", IN_CONTAINER, "", ["b", ""]),
        ("0::/\n", IN_CONTAINER, "", [""]),
        ("0::/docker/11\n", IN_CONTAINER, "", ["docker/11", "docker", ""]),
    ],
    ids=[
        "v1 alone", "both", "a controller of v1", "one of several", "a controller of v2", "v1 not mounted",
        "v2 not mounted", "a mount of a group", "the same in a namespace", "a group beside the mounted one",
    ],
)  # fmt: skip
def test_the_group_and_those_above_it_are_found_where_they_are_mounted(
    tmp_path: Path, groups: str, mounts: str, controller: str, found: list[str]
):
    (tmp_path / "cgroup").write_text(groups)
    (tmp_path / "mountinfo").write_text(mounts)
    assert own_groups(tmp_path, controller=controller) == tuple(Path("/sys/fs/cgroup", each) for each in found)


def test_a_node_without_proc_has_none(tmp_path: Path):
    assert own_groups(tmp_path) == ()
