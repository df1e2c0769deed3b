"""Does the kernel give a supervisor and its ranks enough: files, processes, shared memory (/dev/shm), locked memory?"""

from __future__ import annotations

import ctypes
import math
import os
import re
import resource

from supervisor.edges.machine.own_process import kernel_error_remedies
from supervisor.edges.machine.processes import process_table
from supervisor.programs.doctor import control_groups
from supervisor.programs.doctor.doctor_finding import Area, DoctorFinding
from supervisor.programs.doctor.machine_probe import Machine

NEEDED, WANTED = (5, 4), (5, 14)  # waitid on a pidfd; cgroup.kill
FILES_MIN = 4096
SHARED_MEMORY_MIN_BYTES = 1 << 30
PROCESSES_MIN = 4096
TIME_ERROR = 5  # adjtimex: the clock is not synchronised
CAP_SYS_PTRACE = 1 << 19


def look(machine: Machine) -> list[DoctorFinding]:
    area = Area("kernel")
    _version(area, machine.text("/proc/sys/kernel/osrelease"))
    _process_descriptors(area)
    _open_files(area, resource.getrlimit(resource.RLIMIT_NOFILE)[1])
    _processes(area, machine)
    _shared_memory(area, machine)
    _locked_memory(area, machine, resource.getrlimit(resource.RLIMIT_MEMLOCK)[1])
    _stacks(area, machine)
    _clock(area)
    return area.findings


def _version(area: Area, release: str) -> None:
    found = re.match(r"(\d+)\.(\d+)", release)
    if not found:
        area.skip("version", "the kernel does not report its version")
        return
    version = int(found[1]), int(found[2])
    if version < NEEDED:
        area.problem(
            "version",
            f"Linux {release}",
            why="processes are waited for by descriptors (waitid with P_PIDFD), which came with Linux 5.4",
            remedy="boot a newer kernel",
        )
    elif version < WANTED:
        area.note(
            "version",
            f"Linux {release}",
            why="a cycle's processes are killed one by one: cgroup.kill came with Linux 5.14",
        )
    else:
        area.ok("version", f"Linux {release}")


def _process_descriptors(area: Area) -> None:
    try:
        os.close(process_table.descriptor(os.getpid()))
    except process_table.NoDescriptorsError as error:
        area.problem(
            "process descriptors",
            str(error.strerror),
            why="no spawner can be started: processes are held and waited for by descriptors",
            remedy=kernel_error_remedies.NO_DESCRIPTORS_REMEDY,
        )


def _open_files(area: Area, limit: int) -> None:
    if limit == resource.RLIM_INFINITY or limit >= FILES_MIN:
        area.ok("open files", f"at most {'any number' if limit == resource.RLIM_INFINITY else limit} a process")
        return
    area.warn(
        "open files",
        f"at most {limit} a process",
        why="a rank's DataLoader workers and stores use hundreds, and fail with 'Too many open files'",
        remedy=f"ulimit -Hn {1 << 20}, LimitNOFILE={1 << 20} in the unit, or PropagateResourceLimitsExcept=NOFILE "
        "in slurm.conf",
    )


def _processes(area: Area, machine: Machine) -> None:
    own = resource.getrlimit(resource.RLIMIT_NPROC)[1]
    group = control_groups.limit(machine, "pids")
    least = min(math.inf if own == resource.RLIM_INFINITY else own, math.inf if group is None else group)
    if least >= PROCESSES_MIN:
        area.ok("processes", f"at most {'any number' if least == math.inf else least}")
        return
    area.warn(
        "processes",
        f"at most {least}, threads counted",
        why="each rank starts threads by the dozen; a fork that fails ends the cycle",
        remedy="ulimit -u unlimited, TasksMax=infinity in the unit and its slice, or docker run --pids-limit -1",
    )


