"""In which control group does a cycle run, and where is the group of a process?

Folders are found through /proc, never assumed: hosts mount version 1, version 2 or both, anywhere.
"""

from __future__ import annotations

import os
import select
import time
from contextlib import ExitStack, suppress

REMOVE_WAIT_S = 0.5


class CycleCgroups:
    """One cgroup v2 per cycle, under the spawner's own. `folder` is "" if that is impossible."""

    def __init__(self, job_id: str, *, wanted: bool) -> None:
        self.folder = _make_parent(job_id) if wanted else ""

    def make(self, cycle: int) -> str:
        """Returns the folder of `cycle`, created if needed; "" if there is none."""
        if not self.folder:
            return ""
        path = f"{self.folder}/cycle-{cycle}"
        try:
            os.makedirs(path, exist_ok=True)
        except OSError:
            return ""
        return path

    def kill(self, cycle: int) -> None:
        """Kills every process in the cgroup of `cycle` at once, if the kernel can (5.14)."""
        if self.folder:
            with suppress(OSError):
                _write(f"{self.folder}/cycle-{cycle}/cgroup.kill", b"1")

    def remove(self, cycle: int) -> None:
        """Removes the cgroup of `cycle`, unless a stuck process is in it."""
        if self.folder:
            _remove_tree(f"{self.folder}/cycle-{cycle}")

    def remove_all(self) -> None:
        """Removes every empty cgroup made here. May block for REMOVE_WAIT_S in all: kernels since 6.18 count a process
        as a member for some milliseconds after it was reaped, and signal when that ends.
        """
        if not self.folder:
            return
        deadline_s = time.monotonic() + REMOVE_WAIT_S
        _remove_tree(self.folder)
        while os.path.isdir(self.folder) and (left_s := deadline_s - time.monotonic()) > 0:
            _await_change(self.folder, left_s)
            _remove_tree(self.folder)


def join(folder: str) -> None:
    """Moves the calling process, which must have one thread, into the cgroup. On failure, it stays where it is."""
    if folder:
        with suppress(OSError):
            _write(f"{folder}/cgroup.procs", b"0")


def paths_of(pid: str) -> dict[str, str]:
    """Returns controller -> path from proc_pid_cgroup; version 2 has the controller ""."""
    paths: dict[str, str] = {}
    with suppress(OSError), open(f"/proc/{pid}/cgroup", encoding="utf-8", errors="surrogateescape") as file:
        for line in file:
            _, controllers, path = line.rstrip("\n").split(":", 2)
            paths.update(dict.fromkeys(controllers.split(","), path))
    return paths


def mounts() -> dict[str, tuple[str, str]]:
    """Returns "cgroup2" or a version 1 controller -> (mount point, path inside the hierarchy mounted there)."""
    mounts: dict[str, tuple[str, str]] = {}
    with suppress(OSError), open("/proc/self/mountinfo", encoding="utf-8", errors="surrogateescape") as file:
        for line in file:
            if " - cgroup" not in line:  # a machine may have thousands of others
                continue
            left, _, right = line.rstrip("\n").partition(" - ")
            kind, _, options = right.split(" ", 2)
            root, point = (_unescape(each) for each in left.split(" ")[3:5])
            if kind == "cgroup2":
                mounts.setdefault(kind, (point, root))
            elif kind == "cgroup":
                for option in options.split(","):
                    mounts.setdefault(option, (point, root))
    return mounts


def under(mount: tuple[str, str], path: str) -> str:
    point, root = mount
    inside = path[len(root) :] if root != "/" and path.startswith(root) else path
    return (point.rstrip("/") + "/" + inside.strip("/")).rstrip("/")


def _make_parent(job_id: str) -> str:
    own = _own_folder_v2()
    if not own:
        return ""
    _remove_abandoned(own)
    name = "".join(letter if letter.isalnum() or letter in "-_." else "_" for letter in job_id)[:64]
    folder = f"{own}/holdfast-{name}-{_pid_namespace()}.{os.getpid()}"
    probe = f"{folder}/probe"
    try:
        os.makedirs(probe)
    except OSError:
        return ""
    # Only moving a process shows whether that is allowed; a child that exits at once tries it.
    if os.path.exists(f"{probe}/cgroup.kill") and _can_join(probe):
        with suppress(OSError):
            os.rmdir(probe)
        return folder
    _remove_tree(folder)
    return ""


def _remove_abandoned(own: str) -> None:
    """Removes empty cgroups of spawners that were killed before they could clean up; one in use can't be removed.

    Leaves those of spawners in other pid namespaces, about which nothing is known.
    """
    with suppress(OSError):
        for name in os.listdir(own):
            namespace, _, pid = name.rpartition("-")[2].partition(".")
            if not name.startswith("holdfast-") or namespace != _pid_namespace() or not pid.isdigit():
                continue
            if not os.path.exists(f"/proc/{pid}"):
                _remove_tree(f"{own}/{name}")


def _pid_namespace() -> str:
    """Returns the number of this process's pid namespace; "" if the kernel does not say."""
    with suppress(OSError):
        return os.readlink("/proc/self/ns/pid").strip("pid:[]")
    return ""


def _await_change(folder: str, wait_s: float) -> None:
    """Waits until the kernel says that a cgroup at or below `folder` has become empty."""
    poller = select.poll()
    with suppress(OSError), ExitStack() as files:
        for path, _, _ in os.walk(folder):
            file = files.enter_context(open(f"{path}/cgroup.events", "rb", buffering=0))
            poller.register(file, select.POLLPRI)
            is_empty = b"populated 1" not in file.read()  # Reading arms the poll.
            if is_empty and path != folder:
                return  # It happened meanwhile.
        poller.poll(wait_s * 1000)


def _can_join(folder: str) -> bool:
    try:
        pid = os.fork()
    except OSError:  # No process more is allowed: the workers will say so.
        return False
    if pid == 0:
        try:
            _write(f"{folder}/cgroup.procs", b"0")
        except OSError:
            os._exit(1)
        os._exit(0)
    return os.waitpid(pid, 0)[1] == 0


def _own_folder_v2() -> str:
    path = paths_of("self").get("", "")
    mount = mounts().get("cgroup2")
    if not path or mount is None:
        return ""
    return under(mount, path)


def _unescape(text: str) -> str:
    for code, letter in (("\\040", " "), ("\\011", "\t"), ("\\012", "\n"), ("\\134", "\\")):
        text = text.replace(code, letter)
    return text


def _remove_tree(folder: str) -> None:
    """Removes the empty cgroups at and below `folder`, including those that a script made."""
    for path, _, _ in os.walk(folder, topdown=False):
        with suppress(OSError):
            os.rmdir(path)


def _write(path: str, content: bytes) -> None:
    fd = os.open(path, os.O_WRONLY | os.O_CLOEXEC)
    try:
        os.write(fd, content)
    finally:
        os.close(fd)
