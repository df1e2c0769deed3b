"""Which rights does a process of root drop, in which order, before it is the supervisor of a user?

A separate program, run with `python -I -S` and only the standard library: exec leaves behind all memory of root's
process. It executes nothing after the change: the kernel would let other processes of the user trace the new program
before its first statement. It loads the supervisor as the user instead.
"""

from __future__ import annotations

import ctypes
import json
import os
import platform
import resource
import runpy
import site
import sys

PR_SET_DUMPABLE = 4
PR_SET_NO_NEW_PRIVS = 38
KEYCTL_JOIN_SESSION_KEYRING = 1
KEYCTL = {"x86_64": 250, "aarch64": 219, "riscv64": 219, "ppc64le": 271}  # the number of the system call
UMASK = 0o022


def become(uid: int, gid: int, groups: list[int], limits: list[tuple[str, int, int]]) -> None:
    """Drops root's rights. Raises OSError or ValueError; then nothing of the user's may run."""
    with open("/proc/self/oom_score_adj", "w") as file:
        file.write("0")  # the service is protected from the kernel's OOM killer; a user's processes must not be
    if os.getpriority(os.PRIO_PROCESS, 0) < 0:
        os.setpriority(os.PRIO_PROCESS, 0, 0)  # nor may they run before others
    os.umask(UMASK)
    for name, soft, hard in limits:
        number = getattr(resource, f"RLIMIT_{name}")
        least = _less(hard, resource.getrlimit(number)[1])
        # A spawner is executed with this limit, and the C library takes the size of all its threads' stacks from it.
        resource.setrlimit(number, (_less(soft, least) if name == "STACK" else least, least))
    _join_empty_keyring()
    if uid:
        os.setgroups(groups)
        os.setresgid(gid, gid, gid)
        os.setresuid(uid, uid, uid)
        _set(PR_SET_DUMPABLE, 0)  # as the kernel has done it at the change, unless fs.suid_dumpable is 1
        _set(PR_SET_NO_NEW_PRIVS, 1)  # later programs gain no rights through setuid or setgid bits
        if os.getresuid() != (uid, uid, uid) or os.getresgid() != (gid, gid, gid) or _can_be_root_again():
            raise PermissionError("the kernel did not take root's rights away")


def _less(one: int, other: int) -> int:
    if one == resource.RLIM_INFINITY:
        return other
    return one if other == resource.RLIM_INFINITY else min(one, other)


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


def _set(option: int, value: int) -> None:
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.prctl(option, value, 0, 0, 0):
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))


def main() -> None:
    wanted, program = json.loads(sys.argv[1]), sys.argv[2]
    try:
        become(wanted["uid"], wanted["gid"], wanted["groups"], wanted["limits"])
        for needed in (os.__file__, program):  # the user may not be able to read what root executed
            os.close(os.open(needed, os.O_RDONLY))
    except (OSError, ValueError) as error:
        sys.stderr.write(f"holdfast: cannot start a supervisor as user id {wanted['uid']}: {error}\n")
        raise SystemExit(78) from None
    del sys.argv[:2]
    site.main()
    runpy.run_path(program, run_name="__main__")


if __name__ == "__main__":
    main()