def _shared_memory(area: Area, machine: Machine) -> None:
    try:
        found = os.statvfs(machine.path("/dev/shm"))
    except OSError:
        area.warn(
            "/dev/shm",
            "it is not there",
            why="DataLoader workers pass batches through it",
            remedy="mount -t tmpfs tmpfs /dev/shm",
        )
        return
    size = found.f_blocks * found.f_frsize
    told = f"{size / 2**30:.1f} GiB, {found.f_bavail * found.f_frsize / 2**30:.1f} GiB of it free"
    if size >= SHARED_MEMORY_MIN_BYTES:
        area.ok("/dev/shm", told)
        return
    area.warn(
        "/dev/shm",
        told,
        why="DataLoader workers and NCCL pass data through it; where it is full, ranks die of SIGBUS",
        remedy="mount -o remount,size=50% /dev/shm; in a container, --shm-size=16g or --ipc=host",
    )


def _locked_memory(area: Area, machine: Machine, limit: int) -> None:
    if not machine.names("/sys/class/infiniband"):
        area.skip("locked memory", "no InfiniBand")
    elif limit == resource.RLIM_INFINITY:
        area.ok("locked memory", "any amount")
    else:
        area.warn(
            "locked memory",
            f"at most {limit // 1024} KiB a process",
            why="NCCL registers memory with the InfiniBand adapter, and fails where it may not lock it",
            remedy="ulimit -l unlimited, LimitMEMLOCK=infinity in the unit, or "
            "PropagateResourceLimitsExcept=MEMLOCK in slurm.conf",
        )


def _stacks(area: Area, machine: Machine) -> None:
    """Checks how stacks can be taken: by py-spy, which reads a process's memory, or by the rank's faulthandler.

    Yama's scope 1 lets a process read its descendants; to py-spy, which the supervisor starts, ranks are none.
    """
    scope = machine.text("/proc/sys/kernel/yama/ptrace_scope") or "0"
    if not machine.program("py-spy"):
        area.note(
            "stacks",
            "py-spy is not installed",
            why="the stacks of a hang come from the ranks themselves, so one that holds the GIL in C shows less",
            remedy="pip install py-spy",
        )
    elif scope == "0" or (scope in ("1", "2") and _may_trace_all(machine)):
        area.ok("stacks", "py-spy may read ranks")
    else:
        area.note(
            "stacks",
            f"kernel.yama.ptrace_scope is {scope}" + ("" if scope == "3" else ", and CAP_SYS_PTRACE is missing"),
            why="py-spy may not read ranks; stacks come from the ranks themselves, which show less in C",
            remedy="kernel.yama.ptrace_scope=0 in /etc/sysctl.d, then reboot"
            if scope == "3"
            else "sysctl kernel.yama.ptrace_scope=0, run the service as root, or docker run --cap-add SYS_PTRACE",
        )


def _may_trace_all(machine: Machine) -> bool:
    """Returns whether this process has CAP_SYS_PTRACE, which root in a container often lacks."""
    found = re.search(r"^CapEff:\s*([0-9a-f]+)$", machine.text("/proc/self/status"), re.MULTILINE)
    return found is not None and bool(int(found[1], 16) & CAP_SYS_PTRACE)


def _clock(area: Area) -> None:
    """Checks that the clock is synchronised. Timers are monotonic, but people compare the logs of several nodes."""
    state = _adjtimex()
    if state is None:
        area.skip("clock", "the kernel does not say whether it is synchronised")
    elif state == TIME_ERROR:
        area.note(
            "clock",
            "it is not synchronised",
            why="times in logs and events of several nodes do not match; timeouts do not depend on it",
            remedy="timedatectl set-ntp true, or start chronyd",
        )
    else:
        area.ok("clock", "synchronised")


def _adjtimex() -> int | None:
    """Returns what the kernel reports of its clock. Changes nothing (modes 0)."""
    try:
        libc = ctypes.CDLL(None, use_errno=True)
        buffer = (ctypes.c_char * 256)()  # struct timex has 208 bytes
        state = libc.adjtimex(buffer)
    except (OSError, AttributeError):
        return None
    return None if state < 0 else int(state)
