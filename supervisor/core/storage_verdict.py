"""Which storage does a job depend on, and what does the answer of each path mean for the node?

A path that can't be used is unhealthy under every policy. A mount that the job has not named, and whose names its user
may not list, counts as healthy: it may be another user's. If such a mount refuses even to be looked at, nobody can tell
whether that is meant, or the server refuses this node. If a path does not answer in time, the storage may be slow, or
the server busy for all nodes. Neither evicts a node, unless the policy is strict.
"""

from __future__ import annotations

import enum
import errno
import re
from typing import assert_never

import msgspec

from supervisor.core.node_check_facts import Health, HealthCheckPolicy, HealthFinding, one_line

CHECK = "storage"
LUSTRE_HEALTH = "/sys/fs/lustre/health_check"
MOUNT_DEADLINE_S = 15.0
PATH_DEADLINE_S = 5.0
NETWORK_TYPES = ("lustre", "nfs", "nfs4")
SHOWN_CHARACTERS_MAX = 200

_ESCAPED = re.compile(r"\\([0-7]{3})")


class Kind(enum.StrEnum):
    """What to read at a path; each kind has a letter."""

    ANY = "p"  # the first bytes of a file or names of a folder; anything else need only exist
    FOLDER = "d"
    TEXT = "t"  # the whole of a small file
    MOUNTS = "m"  # the lines of a mountinfo that name a network file system


class Target(msgspec.Struct, frozen=True):
    kind: Kind
    path: str
    deadline_s: float
    filesystem: str = ""  # of a mount, its type


class Answered(msgspec.Struct, frozen=True):
    text: str = ""


class Failed(msgspec.Struct, frozen=True):
    """The system call failed; `errno` 0: the answer could not be understood."""

    errno: int
    words: str
    is_there: bool = False  # the folder was found, but this user may not list it


class Silent(msgspec.Struct, frozen=True):
    """No answer has come for this long."""

    since_s: float


class Unasked(msgspec.Struct, frozen=True):
    """The path could not even be checked; `why` is a sentence."""

    why: str


Answer = Answered | Failed | Silent | Unasked


def mounts(lines: str) -> tuple[Target, ...]:
    """Returns the network file systems in the lines of a mountinfo: one for each path, as visible now."""
    found: dict[str, str] = {}
    for line in lines.splitlines():
        before, separator, after = line.partition(" - ")
        fields, types = before.split(" "), after.split(" ")
        if not separator or len(fields) < 5:
            continue
        path = _unescaped(fields[4])
        found.pop(path, None)  # Another file system may be mounted over it.
        if types[0] in NETWORK_TYPES:
            found[path] = types[0]
    return tuple(Target(Kind.FOLDER, path, MOUNT_DEADLINE_S, filesystem) for path, filesystem in found.items())


def judge(target: Target, answer: Answer, policy: HealthCheckPolicy, *, took_s: float = 0.0) -> HealthFinding:
    health, reason = _verdict(target, answer, policy)
    return HealthFinding(CHECK, health, reason, took_s, target.path)


def is_absent(target: Target, answer: Answer) -> bool:
    """Returns whether this node lacks the target altogether, such as Lustre's own file on a node without Lustre."""
    return target.kind is Kind.TEXT and isinstance(answer, Failed) and answer.errno == errno.ENOENT


def nothing_found() -> HealthFinding:
    return HealthFinding(CHECK, Health.SKIPPED, "this node mounts neither Lustre nor NFS")


def _verdict(target: Target, answer: Answer, policy: HealthCheckPolicy) -> tuple[Health, str]:
    what = f"{target.path} ({target.filesystem})" if target.filesystem else target.path
    unknown = Health.UNHEALTHY if policy is HealthCheckPolicy.STRICT else Health.UNANSWERED
    match answer:
        case Answered(text) if target.kind is Kind.TEXT and text.strip() != "healthy":
            return Health.UNHEALTHY, f"{what} says {_shown(text)}"
        case Answered():
            return Health.HEALTHY, ""
        case Failed(errno.EACCES | errno.EPERM, words, is_there) if target.filesystem:
            return Health.HEALTHY if is_there else unknown, f"{what} can't be read by this user: {words}"
        case Failed(_, words):
            return Health.UNHEALTHY, f"{what} can't be read: {words}"
        case Silent(since_s):
            return unknown, f"{what} has not answered for {since_s:.1f} s"
        case Unasked(why):
            return unknown, f"{what} can't be looked at: {why}"
        case _:
            assert_never(answer)


def _unescaped(text: str) -> str:
    """Undoes the kernel's escapes: it writes blanks, tabs, line ends and backslashes as three octal digits."""
    return _ESCAPED.sub(lambda found: chr(int(found[1], 8)), text)


def _shown(text: str) -> str:
    return one_line(text, SHOWN_CHARACTERS_MAX)
