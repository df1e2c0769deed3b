"""Do other nodes see this folder, too (NFS, Lustre, FUSE), and what is a file of this node called there?"""

from __future__ import annotations

import os
import platform
from pathlib import Path

NETWORK_FILE_SYSTEMS = frozenset(
    ("nfs", "nfs4", "lustre", "gpfs", "beegfs", "cifs", "smb3", "ceph", "9p", "afs", "fuse.sshfs", "wekafs", "panfs")
)

LOCAL_FILE_SYSTEMS = frozenset(("ext2", "ext3", "ext4", "xfs", "btrfs", "zfs", "f2fs"))  # certainly of this node alone


def file_of_node(folder: Path, name: str, ending: str = "") -> Path:
    """Returns the file of that name; on a network file system, that of this node."""
    if file_system(folder) in NETWORK_FILE_SYSTEMS:
        name = f"{name}-{platform.node() or 'node'}"
    return folder / f"{name}{ending}"


def is_of_this_node(folder: str) -> bool:
    """Returns whether the folder exists on a disk that no other node sees."""
    return os.path.isdir(folder) and file_system(Path(folder)) in LOCAL_FILE_SYSTEMS


def file_system(path: Path, mountinfo: Path = Path("/proc/self/mountinfo")) -> str:
    """Returns the type of the file system that holds `path`; "" if the kernel does not report it."""
    try:
        real = os.path.realpath(path)
        lines = mountinfo.read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        return ""
    best, kind = "", ""
    for line in lines:
        left, _, right = line.partition(" - ")
        point = left.split()[4].replace("\\040", " ")
        inside = real == point or real.startswith(point.rstrip("/") + "/")
        if inside and len(point) >= len(best):
            best, kind = point, right.split()[0]
    return kind
