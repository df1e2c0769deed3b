"""What storage does a job depend on, and what does the answer of each path say about the node?

A path that can't be used is unhealthy under each policy. One that does not answer in time may be slow, or the server
may be busy for all nodes: that evicts nobody, unless the policy is strict.
"""

from __future__ import annotations

import enum
import errno
import re
from typing import assert_never

import msgspec

from supervisor.core.node_health import Finding, Health, HealthCheckPolicy, one_line

CHECK = "storage"
LUSTRE_HEALTH = "/sys/fs/lustre/health_check"
MOUNT_DEADLINE_S = 15.0
PATH_DEADLINE_S = 5.0
NETWORK_TYPES = ("lustre", "nfs", "nfs4")
SHOWN_CHARACTERS_MAX = 200

_ESCAPED = re.compile(r"\\([0-7]{3})")


class Kind(enum.StrEnum):
    """What is to be done at a path; each has a letter."""

    ANY = "p"  # a file gives its first bytes, a folder its first names, of all else it is enough that it is there
    FOLDER = "d"
    TEXT = "t"  # a small file, as a whole
    MOUNTS = "m"  # the lines of a mountinfo that name a network file system


class Target(msgspec.Struct, frozen=True):
    kind: Kind
    path: str
    deadline_s: float
    filesystem: str = ""  # of a mount


class Answered(msgspec.Struct, frozen=True):
    text: str = ""


class Failed(msgspec.Struct, frozen=True):
    """The system call has failed; `errno` 0: what came back is not understood."""

    errno: int
    words: str


class Silent(msgspec.Struct, frozen=True):
    """Nothing has come back, since so long."""

    since_s: float


class Unasked(msgspec.Struct, frozen=True):
    """It could not even be looked at; `why` is a sentence."""

    why: str


Answer = Answered | Failed | Silent | Unasked


def mounts(lines: str) -> tuple[Target, ...]:
    """The network file systems among the lines of a mountinfo, each place once, as it is seen now."""
    found: dict[str, str] = {}
    for line in lines.splitlines():
        before, separator, after = line.partition(" - ")
        fields, types = before.split(" "), after.split(" ")
        if not separator or len(fields) < 5:
            continue
        path = _unescaped(fields[4])
        found.pop(path, None)  # Another file system may have been mounted over it.
        if types[0] in NETWORK_TYPES:
            found[path] = types[0]
    return tuple(Target(Kind.FOLDER, path, MOUNT_DEADLINE_S, filesystem) for path, filesystem in found.items())


def judge(target: Target, answer: Answer, policy: HealthCheckPolicy, *, took_s: float = 0.0) -> Finding:
    health, reason = _verdict(target, answer, policy)
    return Finding(CHECK, health, reason, took_s, target.path)


def is_absent(target: Target, answer: Answer) -> bool:
    """Whether this node does not have at all what would be looked at: Lustre's own word on a node without Lustre."""
    return target.kind is Kind.TEXT and isinstance(answer, Failed) and answer.errno == errno.ENOENT


def nothing_found() -> Finding:
    return Finding(CHECK, Health.SKIPPED, "this node mounts neither Lustre nor NFS")


def _verdict(target: Target, answer: Answer, policy: HealthCheckPolicy) -> tuple[Health, str]:
    what = f"{target.path} ({target.filesystem})" if target.filesystem else target.path
    unknown = Health.UNHEALTHY if policy is HealthCheckPolicy.STRICT else Health.UNANSWERED
    match answer:
        case Answered(text) if target.kind is Kind.TEXT and text.strip() != "healthy":
            return Health.UNHEALTHY, f"{what} says {_shown(text)}"
        case Answered():
            return Health.HEALTHY, ""
        case Failed(_, words):
            return Health.UNHEALTHY, f"{what} can't be read: {words}"
        case Silent(since_s):
            return unknown, f"{what} has not answered for {since_s:.1f} s"
        case Unasked(why):
            return unknown, f"{what} can't be looked at: {why}"
        case _:
            assert_never(answer)


def _unescaped(text: str) -> str:
    """The kernel writes blanks, tabs, line ends and backslashes as three octal digits."""
    return _ESCAPED.sub(lambda found: chr(int(found[1], 8)), text)


def _shown(text: str) -> str:
    return one_line(text, SHOWN_CHARACTERS_MAX)
