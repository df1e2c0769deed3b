"""What do the answers of storage say about a node, and which mounts are checked?"""

from __future__ import annotations

import errno

import pytest

from supervisor.core.node_check_facts import Health, HealthCheckPolicy
from supervisor.core.storage_verdict import (
    Answer,
    Answered,
    Failed,
    Kind,
    Silent,
    Target,
    Unasked,
    is_absent,
    judge,
    mounts,
)

DOCUMENTED, TOLERANT, STRICT = HealthCheckPolicy
PATH = Target(Kind.ANY, "/data", 5.0)
MOUNT = Target(Kind.FOLDER, "/lustre", 15.0, "lustre")
LUSTRE = Target(Kind.TEXT, "/sys/fs/lustre/health_check", 15.0)
GONE = Failed(errno.ESTALE, "Stale file handle")
PRIVATE = Failed(errno.EACCES, "Permission denied", is_there=True)
SQUASHED = Failed(errno.EPERM, "Operation not permitted", is_there=True)
REFUSED = Failed(errno.EACCES, "Permission denied")

MOUNTINFO = r"""
22 1 8:1 / / rw,relatime shared:1 - ext4 /dev/sda1 rw
40 22 0:50 / /lustre rw shared:20 - lustre 10.0.0.1@o2ib:/fs1 rw,flock
41 22 0:51 /home /srv/all\040users rw - nfs4 server:/home rw,vers=4.2,hard
42 22 0:52 / /old\134place rw master:3 - nfs server:/old rw
43 22 0:53 / /hidden rw - nfs server:/hidden rw
44 22 0:54 / /hidden rw - tmpfs tmpfs rw
45 22 0:55 / /proc/fs/nfsd rw - nfsd nfsd rw
46 22 0:56 / /lustre rw - lustre 10.0.0.2@o2ib:/fs2 rw
a line that means nothing
"""


@pytest.mark.parametrize(
    ("target", "answer", "policies_against", "reason"),
    [
        (PATH, Answered(), (), ""),
        (PATH, GONE, (DOCUMENTED, TOLERANT, STRICT), "/data can't be read: Stale file handle"),
        (PATH, PRIVATE, (DOCUMENTED, TOLERANT, STRICT), "/data can't be read: Permission denied"),
        (MOUNT, PRIVATE, (), "/lustre (lustre) can't be read by this user: Permission denied"),
        (MOUNT, SQUASHED, (), "/lustre (lustre) can't be read by this user: Operation not permitted"),
        (PATH, REFUSED, (DOCUMENTED, TOLERANT, STRICT), "/data can't be read: Permission denied"),
        (MOUNT, REFUSED, (STRICT,), "/lustre (lustre) can't be read by this user: Permission denied"),
        (MOUNT, GONE, (DOCUMENTED, TOLERANT, STRICT), "/lustre (lustre) can't be read: Stale file handle"),
        (PATH, Silent(6.04), (STRICT,), "/data has not answered for 6.0 s"),
        (PATH, Unasked("it was killed"), (STRICT,), "/data can't be looked at: it was killed"),
        (MOUNT, Silent(15.0), (STRICT,), "/lustre (lustre) has not answered for 15.0 s"),
        (LUSTRE, Answered("healthy\n"), (), ""),
        (
            LUSTRE,
            Answered("device fs1-OST0000 reported unhealthy\nNOT HEALTHY\n"),
            (DOCUMENTED, TOLERANT, STRICT),
            "/sys/fs/lustre/health_check says device fs1-OST0000 reported unhealthy NOT HEALTHY",
        ),
        (LUSTRE, Answered(""), (DOCUMENTED, TOLERANT, STRICT), "/sys/fs/lustre/health_check says nothing"),
    ],
)
def test_what_is_broken_evicts_always_and_what_is_silent_only_where_the_policy_is_strict(
    target: Target, answer: Answer, policies_against: tuple[HealthCheckPolicy, ...], reason: str
) -> None:
    for policy in HealthCheckPolicy:
        found = judge(target, answer, policy, took_s=0.5)
        assert (found.health is Health.UNHEALTHY) == (policy in policies_against), policy
        assert (found.check, found.subject, found.took_s, found.reason) == ("storage", target.path, 0.5, reason)
        if (isinstance(answer, Silent) or (target, answer) == (MOUNT, REFUSED)) and policy is not STRICT:
            assert found.health is Health.UNANSWERED


def test_a_node_without_lustre_has_no_word_of_lustre() -> None:
    missing = Failed(errno.ENOENT, "No such file or directory")
    assert is_absent(LUSTRE, missing)
    assert not is_absent(LUSTRE, GONE)
    assert not is_absent(PATH, missing)


def test_network_file_systems_are_found_where_they_can_be_seen() -> None:
    found = mounts(MOUNTINFO)
    assert [(each.path, each.filesystem) for each in found] == [
        ("/srv/all users", "nfs4"),
        ("/old\\place", "nfs"),
        ("/lustre", "lustre"),
    ]
    assert {(each.kind, each.deadline_s) for each in found} == {(Kind.FOLDER, 15.0)}
