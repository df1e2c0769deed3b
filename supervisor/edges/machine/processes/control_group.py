"""In which control group is this process, and which groups above it limit it, too?

Folders are found through /proc, never assumed: nodes mount version 1, version 2 or both, anywhere.
"""

from __future__ import annotations

from pathlib import Path


def own_groups(process: Path = Path("/proc/self"), *, controller: str = "") -> tuple[Path, ...]:
    """Returns the folder of its group and those of the groups above it, as far as they are mounted; () if none is.

    `controller`: its groups of version 1, or of version 2 if version 1 does not have it. "": version 2.
    """
    try:
        groups = (process / "cgroup").read_text(errors="replace").splitlines()
        mounts = (process / "mountinfo").read_text(errors="replace").splitlines()
    except OSError:
        return ()
    paths = {
        name: Path(path) for _, names, path in (line.split(":", 2) for line in groups) for name in names.split(",")
    }
    hierarchy = controller if controller in paths else ""  # version 2 has no name
    if (path := paths.get(hierarchy)) is None:
        return ()
    for line in mounts:
        left, _, right = line.partition(" - ")
        if _is_of(hierarchy, right):
            root, point = left.split(" ")[3:5]
            own = point / path.relative_to(root if path.is_relative_to(root) else "/")
            return tuple(each for each in (own, *own.parents) if each.is_relative_to(point))
    return ()


def _is_of(hierarchy: str, mount: str) -> bool:
    """Returns whether a mount, as "cgroup cgroup rw,memory", shows this hierarchy."""
    kind, options = mount.partition(" ")[0], mount.rpartition(" ")[2]
    return kind == "cgroup" and hierarchy in options.split(",") if hierarchy else kind == "cgroup2"
