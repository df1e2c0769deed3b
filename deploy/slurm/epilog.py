#!/usr/bin/python3 -I
"""Slurm's Epilog: which processes of the job are left on this node? Kills and logs them, or drains the node.

In slurm.conf: Epilog=/etc/slurm/holdfast/epilog.py. Standard library only, Python 3.9 or newer.

A process belongs to the job if it runs as the job's user and either started with the job's SLURM_JOB_ID in its
environment or is in the job's control group. Its name does not count, nor its user alone: a user may have other jobs on
the node. Each process is held by a descriptor, so that no signal can hit a later process with the same pid.
"""

from __future__ import annotations

import os
import re
import select
import shlex
import shutil
import signal
import subprocess
import sys
import syslog
import time
from contextlib import suppress

PATH = "/usr/sbin:/usr/bin:/sbin:/bin"  # Slurm sets none for an epilog
NAMED_MAX = 5
COMMAND_LETTERS_MAX = 60
SCONTROL_S = 30


class Process:
    """A process, held by a descriptor."""

    def __init__(self, pid: int) -> None:
        """Raises OSError if the process has ended."""
        self.pid = pid
        self.descriptor = os.pidfd_open(pid)
        try:
            stat = _read(f"/proc/{pid}/stat").rpartition(b")")[2].split()
            self.is_zombie, self.group = stat[0] in (b"Z", b"X"), int(stat[2])
            items = _read(f"/proc/{pid}/environ").split(b"\0")
            self.environment = {name: value for name, _, value in (item.partition(b"=") for item in items)}
            self.cgroups = _read(f"/proc/{pid}/cgroup").decode(errors="replace")
            words = _read(f"/proc/{pid}/cmdline").replace(b"\0", b" ").decode(errors="replace").strip()
        except BaseException:
            self.close()
            raise
        self.command = "".join(letter if letter.isprintable() else "?" for letter in words)[:COMMAND_LETTERS_MAX]

    def close(self) -> None:
        os.close(self.descriptor)

    def signal(self, number: int) -> None:
        with suppress(ProcessLookupError):
            signal.pidfd_send_signal(self.descriptor, number)

    def __str__(self) -> str:
        return f"pid {self.pid} ({self.command or 'no command line'})"


def _read(path: str) -> bytes:
    with open(path, "rb") as file:
        return file.read()


def of_job(job: str, uid: int) -> list[Process]:
    """Returns the job's processes."""
    found: list[Process] = []
    for name in filter(str.isdigit, os.listdir("/proc")):
        with suppress(OSError):  # it has just ended
            if os.stat(f"/proc/{name}").st_uid != uid:
                continue
            process = Process(int(name))
            if belongs(process, job, uid):
                found.append(process)
            else:
                process.close()
    return found


def belongs(process: Process, job: str, uid: int) -> bool:
    """Returns False for zombies, for this epilog, and, if the job is root's, for other prologs and epilogs."""
    if process.is_zombie or process.group == os.getpgrp():
        return False
    if uid == 0 and b"SLURM_SCRIPT_CONTEXT" in process.environment:
        return False
    is_in_group = re.search(rf"/job_{job}(/|$)", process.cgroups, re.MULTILINE) is not None
    return is_in_group or process.environment.get(b"SLURM_JOB_ID") == job.encode()


def wait(processes: list[Process], limit_s: float) -> list[Process]:
    """Waits for processes; returns those that have not ended within the limit."""
    poll, waiting = select.poll(), {process.descriptor: process for process in processes}
    for descriptor in waiting:
        poll.register(descriptor, select.POLLIN)
    give_up_at_s = time.monotonic() + limit_s
    while waiting and (left_s := give_up_at_s - time.monotonic()) > 0:
        for descriptor, _ in poll.poll(left_s * 1000):
            poll.unregister(descriptor)
            del waiting[descriptor]
    return list(waiting.values())


def end_supervisor(job: str, uid: int, limit_s: float) -> None:
    """Ends the supervisor that the prolog started, which ends its ranks first."""
    mark = job.encode()
    serving = [each for each in of_job(job, uid) if each.environment.get(b"HOLDFAST_SUPERVISOR_OF") == mark]
    for each in serving:
        each.signal(signal.SIGTERM)
    wait(serving, limit_s)


def end_leftovers(job: str, uid: int, limit_s: float) -> tuple[list[Process], list[Process]]:
    """Kills leftovers and what they start meanwhile. Returns those that ended, and those that did not in time."""
    ended: list[Process] = []
    give_up_at_s = time.monotonic() + limit_s
    while left := of_job(job, uid):
        for each in left:
            each.signal(signal.SIGKILL)
        stuck = wait(left, give_up_at_s - time.monotonic())
        ended += [each for each in left if each not in stuck]
        if stuck:
            return ended, stuck
    return ended, []


def listed(processes: list[Process]) -> str:
    more = f" and {len(processes) - NAMED_MAX} more" if len(processes) > NAMED_MAX else ""
    return ", ".join(str(each) for each in processes[:NAMED_MAX]) + more


def drain(node: str, reason: str) -> None:
    """Drains the node with a reason. Slurm also drains it for the exit code, but only says that an epilog failed."""
    environment = {"PATH": PATH, **{name: os.environ[name] for name in ("SLURM_CONF",) if name in os.environ}}
    command = ["scontrol", "update", f"NodeName={node}", "State=DRAIN", f"Reason={reason}"]
    with suppress(OSError, subprocess.TimeoutExpired):
        subprocess.run(command, env=environment, timeout=SCONTROL_S, check=False)


def settings() -> dict[str, str]:
    """Reads the NAME=value lines of the file beside this one."""
    path = os.path.join(os.path.dirname(os.path.abspath(__file__)), "settings")
    words = shlex.split(_read(path).decode(), comments=True)
    return {name: value for name, _, value in (word.partition("=") for word in words)}


def say(text: str, log: str) -> None:
    syslog.openlog("holdfast-epilog")
    syslog.syslog(text)
    if log:
        with suppress(OSError), open(log, "a") as file:
            file.write(f"{time.strftime('%FT%T%z')} epilog: {text}\n")


def main() -> int:
    job, uid = os.environ["SLURM_JOB_ID"], int(os.environ["SLURM_JOB_UID"])
    node, known = os.environ.get("SLURMD_NODENAME") or os.uname().nodename, settings()
    end_supervisor(job, uid, float(known["STOP_S"]))
    ended, stuck = end_leftovers(job, uid, float(known["KILL_S"]))
    shutil.rmtree(os.path.join(known["PLACE"], job), ignore_errors=True)
    if ended:
        say(f"job {job} has left on {node}: {listed(ended)}; killed", known.get("LOG", ""))
    if stuck:
        reason = f"holdfast: cannot end {listed(stuck)} of job {job}: SIGKILL has no effect"
        say(f"{node} is drained: {reason}", known.get("LOG", ""))
        drain(node, reason)
    return 1 if stuck else 0


if __name__ == "__main__":
    sys.exit(main())
