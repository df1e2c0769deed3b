"""Which of root's rights are left after the change, as seen from inside?"""

from __future__ import annotations

import json
import os
import resource
import subprocess
import sys
from pathlib import Path

import pytest

from supervisor.edges.users import privilege_drop

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="only root can become somebody else")

# In the same process, since another user can't reach every interpreter.
LOOK = """
import ctypes, json, os, resource, runpy, sys
become = runpy.run_path(sys.argv[1])["become"]
become(**json.loads(sys.argv[2]))
status = dict(line.rstrip().split(":\\t", 1) for line in open("/proc/self/status") if ":\\t" in line)
print(json.dumps({
    "uids": os.getresuid(), "gids": os.getresgid(), "groups": os.getgroups(),
    "caps": [int(status[name], 16) for name in ("CapInh", "CapPrm", "CapEff", "CapAmb")],
    "no_new_privileges": status["NoNewPrivs"], "files": resource.getrlimit(resource.RLIMIT_NOFILE),
    "stack": resource.getrlimit(resource.RLIMIT_STACK),
    "nice": os.getpriority(os.PRIO_PROCESS, 0), "umask": os.umask(0),
    "oom_score_adj": open("/proc/self/oom_score_adj").read().strip(),
    "may_be_traced": ctypes.CDLL(None).prctl(3, 0, 0, 0, 0),  # PR_GET_DUMPABLE
}))
try:
    os.setuid(0)
    print("root again")
except PermissionError:
    print("never root again")
"""


# A key in a session keyring of root's, and whether it is found there after the change.
KEYS = """
import ctypes, json, platform, runpy, sys
libc = ctypes.CDLL(None, use_errno=True)
add, request, control = {"x86_64": (248, 249, 250), "aarch64": (217, 218, 219)}[platform.machine()]
join, session = 1, -3
if libc.syscall(control, join, None, 0, 0, 0) < 0 or libc.syscall(add, b"user", b"holdfast", b"secret", 6, session) < 0:
    print("no keyrings here")
    raise SystemExit
assert libc.syscall(request, b"user", b"holdfast", None, 0) > 0
runpy.run_path(sys.argv[1])["become"](**json.loads(sys.argv[2]))
print("found" if libc.syscall(request, b"user", b"holdfast", None, 0) > 0 else "not found")
"""
ROOTS_UMASK = 0o077


def _become(**changes: object) -> list[str]:
    return _look(LOOK, **changes)


def _look(program: str, **changes: object) -> list[str]:
    wanted: dict[str, object] = {"uid": 54321, "gid": 54322, "groups": [54330], "limits": []}
    # A service's own is below zero, which not every root may set: here it only has to be another one.
    scored = ["sh", "-c", 'echo 300 > /proc/self/oom_score_adj; exec "$@"', "sh", "nice", "-n", "-10"]
    command = [*scored, sys.executable, "-c", program, privilege_drop.__file__, json.dumps(wanted | changes)]
    done = subprocess.run(command, capture_output=True, text=True, check=False, umask=ROOTS_UMASK)
    assert done.returncode == 0, done.stderr
    return done.stdout.splitlines()


def test_nothing_of_root_is_left():
    facts, again = _become()
    assert json.loads(facts) | {"files": None, "stack": None} == {
        "uids": [54321] * 3,
        "gids": [54322] * 3,
        "groups": [54330],
        "caps": [0, 0, 0, 0],
        "no_new_privileges": "1",
        "files": None,
        "stack": None,
        "nice": 0,
        "umask": 0o022,
        "oom_score_adj": "0",
        "may_be_traced": 0,
    }
    assert again == "never root again"


@pytest.mark.parametrize("uid", [0, 54321])
def test_keys_of_root_are_out_of_reach(uid: int):
    (said,) = _look(KEYS, uid=uid)
    if said == "no keyrings here":
        pytest.skip("this kernel gives no keyrings")
    assert said == "not found"


def test_limits_are_never_more_than_those_given_and_those_of_root():
    assert json.loads(_become(limits=[["NOFILE", 10, 333]])[0])["files"] == [333, 333]
    hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    assert json.loads(_become(limits=[["NOFILE", 10, hard + 1]])[0])["files"] == [hard, hard]


def test_the_soft_limit_of_stacks_stays_since_threads_of_a_job_have_stacks_of_that_size():
    """With "unlimited", those of glibc have 2 MiB on x86-64."""
    assert json.loads(_become(limits=[["STACK", 8 << 20, 1 << 30]])[0])["stack"] == [8 << 20, 1 << 30]
    assert json.loads(_become(limits=[["STACK", resource.RLIM_INFINITY, 1 << 30]])[0])["stack"] == [1 << 30] * 2


def test_a_change_that_fails_runs_nothing(tmp_path: Path):
    wanted = json.dumps({"uid": 54321, "gid": 54321, "groups": [], "limits": []})
    (tmp_path / "program.py").write_text("print('run')")
    command = [sys.executable, "-I", "-S", privilege_drop.__file__, wanted, str(tmp_path / "program.py")]
    refused = ["setpriv", "--bounding-set", "-setuid", *command]
    done = subprocess.run(refused, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (78, "")
    assert "cannot start a supervisor as user id 54321: [Errno 1]" in done.stderr
