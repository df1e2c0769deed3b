#!/usr/bin/python3 -I
"""Slurm's Epilog: which processes of the job are left on this node? Kills and logs them, or drains the node.

In slurm.conf: Epilog=/etc/slurm/holdfast/epilog.py. Standard library only, Python 3.9 or newer.

A process belongs to the job if it runs as the job's user and either started with the job's SLURM_JOB_ID in its
environment or is in the job's control group. Its name does not count, nor its user alone: a user may have other jobs on
the node. Each process gets its signal by a descriptor, so that no signal can hit a later process with the same pid.
Processes that fork faster than anybody can look are ended like those of a supervisor: by process_sweep.py.
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
from collections.abc import Iterable
from contextlib import suppress
from typing import NamedTuple

sys.path.append(os.path.dirname(os.path.abspath(__file__)))  # which -I leaves out; it belongs to root
from process_sweep import Entry, Sweep, all_pids, look_up, send

PATH = "/usr/sbin:/usr/bin:/sbin:/bin"  # Slurm sets none for an epilog
NAMED_MAX = 5
READ_BYTES_MAX = 8 << 20  # execve takes less; a process may claim any range of its memory for its environment
COMMAND_LETTERS_MAX = 60
SCONTROL_S = 30


class Process(NamedTuple):
    """A process of the job, by what names it."""

    entry: Entry
    command: str

    def __str__(self) -> str:
        return f"pid {self.entry.pid} ({self.command or 'no command line'})"


def of(entry: Entry) -> Process:
    try:
        words = _read(f"/proc/{entry.pid}/cmdline").replace(b"\0", b" ").decode(errors="replace").strip()
    except OSError:
        words = ""
    return Process(entry, "".join(letter if letter.isprintable() else "?" for letter in words)[:COMMAND_LETTERS_MAX])


def _read(path: str) -> bytes:
    with open(path, "rb") as file:
        return file.read(READ_BYTES_MAX)


def environment_of(pid: int) -> dict[bytes, bytes]:
    """Returns the environment with which a process was started. Raises ProcessLookupError if it has ended."""
    text = _read(f"/proc/{pid}/environ")
    if not text and ((now := look_up(pid)) is None or now.has_ended):
        raise ProcessLookupError
    return {name: value for name, _, value in (item.partition(b"=") for item in text.split(b"\0"))}


def belongs(entry: Entry, job: str, uid: int) -> bool:
    """Returns False for this epilog and, if the job is root's, for other prologs and epilogs.

    Raises ProcessLookupError if the process has ended meanwhile.
    """
    try:
        if os.stat(f"/proc/{entry.pid}").st_uid != uid or entry.group == os.getpgrp():
            return False
        environment = environment_of(entry.pid)
        if uid == 0 and b"SLURM_SCRIPT_CONTEXT" in environment:
            return False
        if environment.get(b"SLURM_JOB_ID") == job.encode():
            return True
        cgroups = _read(f"/proc/{entry.pid}/cgroup").decode(errors="replace")
    except FileNotFoundError:
        raise ProcessLookupError from None
    return re.search(rf"/job_{job}(/|$)", cgroups, re.MULTILINE) is not None


def wait(entries: Iterable[Entry], limit_s: float) -> list[Entry]:
    """Waits for processes; returns those that have not ended within the limit."""
    give_up_at_s = time.monotonic() + limit_s
    stuck: list[Entry] = []
    for entry in entries:
        with suppress(OSError):  # it has ended
            descriptor = os.pidfd_open(entry.pid)
            try:
                now = look_up(entry.pid)
                if now is None or now.started_ticks != entry.started_ticks:
                    continue
                poll = select.poll()
                poll.register(descriptor, select.POLLIN)
                if not poll.poll(max(0.0, give_up_at_s - time.monotonic()) * 1000):
                    stuck.append(entry)
            finally:
                os.close(descriptor)
    return stuck


def end_supervisor(job: str, uid: int, limit_s: float) -> None:
    """Ends the supervisor that the prolog started, which ends its ranks first."""
    mark, serving = job.encode(), list[Entry]()
    for pid in all_pids():
        with suppress(OSError):  # it has ended
            entry = look_up(pid)
            if entry is None or entry.has_ended or not belongs(entry, job, uid):
                continue
            if environment_of(pid).get(b"HOLDFAST_SUPERVISOR_OF") == mark:
                serving.append(entry)
    for entry in serving:
        send(entry, signal.SIGTERM)
    wait(serving, limit_s)


def end_leftovers(job: str, uid: int, limit_s: float) -> tuple[list[Process], list[Process]]:
    """Kills leftovers and what they start meanwhile. Returns those that ended, and those that did not in time."""
    found: dict[Entry, Process] = {}
    give_up_at_s = time.monotonic() + limit_s

    def note(entry: Entry) -> None:
        found[entry] = of(entry)

    # No groups of root's: one may have a prolog of another job.
    sweep = Sweep(lambda entry: belongs(entry, job, uid), with_groups=uid != 0, on_found=note)
    is_over = sweep.run(give_up_at_s)
    stuck = wait(found, give_up_at_s - time.monotonic())
    if not is_over and not stuck:  # they start others faster than anybody can kill them
        stuck = [*found][-1:]
    return [process for entry, process in found.items() if entry not in stuck], [found[entry] for entry in stuck]


def remove(folder: str) -> None:
    """Removes the supervisor's folder, with the file system that the prolog has mounted there."""
    if os.path.ismount(folder):
        with suppress(OSError):
            subprocess.run(["umount", "-l", folder], env={"PATH": PATH}, stderr=subprocess.DEVNULL, check=False)
    shutil.rmtree(folder, ignore_errors=True)


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
    remove(os.path.join(known["PLACE"], job))
    if ended:
        say(f"job {job} has left on {node}: {listed(ended)}; killed", known.get("LOG", ""))
    if stuck:
        reason = f"holdfast: cannot end {listed(stuck)} of job {job}: SIGKILL has no effect"
        say(f"{node} is drained: {reason}", known.get("LOG", ""))
        drain(node, reason)
    return 1 if stuck else 0


if __name__ == "__main__":
    sys.exit(main())
