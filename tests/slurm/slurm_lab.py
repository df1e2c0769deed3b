"""A real Slurm on this machine: a controller and three nodes, each with its own network, /tmp and processes.

It has what a site has, under the usual names: Holdfast in /opt/holdfast, its scripts for Slurm in /etc/slurm, a shared
home of an ordinary user. All of it is in namespaces of the lab, and ends with them.
"""

from __future__ import annotations

import os
import shutil
import stat
import subprocess
import sys
import time
from collections.abc import Generator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from tests.cluster import lab
from tests.cluster.lab import Lab, LabError, Namespaces, Started

ROOT = Path(__file__).parents[2]
PROGRAMS = ("slurmctld", "slurmd", "sbatch", "srun", "scontrol", "munged")
UNANSWERING = ROOT / "tests/soak/unanswering_fs.py"
PACKAGES = "slurmctld slurmd slurm-client munge"
NODES = 3
USER, USER_ID = "trainer", 4321
HOLDFAST = Path(sys.executable).with_name("holdfast")
SITE = Path("/mnt/site")  # the lab's folder as its machines see it, for all of them and for ordinary users
HOME = SITE / "home"
SCRIPTS = "/etc/slurm/holdfast"
FREEZER = Path("/sys/fs/cgroup/freezer")
LIMIT_S = 60.0
SAID_LETTERS = 1500
CREDENTIAL_S = 5  # also how long Slurm delays a job that it restarts

SLURM_CONF = f"""
ClusterName=lab
SlurmctldHost=switch({lab.NETWORK}.{lab.SWITCH})
SlurmUser=root
SlurmdUser=root
AuthType=auth/munge
CredType=cred/munge
AuthInfo=socket={SITE}/munge/socket,cred_expire={CREDENTIAL_S}
SlurmctldPidFile=/run/slurmctld.pid
SlurmdPidFile=/run/slurmd.pid
SlurmdSpoolDir=/run/slurmd
StateSaveLocation=/run/slurmctld
SlurmctldLogFile={SITE}/log/slurmctld
SlurmdLogFile={SITE}/log/slurmd.%n
SlurmctldTimeout=30
SlurmdTimeout=10
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
MpiDefault=none
SwitchType=switch/none
JobAcctGatherType=jobacct_gather/none
AccountingStorageType=accounting_storage/none
SelectType=select/cons_tres
SelectTypeParameters=CR_CPU
SchedulerType=sched/backfill
SchedulerParameters=batch_sched_delay=0,sched_min_interval=0,bf_interval=1
ReturnToService=2
CompleteWait=0
KillWait=5
UnkillableStepTimeout=20
JobRequeue=1
PreemptType=preempt/partition_prio
PreemptMode=REQUEUE
PropagateResourceLimits=NONE
PrologFlags=Alloc
Prolog={SCRIPTS}/prolog.sh
TaskProlog={SCRIPTS}/task_prolog.sh
Epilog={SCRIPTS}/epilog.py
NodeName=node[1-{NODES}] CPUs=2 RealMemory=1000 State=UNKNOWN
PartitionName=main Nodes=ALL Default=YES MaxTime=INFINITE State=UP PriorityTier=1 GraceTime=20
PartitionName=urgent Nodes=ALL MaxTime=INFINITE State=UP PriorityTier=9 PreemptMode=OFF
"""

# The machine's own files stay unchanged: files that are written, or must not be seen, are new and private. The checkout
# and its Python are at their own places; an ordinary user sees them even below closed folders.
PREPARE = f"""
set -eu
folder=$1; shift
keep() {{ if [ -d "$1" ]; then mkdir -p "$2"; else mkdir -p "${{2%/*}}" && : > "$2"; fi; mount --bind "$1" "$2"; }}
mkdir -p {SITE} /mnt/kept
mount --bind "$folder" {SITE}
covers=$1; shift
for path; do keep "$path" "/mnt/kept$path"; done
for place in /tmp /var/tmp /dev/shm; do mount -t tmpfs -o mode=1777 tmpfs $place; done
for place in /run /var/lib /var/spool /opt $covers; do mount -t tmpfs -o mode=755 tmpfs $place; done
for path; do [ -e "$path" ] || keep "/mnt/kept$path" "$path"; done
mkdir -p /run/slurmctld /run/slurmd /opt/holdfast/bin
ln -s "$(command -v {HOLDFAST})" /opt/holdfast/bin/
ln -s /bin/false /opt/holdfast/bin/python3 # without torch, as a site has it
for file in etc/passwd etc/group etc/slurm; do mount --bind {SITE}/$file /$file; done
"""
# The parts of the checkout and its Python that an ordinary user needs.
NEEDED = (
    *(ROOT / name for name in ("supervisor", "worker_client", "proto", "deploy/slurm", "tests/slurm/scripts")),
    *(ROOT / name for name in ("holdfast_command.py", "holdfast_torchrun.py")),
    UNANSWERING,
    Path(sys.prefix),
    Path(sys.base_prefix),
)


