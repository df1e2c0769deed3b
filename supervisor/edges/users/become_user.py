"""How does a process of root become one of a user: which rights does it drop before it executes, in which order?

A separate program, run with `python -I -S` and only the standard library: exec leaves behind all memory of root's
process before it, and all of its own after it.
"""

from __future__ import annotations

import ctypes
import json
import os
import platform
import resource
import sys

PR_SET_NO_NEW_PRIVS = 38
KEYCTL_JOIN_SESSION_KEYRING = 1
KEYCTL = {"x86_64": 250, "aarch64": 219, "riscv64": 219, "ppc64le": 271}  # the number of the system call
UMASK = 0o022


def become(uid: int, gid: int, groups: list[int], limits: list[tuple[str, int, int]]) -> None:
    """Drops root's rights. Raises OSError or ValueError; then nothing may be executed."""
    with open("/proc/self/oom_score_adj", "w") as file:
        file.write("0")  # the service is protected from the kernel's OOM killer; a user's processes must not be
    if os.getpriority(os.PRIO_PROCESS, 0) < 0:
        os.setpriority(os.PRIO_PROCESS, 0, 0)  # nor may they run before others
    os.umask(UMASK)
    for name, _, hard in limits:
        number = getattr(resource, f"RLIMIT_{name}")
        most = resource.getrlimit(number)[1]
        least = hard if most == resource.RLIM_INFINITY else most if hard == resource.RLIM_INFINITY else min(hard, most)
        resource.setrlimit(number, (least, least))
    _join_empty_keyring()
    if uid:
        os.setgroups(groups)
        os.setresgid(gid, gid, gid)
        os.setresuid(uid, uid, uid)
        _give_up_new_privileges()
        if os.getresuid() != (uid, uid, uid) or os.getresgid() != (gid, gid, gid) or _can_be_root_again():
            raise PermissionError("the kernel did not take root's rights away")


def _can_be_root_again() -> bool:
    try:
        os.setresuid(0, 0, 0)
    except PermissionError:
        return False
    return True


def _join_empty_keyring() -> None:
    """Joins an empty keyring, away from root's keys. A kernel without keyrings has none."""
    number = KEYCTL.get(platform.machine())
    if number is not None:
        ctypes.CDLL(None).syscall(number, KEYCTL_JOIN_SESSION_KEYRING, None, 0, 0, 0)


def _give_up_new_privileges() -> None:
    """Keeps later programs from gaining rights through setuid or setgid bits."""
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0):
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))


def main() -> None:
    wanted = json.loads(sys.argv[1])
    try:
        become(wanted["uid"], wanted["gid"], wanted["groups"], wanted["limits"])
        os.execv(sys.argv[2], sys.argv[2:])
    except (OSError, ValueError) as error:
        sys.stderr.write(f"holdfast: cannot start a supervisor as user id {wanted['uid']}: {error}\n")
        raise SystemExit(78) from None


if __name__ == "__main__":
    main()
