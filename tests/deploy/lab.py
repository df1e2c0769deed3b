"""A machine of its own for a test: systemd as PID 1 in fresh namespaces, with cgroups of its own."""

from __future__ import annotations

import contextlib
import os
import shutil
import subprocess
import time
from collections.abc import Callable, Generator
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

import psutil

Answer = TypeVar("Answer")

SYSTEMD = Path("/usr/lib/systemd/systemd")
BOOT_TIMEOUT_S = 30.0

# Nothing in here may reach the machine that runs the tests: its files are read-only, the places that a service writes
# to are empty and private, and systemd sees the units in /run alone (Debian's own would empty /tmp, among other things)
BOOT = """
set -eu
mount --make-rprivate /
while read -r _ where _; do
    case $where in /proc*|/sys/*|/dev*) ;; *) mount -o remount,bind,ro "$where" ;; esac
done < /proc/self/mounts
if mkdir /holdfast-lab 2>/dev/null; then
    rmdir /holdfast-lab
    echo "cannot make a lab: / stayed writable" >&2
    exit 1
fi
for folder in /run /var/lib /var/log /var/tmp; do mount -t tmpfs tmpfs $folder; done
mkdir -p /run/dev /run/tmp/upper /run/tmp/work /run/systemd/system
mount -t overlay -o lowerdir=/tmp,upperdir=/run/tmp/upper,workdir=/run/tmp/work overlay /tmp
mount -t tmpfs tmpfs /run/dev
for node in null zero full random urandom tty; do : > /run/dev/$node; mount --bind /dev/$node /run/dev/$node; done
mkdir /run/dev/shm /run/dev/pts /run/dev/mqueue
ln -s pts/ptmx /run/dev/ptmx
ln -s /proc/self/fd /run/dev/fd
mount --move /run/dev /dev
umount -R /sys/fs/cgroup
mount -t cgroup2 cgroup2 /sys/fs/cgroup
for target in lab sysinit basic; do
    printf '[Unit]\\nDefaultDependencies=no\\n' > /run/systemd/system/$target.target
done
cp "$@" /run/systemd/system/
mkdir -p /run/etc/upper /run/etc/work
mount -t overlay -o lowerdir=/etc,upperdir=/run/etc/upper,workdir=/run/etc/work overlay /etc
mkdir /run/systemd/system/service.d /run/lab
printf '[Service]\\nStandardOutput=append:/run/lab/output\\nStandardError=append:/run/lab/output\\n' \\
    > /run/systemd/system/service.d/output.conf
export container=lab SYSTEMD_UNIT_PATH=/run/systemd/system
exec /usr/lib/systemd/systemd --system --unit=lab.target --log-target=console --log-level=notice
"""


def cgroup2_mount() -> Path | None:
    """Where the unified hierarchy is mounted; on hybrid machines not at /sys/fs/cgroup."""
    for line in Path("/proc/mounts").read_text().splitlines():
        _, where, kind, *_ = line.split()
        if kind == "cgroup2" and os.access(where, os.W_OK):
            return Path(where)
    return None


def missing() -> str:
    """Why no lab can be had here, "" if it can."""
    if os.geteuid() != 0:
        return "needs root for namespaces"
    for program in ("unshare", "nsenter"):
        if not shutil.which(program):
            return f"needs {program} (Debian: util-linux)"
    if not SYSTEMD.exists():
        return "needs systemd (Debian: systemd)"
    if cgroup2_mount() is None:
        return "needs a writable cgroup2 mount"
    tried = subprocess.run(
        ["unshare", "-p", "-f", "-m", "-u", "-i", "-n", "-C", "--mount-proc", "mount", "-t", "tmpfs", "tmpfs", "/run"],
        capture_output=True,
        text=True,
        check=False,
    )
    return f"needs namespaces: {tried.stderr.strip()}" if tried.returncode else ""


def until(condition: Callable[[], Answer | None], at_most_s: float, what: str) -> Answer:
    """The first answer that is true; looks again every 50 ms."""
    deadline_s = time.monotonic() + at_most_s
    while not (value := condition()):
        assert time.monotonic() < deadline_s, f"not within {at_most_s} s: {what}"
        time.sleep(0.05)
    return value


@dataclass(frozen=True)
class Lab:
    init_pid: int  # systemd, as this machine numbers it

    def run(self, *command: str, check: bool = True, timeout_s: float = 60.0) -> subprocess.CompletedProcess[str]:
        """Runs a command inside; its output is an attribute of the result, and of the error if it fails."""
        done = subprocess.run(self._inside(command), capture_output=True, text=True, timeout=timeout_s, check=False)
        assert not (check and done.returncode), (
            f"{command}: {done.returncode}\n{done.stdout}\n{done.stderr}\nservices said: {self.output()}"
        )
        return done

    def popen(self, *command: str) -> subprocess.Popen[str]:
        return subprocess.Popen(self._inside(command), stdout=subprocess.PIPE, text=True)

    def _inside(self, command: tuple[str, ...]) -> list[str]:
        return ["nsenter", "-t", str(self.init_pid), "-a", f"--wd={os.getcwd()}", *command]

    def output(self) -> str:
        """All that services have printed."""
        return self.run("sh", "-c", "cat /run/lab/output || true", check=False).stdout

    def show(self, unit: str) -> dict[str, str]:
        """The properties of a unit, as systemd tells them."""
        lines = self.run("systemctl", "show", unit).stdout.splitlines()
        return dict(line.split("=", 1) for line in lines if "=" in line)

    def write(self, path: str, text: str) -> None:
        self.run("sh", "-c", 'mkdir -p "$(dirname "$1")" && printf %s "$2" > "$1"', "sh", path, text)


@contextlib.contextmanager
def started(*units: Path, log: Path) -> Generator[Lab]:
    """Boots with these units, yields the lab, and takes all of it down again."""
    mount = cgroup2_mount()
    assert mount is not None
    cgroup = mount / f"holdfast-lab-{os.getpid()}"
    cgroup.mkdir()
    enter = 'echo $$ > "$1/cgroup.procs"; shift; exec "$@"'
    boot = [
        "unshare",
        "-p",
        "-f",
        "-m",
        "-u",
        "-i",
        "-n",
        "-C",
        "--mount-proc",
        "sh",
        "-c",
        BOOT,
        "sh",
        *map(str, units),
    ]
    with log.open("wb") as output:
        outer = subprocess.Popen(
            ["sh", "-c", enter, "sh", str(cgroup), *boot], stdin=subprocess.DEVNULL, stdout=output, stderr=output
        )
    try:
        init = until(lambda: _init_of(outer.pid), BOOT_TIMEOUT_S, f"systemd as PID 1\n{log.read_text()}")
        lab = Lab(init)
        until(lambda: _is_up(lab), BOOT_TIMEOUT_S, f"systemd is up\n{log.read_text()}")
        yield lab
    finally:
        for child in psutil.Process(outer.pid).children():
            child.kill()  # PID 1 of the namespace takes everything in it along
        outer.wait(timeout=BOOT_TIMEOUT_S)
        for folder in sorted(cgroup.rglob("*/"), reverse=True):
            if folder.is_dir():
                folder.rmdir()
        cgroup.rmdir()


def _init_of(outer_pid: int) -> int | None:
    children = psutil.Process(outer_pid).children()
    return children[0].pid if children and children[0].name() == "systemd" else None


def _is_up(lab: Lab) -> bool:
    state = lab.run("systemctl", "is-system-running", check=False).stdout.strip()
    return state in ("running", "degraded")