def closed_ancestors(path: Path) -> list[Path]:
    """Returns the outermost folder above `path` that is closed to ordinary users, if any."""
    return [place for place in reversed(path.parents) if not place.stat().st_mode & stat.S_IXOTH][:1]


def missing() -> str:
    """Returns why Slurm is not possible here, "" if it is."""
    lacking = [program for program in PROGRAMS if not shutil.which(program, path="/usr/sbin:/usr/bin:/sbin:/bin")]
    if lacking:
        return f"needs {', '.join(lacking)} (Debian: {PACKAGES})"
    return lab.missing()


@dataclass(frozen=True)
class Answer:
    """The output and the exit code of a command."""

    code: int
    stdout: str
    stderr: str


class SlurmLab:
    configuration = SLURM_CONF

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.home = folder / "home"
        # As after `activate`: the user's own Python comes first, and /opt/holdfast/bin is not there.
        self.variables = {"PATH": f"{sys.prefix}/bin:/usr/sbin:/usr/bin:/sbin:/bin", "LANG": "C.UTF-8"}
        self._furnish()
        self.lab = Lab(NODES)

    def start(self) -> None:
        """Returns once all nodes wait for jobs."""
        self._prepare(self.lab.switch)
        for node in self.lab.nodes.values():
            self._prepare(node)
        munge = SITE / "munge"
        self._daemon(
            self.lab.switch, "munged", "--foreground", "--force", "--socket", f"{munge}/socket", "--key-file",
            f"{munge}/key", "--pid-file", f"{munge}/pid", "--log-file", f"{munge}/log", "--seed-file", f"{munge}/seed",
        )  # fmt: skip
        self.until(lambda: (self.folder / "munge/socket").exists(), "munged")
        self._serve_accounts()
        self._daemon(self.lab.switch, "slurmctld", "-D", "-c")
        for number in self.lab.nodes:
            self.start_node(number)
        self.until_idle()

    def _serve_accounts(self) -> None:
        """Starts what the controller reports jobs to: nothing here."""

    def until_idle(self) -> None:
        idle = {f"node{number}": "idle" for number in self.lab.nodes}
        self.until(lambda: self.states() == idle, "idle nodes")

    def start_node(self, number: int) -> Started:
        return self._daemon(self.lab.nodes[number], "slurmd", "-D")

    def boot_again(self, number: int) -> None:
        self._prepare(self.lab.boot_again(number))
        self.start_node(number)

    def _furnish(self) -> None:
        """Makes the files that all machines of the site see."""
        self.folder.chmod(0o755)
        for name in ("home", "etc", "etc/slurm", "log", "munge"):
            (self.folder / name).mkdir()
        os.chown(self.home, USER_ID, USER_ID)
        (self.folder / "munge/key").touch(mode=0o600)
        (self.folder / "munge/key").write_bytes(os.urandom(128))
        for name, line in (
            ("passwd", f"{USER}:x:{USER_ID}:{USER_ID}::{HOME}:/bin/bash\n"),
            ("group", f"{USER}:x:{USER_ID}:\n"),
        ):
            (self.folder / "etc" / name).write_text(Path("/etc", name).read_text() + line)
        shutil.copytree(ROOT / "deploy/slurm", self.folder / "etc/slurm/holdfast")
        with (self.folder / "etc/slurm/holdfast/settings").open("a") as settings:
            settings.write(f"LOG={SITE}/log/scripts\nKILL_S=5\n")
        (self.folder / "etc/slurm/slurm.conf").write_text(self.configuration)
        (self.folder / "etc/slurm/cgroup.conf").write_text("CgroupPlugin=cgroup/v1\nCgroupAutomount=no\n")

    def _prepare(self, machine: Namespaces) -> None:
        covers = " ".join(sorted({str(place) for path in NEEDED for place in closed_ancestors(path)}))
        needed = [str(path) for path in NEEDED]
        command = machine.command("sh", "-c", PREPARE, "sh", str(self.folder), covers, *needed)
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        if done.returncode:
            raise LabError(f"cannot furnish {machine.name}: {done.stderr}")

    def _daemon(self, machine: Namespaces, *command: str) -> Started:
        with (self.folder / "log" / f"{command[0]}.{machine.name}.out").open("ab") as output:
            return machine.start(*command, environment=self.variables, output=output)

    def ask(self, *command: str, check: bool = True, user: bool = False, folder: Path = HOME) -> Answer:
        """Runs a command on the login machine: as root, or as the ordinary user."""
        if user:
            command = ("setpriv", f"--reuid={USER_ID}", f"--regid={USER_ID}", "--clear-groups", *command)
        done = subprocess.run(
            self.lab.switch.command("env", "-C", str(folder), *command), env={**self.variables, "HOME": str(HOME)},
            capture_output=True, text=True, timeout=LIMIT_S, check=False,
        )  # fmt: skip
        if check and done.returncode:
            raise AssertionError(f"{command}: {done.returncode}\n{done.stdout}{done.stderr}")
        return Answer(done.returncode, done.stdout, done.stderr)

    def states(self) -> dict[str, str]:
        told = self.ask("sinfo", "-h", "-N", "-p", "main", "-o", "%N %T", check=False).stdout
        return dict(line.split() for line in told.splitlines())

    def on_node(self, number: int, *command: str) -> Answer:
        done = subprocess.run(
            self.lab.nodes[number].command(*command), env=self.variables,
            capture_output=True, text=True, timeout=LIMIT_S, check=False,
        )  # fmt: skip
        return Answer(done.returncode, done.stdout, done.stderr)

    def exists(self, number: int, path: str) -> bool:
        return self.on_node(number, "test", "-e", path).code == 0

    def strangers(self) -> list[str]:
        """Returns the processes on all nodes that are not Slurm's own."""
        return [
            command
            for number in self.lab.nodes
            for command in self._processes(number).values()
            if not command.startswith(("slurmd ", "slurmstepd: "))
        ]

    def supervisor_on(self, number: int) -> int:
        """Returns the supervisor that a prolog started, by its pid on this machine; 0 if there is none."""
        found = (pid for pid, command in self._processes(number).items() if " daemon --socket-dir " in command)
        return next(found, 0)

    def _processes(self, number: int) -> dict[int, str]:
        init_pid = self.lab.nodes[number].init_pid
        own, found = os.readlink(f"/proc/{init_pid}/ns/pid"), dict[int, str]()
        for pid in map(int, filter(str.isdigit, os.listdir("/proc"))):
            with suppress(OSError):  # it has just ended
                if pid != init_pid and os.readlink(f"/proc/{pid}/ns/pid") == own:
                    found[pid] = Path(f"/proc/{pid}/cmdline").read_text().replace("\0", " ")
        return {pid: command for pid, command in found.items() if command}  # a zombie has none

    def epilogs_said(self, job: str) -> list[str]:
        log = self.folder / "log/scripts"
        return [line for line in log.read_text().splitlines() if f"job {job} " in line] if log.exists() else []

    @contextmanager
    def settings(self, **changes: str) -> Generator[None]:
        """Changes settings of Holdfast's scripts for the block."""
        file = self.folder / "etc/slurm/holdfast/settings"
        before = file.read_text()
        file.write_text(before + "".join(f"{name}={value}\n" for name, value in changes.items()))
        try:
            yield
        finally:
            file.write_text(before)

    @contextmanager
    def stuck_folder(self, number: int) -> Generator[str]:
        """Yields a folder on a node that never answers: not even SIGKILL ends a process that accesses it."""
        folder = "/run/stuck"
        self.on_node(number, "mkdir", "-p", folder)
        server = subprocess.Popen(
            self.lab.nodes[number].command(sys.executable, str(UNANSWERING), folder),
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
        )  # fmt: skip
        assert server.stdin is not None
        assert server.stdout is not None
        with server, server.stdin, server.stdout:
            assert server.stdout.readline() == "mounted\n"
            server.stdin.write("swallow")
            server.stdin.flush()
            yield folder

    def until(self, condition: object, what: str, limit_s: float = LIMIT_S) -> None:
        assert callable(condition)
        deadline_s = time.monotonic() + limit_s
        while not condition():
            if time.monotonic() > deadline_s:
                raise AssertionError(f"not within {limit_s:g} s: {what}\n{self.said()}")
            time.sleep(0.05)

    def said(self) -> str:
        """Returns the last messages of Slurm's daemons."""
        logs = sorted((self.folder / "log").iterdir())
        return "\n".join(f"{path.name}:\n{path.read_text(errors='replace')[-SAID_LETTERS:]}" for path in logs)

    def close(self) -> None:
        self.lab.close()


