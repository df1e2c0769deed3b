"""Which launchers are measured, and how is each called for the same job, with defaults and tuned?"""

from __future__ import annotations

import enum
import os
import sys
from dataclasses import dataclass, field
from pathlib import Path

WORKLOADS = Path(__file__).parent / "workloads"
ON_NODES = Path(__file__).parent / "on_nodes.py"


PLUGIN = "holdfast"  # the name under which torchrun knows our rendezvous
# It looks for losses as often as ours does: a keep-alive each second, three missed.
TUNED_C10D = "keep_alive_interval=1,keep_alive_max_attempt=3"


def job_id(workload: str) -> str:
    """Returns the id by which to ask for our events afterwards; another bench and other jobs may run beside this."""
    return f"bench-{os.getpid()}-{Path(workload).name}"


class Family(enum.StrEnum):
    TORCHRUN = "torchrun"
    REFERENCE = "reference"
    HOLDFAST = "holdfast"


@dataclass(frozen=True, slots=True)
class JobOptions:
    """What a row wants of a job; each family of launchers has its own flags for it."""

    world_size: int = 4
    max_restarts: int = 3
    heartbeat_timeout_s: float | None = None
    watch_section: str = ""  # a monitored section's name, with a limit that is never reached
    stop_timeout_s: float | None = None
    tee_into: Path | None = None  # keep the output in files there, and show it too
    file_timers: bool = False  # torchrun only: its countdown server
    wrapped: bool = (
        False  # ranks restart in their processes; the reference runs without its launcher, which would stop it
    )
    arguments: tuple[str, ...] = ()  # the workload's
    flags: tuple[str, ...] = ()  # as the launcher spells them
    nodes: int = 1  # each has the same number of ranks
    spares: int = 0  # spare nodes


@dataclass(frozen=True, slots=True)
class Subject:
    key: str
    label: str
    family: Family
    program: Path
    tuning: tuple[str, ...] = ()
    environment: dict[str, str] = field(default_factory=dict[str, str])
    client: str = ""  # what workloads use to send heartbeats
    rendezvous: str = "c10d"  # torchrun's, on several nodes

    def command(self, workload: str, options: JobOptions) -> list[str]:
        """Returns the whole command line for `workload`."""
        script = str(WORKLOADS / f"{workload}.py")
        if options.wrapped and self.family is Family.REFERENCE:
            starter = str(WORKLOADS / "starting.py")
            where = f"/{options.nodes}/{{node}}/{{endpoint}}" if options.nodes > 1 else ""
            ranks = [starter, f"{options.world_size}{where}", script, *options.arguments]
            return [*self._on_nodes(options), str(self.program.parent / "python"), *ranks]
        ranks = options.world_size // options.nodes
        flags = ["--nproc-per-node", str(ranks), "--max-restarts", str(options.max_restarts)]
        if options.nodes > 1:
            flags += self._meeting_flags(options)
        elif self.family is not Family.HOLDFAST:
            flags.append("--standalone")
        if options.stop_timeout_s is not None:
            name = "--shutdown-timeout" if self.family is Family.TORCHRUN else "--workers-stop-timeout"
            flags += [name, f"{options.stop_timeout_s:g}"]
        if options.tee_into is not None:
            flags += ["--tee", "3", "--log-dir", str(options.tee_into)]
        if self.family is not Family.TORCHRUN:
            flags += self._monitoring_flags(options)
        start = ["run", "--job-id", job_id(workload)] if self.family is Family.HOLDFAST else []
        command = [str(self.program), *start, *flags, *options.flags, *self.tuning, script, *options.arguments]
        return [*self._on_nodes(options), *command]

    @staticmethod
    def _on_nodes(options: JobOptions) -> list[str]:
        if options.nodes == 1:
            return []
        return [sys.executable, str(ON_NODES), str(options.nodes), str(options.spares)]

    def _meeting_flags(self, options: JobOptions) -> list[str]:
        """Returns the rendezvous flags; on_nodes.py replaces the words in braces."""
        nodes, most = str(options.nodes), options.nodes + options.spares
        meeting = ["--rdzv-endpoint", "{endpoint}"]
        if self.family is Family.HOLDFAST:
            return ["--nnodes", f"{nodes}:{most}", *meeting, "--rdzv-conf", "token_file={token}"]
        backend = ["--rdzv-backend", self.rendezvous, "--rdzv-id", "bench", *meeting]
        if self.rendezvous == PLUGIN:
            backend += ["--rdzv-conf", "token_file={token}"]
        elif options.spares and self.tuning:
            backend += ["--rdzv-conf", TUNED_C10D]
        return ["--nnodes", nodes, "--node-rank", "{node}", *backend]

    def _monitoring_flags(self, options: JobOptions) -> list[str]:
        flags: list[str] = []
        if options.heartbeat_timeout_s is not None:
            flags += ["--ft-rank-heartbeat-timeout", f"{options.heartbeat_timeout_s:g}"]
            flags += ["--ft-initial-rank-heartbeat-timeout", "120"]
        if options.watch_section:
            flags += ["--ft-rank-section-timeouts", f"{options.watch_section}:3600"]
        if self.family is Family.REFERENCE:
            flags.append("--ignore-missing-fault-tol-cfg")
        return flags

    def variables(self, options: JobOptions) -> dict[str, str]:
        """Returns what the launcher's environment has in addition to the bench's."""
        timers = {"TORCHELASTIC_ENABLE_FILE_TIMER": "1"} if options.file_timers else {}
        return {**self.environment, **timers, "BENCH_CLIENT": self.client}


def torchrun() -> list[Subject]:
    """Returns torchrun as documented for one node, as its users can tune it, and with our rendezvous.

    With a store for each attempt its restarts succeed; ours has one for each round.
    """
    program = Path(sys.executable).parent / "torchrun"
    tuned = {"TORCH_DISABLE_SHARE_RDZV_TCP_STORE": "1"}
    interval = ("--monitor-interval", "0.01")
    return [
        Subject("torchrun", "torchrun", Family.TORCHRUN, program, client="file timers"),
        Subject("torchrun_tuned", "torchrun tuned", Family.TORCHRUN, program, interval, tuned, "file timers"),
        Subject(
            "torchrun_plugin", "torchrun with holdfast's rendezvous", Family.TORCHRUN, program, interval,
            client="file timers", rendezvous=PLUGIN,
        ),
    ]  # fmt: skip


def reference(program: Path) -> list[Subject]:
    """Returns the installed reference product, with defaults and with both of its polling intervals at 10 ms."""
    client = "nvidia_resiliency_ext.fault_tolerance"
    intervals = ("--monitor-interval", "0.01", "--ft-workload-check-interval", "0.01")
    return [
        Subject("reference", "reference", Family.REFERENCE, program, client=client),
        Subject("reference_tuned", "reference tuned", Family.REFERENCE, program, intervals, client=client),
    ]


def holdfast() -> list[Subject]:
    """Returns Holdfast, always with defaults."""
    program = Path(sys.executable).parent / "holdfast"
    return [Subject("holdfast", "holdfast", Family.HOLDFAST, program, client="worker_client")]
