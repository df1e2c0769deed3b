"""Nodes of a cluster on this machine: each has its own network, host name and processes; a switch connects them.

A node is a process of ours, PID 1 of its namespaces: all its processes end with it. It ends with the process that made
the lab, however that ends, so nothing is left behind, and no namespace has a name.
"""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import time
from collections.abc import Generator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO

NETWORK = "10.77.0"  # only for the lab: nothing outside can reach it
SWITCH = 254  # the last number of the switch's address
NOBODY = "02:00:00:00:de:ad"  # a hardware address that does not exist in the lab
SMALL_BYTES = 600  # slightly more than IPv4 carries everywhere
READY_S = 20.0
NODES_MAX = 64
HOSTS = "".join(f"{NETWORK}.{number} node{number}\\n" for number in range(1, NODES_MAX + 1))
# As PID 1 that ignores SIGCHLD, it reaps orphans. Control groups belong to the whole machine: nodes have none.
HOLD = f"""
hostname {{name}} && mount -t tmpfs tmpfs /mnt && mount -t tmpfs tmpfs /sys/fs/cgroup &&
printf '127.0.0.1 localhost\\n{HOSTS}' > /mnt/hosts && mount --bind /mnt/hosts /etc/hosts &&
ip link set lo up && trap '' CHLD && echo ready && exec sleep infinity
"""
NAMESPACES = ("--net", "--uts", "--pid", "--mount", "--fork", "--kill-child", "--mount-proc")


class LabError(Exception):
    """Raised if the lab can't be made, or a node can't be changed."""


def missing() -> str:
    """Returns why no lab can be made here, "" if one can."""
    lacking = [program for program in ("unshare", "nsenter", "setpriv", "ip") if not shutil.which(program)]
    if lacking:
        return f"needs {', '.join(lacking)} (Debian: util-linux iproute2)"
    tried = subprocess.run(
        ["unshare", *NAMESPACES, "ip", "link", "add", "type", "bridge"], capture_output=True, check=False
    )
    return "" if tried.returncode == 0 else f"needs root and namespaces: {tried.stderr.decode().strip()}"


class Started:
    """A process on a node."""

    def __init__(self, launcher: subprocess.Popen[bytes]) -> None:
        self._launcher = launcher  # nsenter: it ends with the process

    @property
    def pid(self) -> int:
        return child_of(self._launcher.pid)

    def signal(self, number: int) -> None:
        os.kill(self.pid, number)
        if number == signal.SIGCONT:
            self._launcher.send_signal(number)  # it has stopped with its child

    def go_on(self) -> None:
        """Continues the process that waits for it, which has stopped with it."""
        if self._launcher.poll() is None:
            self._launcher.send_signal(signal.SIGCONT)

    def collect(self) -> None:
        """Reaps it: its node is dead, and nobody else does."""
        self._launcher.send_signal(signal.SIGCONT)
        self._launcher.wait(READY_S)

    def poll(self) -> int | None:
        return self._launcher.poll()

    def wait(self, timeout_s: float) -> int:
        return self._launcher.wait(timeout_s)


class Namespaces:
    """One machine of the lab: a node, or the switch."""

    def __init__(self, name: str) -> None:
        self.name = name
        self._started: list[Started] = []
        self._holder = subprocess.Popen(
            ["setpriv", "--pdeathsig", "KILL", "unshare", *NAMESPACES, "sh", "-c", HOLD.format(name=name)],
            stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, start_new_session=True,
        )  # fmt: skip
        assert self._holder.stdout is not None
        if (said := self._holder.stdout.readline()) != b"ready\n":
            raise LabError(f"cannot make {name}: {said.decode().strip()}")
        self.init_pid = child_of(self._holder.pid)

    def ip(self, *commands: str) -> None:
        """Runs commands of ip(8) here, one after another."""
        done = subprocess.run(
            ["nsenter", "-t", str(self.init_pid), "-n", "ip", "-batch", "-"],
            input="\n".join(commands), text=True, capture_output=True, check=False,
        )  # fmt: skip
        if done.returncode:
            raise LabError(f"cannot run {commands} in {self.name}: {done.stderr.strip()}")

    def command(self, *command: str) -> list[str]:
        """Returns the command line that runs `command` here."""
        return ["nsenter", "-t", str(self.init_pid), "-n", "-u", "-p", "-m", *command]

    @property
    def is_alive(self) -> bool:
        return self._holder.poll() is None

    def start(self, *command: str, environment: Mapping[str, str], output: IO[bytes]) -> Started:
        launcher = subprocess.Popen(
            self.command(*command), env=dict(environment),
            stdin=subprocess.DEVNULL, stdout=output, stderr=output, start_new_session=True,
        )  # fmt: skip
        self._started.append(Started(launcher))
        return self._started[-1]

    def processes(self) -> list[str]:
        """Returns the commands of the processes here, except of the one that holds it."""
        return [Path(f"/proc/{pid}/cmdline").read_text().replace("\0", " ") for pid in self.pids()]

    def pids(self) -> list[int]:
        """Returns the processes here, except the one that holds it, in the order of their pids."""
        own = _namespace_of(self.init_pid)
        known = sorted(map(int, filter(str.isdigit, os.listdir("/proc"))))
        return [pid for pid in known if pid != self.init_pid and _namespace_of(pid) == own]

    def pause(self) -> None:
        """Stops everything here, as when a virtual machine is migrated; but its clocks go on."""
        stopped: set[int] = set()
        while new := set(self.pids()) - stopped:
            for pid in new:
                with suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGSTOP)
            stopped |= new

    def go_on(self) -> None:
        """Continues everything here, the youngest process first."""
        for pid in reversed(self.pids()):
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGCONT)
        for each in self._started:
            each.go_on()

    def kill(self) -> None:
        """Kills everything here at once. If the link was down before, no goodbye reaches the network."""
        if self.is_alive:
            os.kill(self.init_pid, signal.SIGKILL)
        for each in self._started:
            each.collect()
        self._holder.wait(READY_S)
        assert self._holder.stdout is not None
        self._holder.stdout.close()