class CgroupLab(SlurmLab):
    """Slurm that tracks the processes of a step by control groups, as most sites do; of version 1."""

    configuration = SLURM_CONF.replace("proctrack/linuxproc", "proctrack/cgroup")

    def _prepare(self, machine: Namespaces) -> None:
        """Lets the machine see a group of its own as the root of all groups."""
        super()._prepare(machine)
        (FREEZER / self._group(machine)).mkdir(exist_ok=True)
        script = f"""
            mkdir -p {FREEZER} /run/freezer && mount -t cgroup -o freezer cgroup /run/freezer
            mount --bind /run/freezer/$1 {FREEZER}"""
        subprocess.run(machine.command("sh", "-ec", script, "sh", self._group(machine)), check=True)

    def _group(self, machine: Namespaces) -> str:
        return f"holdfast-{os.getpid()}-{machine.name}"

    def close(self) -> None:
        super().close()
        for machine in (self.lab.switch, *self.lab.nodes.values()):
            for folder, _, _ in os.walk(FREEZER / self._group(machine), topdown=False):
                with suppress(OSError):  # a process in it has not ended yet
                    os.rmdir(folder)


@contextmanager
def slurm_lab(folder: Path, kind: type[SlurmLab] = SlurmLab) -> Generator[SlurmLab]:
    running = kind(folder)
    try:
        running.start()
        yield running
    finally:
        running.close()
