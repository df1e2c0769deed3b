"""What does the kernel report about a peer, and what becomes of limits?"""

from __future__ import annotations

import os
import resource
import socket
import subprocess
import sys
from pathlib import Path

import pytest
from holdfast_wire import socket_user

from supervisor.edges.machine.processes import peer_identity
from supervisor.edges.machine.processes.peer_identity import ROOT, Identity

PEER = """
import os, sys, socket, resource
resource.setrlimit(resource.RLIMIT_NOFILE, (111, 222))
os.setgroups(range(54330, 54330 + int(sys.argv[2]))); os.setgid(54322); os.setuid(54321)
client = socket.socket(socket.AF_UNIX)
client.connect("\\0" + sys.argv[1])
sys.stdin.read()
"""


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root to be somebody else")
@pytest.mark.parametrize("groups", [2, 300])  # of directories with nested groups, users have hundreds
def test_user_groups_and_limits_are_those_of_the_process_that_connected(groups: int):
    name = f"holdfast-test-{os.getpid()}"
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind("\0" + name)
        listener.listen()
        listener.settimeout(20)
        with subprocess.Popen([sys.executable, "-c", PEER, name, str(groups)], stdin=subprocess.PIPE):
            client, _ = listener.accept()
            with client:
                assert peer_identity.identity_of(client) == Identity(54321, 54322, tuple(range(54330, 54330 + groups)))
                limits = {name: (soft, hard) for name, soft, hard in peer_identity.limits_of_peer(client)}
        assert limits["NOFILE"] == (111, 222)


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root to be somebody else")
def test_limits_of_a_program_that_runs_as_somebody_else_are_not_the_peers(monkeypatch: pytest.MonkeyPatch):
    """As of sudo, which a peer may execute after it has connected."""

    def when_it_connected(_: socket.socket) -> socket_user.Credentials:
        return socket_user.Credentials(os.getpid(), 54321, 54321)

    monkeypatch.setattr(socket_user, "credentials", when_it_connected)
    ours, theirs = socket.socketpair()
    with ours, theirs, pytest.raises(ProcessLookupError, match="has another user now"):
        peer_identity.limits_of_peer(ours)


def test_root_is_root_whatever_groups_its_shell_has():
    one, other = socket.socketpair()
    with one, other:
        found = peer_identity.identity_of(one)
    assert (found == ROOT) == (os.getuid() == 0)


def test_limits_are_read_as_the_kernel_shows_them():
    for name, soft, hard in peer_identity.limits_of(os.getpid()):
        assert (soft, hard) == resource.getrlimit(getattr(resource, f"RLIMIT_{name}")), name


def test_all_that_a_process_can_be_limited_in_is_there():
    names = {name.removeprefix("RLIMIT_") for name in dir(resource) if name.startswith("RLIMIT_")}
    assert names - {name for name, _, _ in peer_identity.limits_of(os.getpid())} <= {"OFILE"}


def test_a_process_gets_limits_and_never_more_than_it_may_have():
    with subprocess.Popen(["sleep", "60"]) as process:
        peer_identity.set_limits(process.pid, (("NOFILE", 50, 60),))
        assert resource.prlimit(process.pid, resource.RLIMIT_NOFILE) == (50, 60)
        peer_identity.set_limits(process.pid, (("NOFILE", 70, -1),))
        assert resource.prlimit(process.pid, resource.RLIMIT_NOFILE) == (60, 60)
        process.kill()


def test_names_tell_users_with_other_groups_apart():
    names = {
        Identity(1, 1, (2, 3)).name,
        Identity(1, 1, (2,)).name,
        Identity(1, 2, (2, 3)).name,
        Identity(2, 1, ()).name,
    }
    assert len(names) == 4
    assert Identity(1, 1, (3, 2)).name == Identity(1, 1, (2, 3)).name


def _raises_limits() -> bool:
    capabilities = next(
        line for line in Path("/proc/self/status").read_text().splitlines() if line.startswith("CapEff")
    )
    return bool(int(capabilities.split()[1], 16) & 1 << 24)  # CAP_SYS_RESOURCE


@pytest.mark.skipif(not _raises_limits(), reason="needs CAP_SYS_RESOURCE to raise hard limits")
def test_each_limit_that_can_be_raised_is_raised_and_the_soft_one_where_it_was_as_high():
    with subprocess.Popen(["sleep", "60"]) as process:
        for limit, soft in ((resource.RLIMIT_NOFILE, 300), (resource.RLIMIT_STACK, 8 << 20)):
            resource.prlimit(process.pid, limit, (soft, 300 if soft == 300 else 16 << 20))
        too_many = int(Path("/proc/sys/fs/nr_open").read_text()) + 1
        peer_identity.raise_hard(process.pid, (("NOFILE", 0, too_many), ("STACK", 0, 32 << 20)))
        assert resource.prlimit(process.pid, resource.RLIMIT_STACK) == (8 << 20, 32 << 20)
        peer_identity.raise_hard(process.pid, (("NOFILE", 0, 400),))
        assert resource.prlimit(process.pid, resource.RLIMIT_NOFILE) == (400, 400)
        peer_identity.raise_hard(process.pid, (("NOFILE", 0, 200),))
        assert resource.prlimit(process.pid, resource.RLIMIT_NOFILE) == (400, 400)
        process.kill()


def test_threads_get_no_larger_stacks_from_a_higher_limit(monkeypatch: pytest.MonkeyPatch):
    """The C library takes the size of all threads' stacks from the soft limit. Needs no right to raise any."""
    limits = {resource.RLIMIT_STACK: (8 << 20, 8 << 20), resource.RLIMIT_NOFILE: (300, 300)}

    def prlimit(_: int, number: int, wanted: tuple[int, int] | None = None) -> tuple[int, int]:
        limits[number] = wanted or limits[number]
        return limits[number]

    monkeypatch.setattr(resource, "prlimit", prlimit)
    peer_identity.raise_hard(1, (("STACK", 8 << 20, 32 << 20), ("NOFILE", 300, 400)))
    assert limits == {resource.RLIMIT_STACK: (8 << 20, 32 << 20), resource.RLIMIT_NOFILE: (400, 400)}


def test_the_highest_limits_keep_the_soft_ones():
    infinite = resource.RLIM_INFINITY
    one, other = (("NOFILE", 5, 300), ("STACK", 6, infinite)), (("NOFILE", 9, 400), ("STACK", 9, 7))
    assert peer_identity.highest(one, other) == (("NOFILE", 5, 400), ("STACK", 6, infinite))
    assert peer_identity.highest(other, one) == (("NOFILE", 9, 400), ("STACK", 9, infinite))