class Node(Namespaces):
    def __init__(self, number: int, switch: Namespaces) -> None:
        super().__init__(f"node{number}")
        self.number = number
        self.address = f"{NETWORK}.{number}"
        self._switch = switch
        self._port = f"port{number}"
        switch.ip(
            f"link add {self._port} type veth peer name eth0 netns {self.init_pid}",
            f"link set {self._port} master switch up",
        )
        self.ip(f"addr add {self.address}/24 dev eth0", "link set eth0 up")

    def lose_names(self) -> None:
        """Makes all names unknown; the name server never answers."""
        spoil = f"echo 127.0.0.1 localhost > /mnt/hosts && echo nameserver {NETWORK}.{SWITCH} > /mnt/resolv.conf"
        spoil += " && mount --bind /mnt/resolv.conf /etc/resolv.conf"
        subprocess.run(self.command("sh", "-c", spoil), check=True)

    def unplug(self) -> None:
        """Cuts all traffic, and nobody is notified."""
        self._switch.ip(f"link set {self._port} down")

    def plug_in(self) -> None:
        self._switch.ip(f"link set {self._port} up")

    def lose_to(self, other: Node) -> None:
        """Drops data from this node to the other one; the other direction works."""
        self.ip(f"neigh replace {other.address} lladdr {NOBODY} nud permanent dev eth0")

    def reach_again(self, other: Node) -> None:
        self.ip(f"neigh del {other.address} dev eth0")

    def lose_power(self) -> None:
        """Kills everything at once, without a goodbye."""
        self.unplug()
        self.kill()


class Lab:
    def __init__(self, nodes: int) -> None:
        self.switch = Namespaces("switch")
        self.nodes: dict[int, Node] = {}
        try:
            self.switch.ip(
                "link add switch type bridge",
                "link set switch up",
                f"addr add {NETWORK}.{SWITCH}/24 dev switch",
            )
            for number in range(1, nodes + 1):
                self.nodes[number] = Node(number, self.switch)
        except BaseException:
            self.close()
            raise

    def boot_again(self, number: int) -> Node:
        """Brings a killed node back: same name, same address, new processes."""
        assert not self.nodes[number].is_alive
        if self._has_port(number):  # connections with unsent data keep its old network for minutes
            self.switch.ip(f"link del port{number}")
        self.nodes[number] = Node(number, self.switch)
        return self.nodes[number]

    def lose_large(self, number: int) -> None:
        """Drops packets of more than SMALL_BYTES from and to the node, without notice to the sender."""
        for each in self.nodes.values():
            each.ip("link set eth0 gso_max_segs 1")  # otherwise the kernel passes many on as one, and checks no size
        self.switch.ip(f"link set port{number} mtu {SMALL_BYTES}")

    def _has_port(self, number: int) -> bool:
        try:
            self.switch.ip(f"link show port{number}")
        except LabError:
            return False
        return True

    def close(self) -> None:
        for each in (*self.nodes.values(), self.switch):
            each.kill()


@contextmanager
def lab_of(nodes: int) -> Generator[Lab]:
    lab = Lab(nodes)
    try:
        yield lab
    finally:
        lab.close()


def _namespace_of(pid: int) -> str:
    """Returns "" for a process that is gone."""
    try:
        return os.readlink(f"/proc/{pid}/ns/pid")
    except OSError:
        return ""


def child_of(pid: int) -> int:
    """Returns the first child of a process, once there is one."""
    found: list[str] = []

    def look() -> bool:
        try:
            found[:] = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
        except OSError as error:
            raise LabError(f"cannot find the child of process {pid}: it has ended") from error
        return bool(found)

    wait_for(look, f"a child of process {pid}")
    return int(found[0])


def wait_for(condition: object, what: str, limit_s: float = READY_S) -> None:
    assert callable(condition)
    give_up_at_s = time.monotonic() + limit_s
    while not condition():
        if time.monotonic() > give_up_at_s:
            raise LabError(f"{what} did not happen within {limit_s:g} s")
        time.sleep(0.005)
