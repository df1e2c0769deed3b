"""Which --ft-* flags and keys of the `fault_tolerance:` section are there, with what types, units and defaults?

The names are the reference launcher's. Rules for later readers: a setting whose capability is missing is LATER, with
the values that ask for nothing in `harmless`; one that has nothing to act on in this architecture is INERT.
"""

from __future__ import annotations

from supervisor.config import health_endpoint, job_logs, log_server_settings, storage_paths, values
from supervisor.config.attribution_flags import ATTRIBUTION
from supervisor.config.setting import Group, Setting, Status

ITERATIONS_MAX = 1_000_000_000
_MIB_MAX = 1_048_576.0


def _works(flag: str, kind: values.Kind, group: Group, path: str, meaning: str, *, switch: bool = False) -> Setting:
    key = (flag.replace("-", "_"),)
    return Setting(f"--ft-{flag}", kind, meaning, group, path=path, keys=key, is_switch=switch)


def _inert(flag: str, kind: values.Kind, default: object, meaning: str, old_flags: tuple[str, ...] = ()) -> Setting:
    key = (flag.replace("-", "_"),)
    return Setting(
        f"--ft-{flag}",
        kind,
        meaning,
        Group.INERT,
        default=default,
        keys=key,
        old_flags=old_flags,
        status=Status.INERT,
        is_switch=kind is values.BOOLEAN,
    )


def _later(
    flag: str,
    kind: values.Kind,
    default: object,
    meaning: str,
    harmless: tuple[object, ...] = (),
    tolerated: tuple[object, ...] = (),
    keys: tuple[str, ...] = (),
    other_flags: tuple[str, ...] = (),
) -> Setting:
    return Setting(
        f"--ft-{flag}",
        kind,
        meaning,
        Group.LATER,
        default=default,
        keys=keys or (flag.replace("-", "_"),),
        harmless=harmless,
        tolerated=tolerated,
        status=Status.LATER,
        is_switch=kind is values.BOOLEAN,
        other_flags=other_flags,
    )


_LIMIT = values.seconds(none=True)
_PERIOD = values.seconds()
_SECONDS = values.seconds(zero=True)

CONFIG_FILE = Setting(
    "--ft-cfg-path",
    values.PATH,
    "YAML file with a fault_tolerance section",
    Group.RUN,
    old_flags=("--fault-tol-cfg-path",),
)
RESTART_POLICY = Setting(
    "--ft-restart-policy",
    values.choice("any-failed", "min-healthy"),
    "restart when any rank fails; or train on up to MAX nodes, and restart when fewer than MIN are healthy",
    Group.RESTART,
    path="restart.policy",
    keys=("restart_policy",),
    old_flags=("--restart-policy",),
)

SEGMENT = _works(
    "segment",
    values.integer(1, 100_000, "nodes", none=True),
    Group.NODES,
    "rendezvous.segment",
    "nodes of one NVLink domain that get consecutive ranks; MIN of --nnodes must be a multiple of it",
)

CYCLE_LOG = _works(
    "per-cycle-applog-prefix",
    job_logs.LOG_PATH,
    Group.OUTPUT,
    "logs.cycle_prefix",
    "write what all ranks print to one file per cycle: _cycle<N> is added to this name",
)

SECTION_LIMITS = _works(
    "rank-section-timeouts",
    values.SECTIONS,
    Group.HANGS,
    "hang_limits.sections",
    "longest time in each named section; other sections are not monitored",
)

AUTO_HEARTBEAT = _works(
    "auto-heartbeat-timeout",
    _LIMIT,
    Group.HANGS,
    "auto_heartbeat_s",
    "longest time in which the main thread of a Python script executes no bytecode; needs nothing in the script",
)

WORKING: tuple[Setting, ...] = (
    *log_server_settings.ALL,
    _works(
        "nvrx-logfile",
        job_logs.LOG_PATH,
        Group.OUTPUT,
        "logs.supervisor_log",
        "file for the supervisors' messages about this job",
    ),
    _works(
        "cycle-info-dir",
        job_logs.FOLDER,
        Group.OUTPUT,
        "logs.cycle_info_dir",
        "folder for a JSON file about each cycle: nodes, ranks, times, log",
    ),
    CONFIG_FILE,
    RESTART_POLICY,
    SEGMENT,
    CYCLE_LOG,
    _works(
        "no-restart-exit-code",
        values.integer(1, 255),
        Group.RESTART,
        "restart.no_restart_exit_code",
        "exit code that tells a scheduler not to start the job again",
    ),
    _works(
        "max-no-progress-cycles",
        values.integer(-1, 1_000_000, "cycles"),
        Group.RESTART,
        "restart.max_no_progress_cycles",
        "end the job after this many cycles without progress; 0: never",
    ),
    _works(
        "min-progress-iterations",
        values.integer(1, ITERATIONS_MAX, "iterations"),
        Group.RESTART,
        "restart.min_progress_iterations",
        "how many iterations in one cycle count as progress",
    ),
    _works(
        "checkpoint-iteration-file",
        values.PATH,
        Group.RESTART,
        "checkpoint_iteration_file",
        "file that holds the number of the last saved iteration, to judge progress",
    ),
    _works(
        "initial-rank-heartbeat-timeout",
        _LIMIT,
        Group.HANGS,
        "hang_limits.initial_heartbeat_s",
        "longest time from the client's init to its first heartbeat",
    ),
    _works(
        "rank-heartbeat-timeout", _LIMIT, Group.HANGS, "hang_limits.heartbeat_s", "longest time between two heartbeats"
    ),
    SECTION_LIMITS,
    _works(
        "rank-out-of-section-timeout",
        _LIMIT,
        Group.HANGS,
        "hang_limits.out_of_section_s",
        "longest time with no section open",
    ),
    AUTO_HEARTBEAT,
    _works(
        "num-warmup-iterations",
        values.integer(0, ITERATIONS_MAX, "steps"),
        Group.HANGS,
        "hang_limits.warm_up_steps",
        "number of first steps in a cycle to which the limit of section warmup applies",
    ),
    _works(
        "safety-factor",
        values.number(1.0, 1000.0),
        Group.HANGS,
        "safety_factor",
        "calculated timeouts are the observed maxima times this",
    ),
    _works(
        "workload-check-interval",
        _PERIOD,
        Group.HANGS,
        "learned_limit_floor_s",
        "calculated timeouts are never shorter; deadlines are exact, nothing polls",
    ),
    _works(
        "rank-termination-signal",
        values.SIGNAL,
        Group.HANGS,
        "rank_termination_signal",
        "signal that ends a rank that hangs; SIGCONT is sent before it, unless it is SIGKILL",
    ),
    _works(
        "install-exception-hook",
        values.BOOLEAN,
        Group.HANGS,
        "install_exception_hook",
        "end a rank at once, with its traceback, at an uncaught exception",
        switch=True,
    ),
    _works(
        "node-health-check-interval",
        _PERIOD,
        Group.HEALTH,
        "health.devices_period_s",
        "how often GPUs and network cards are checked while the job runs; each cycle always begins with a check",
    ),
    _works(
        "enable-nic-healthcheck",
        values.BOOLEAN,
        Group.HEALTH,
        "health.nic_states",
        "a network port (InfiniBand, RoCE) that was active and is not any more makes the node unhealthy",
        switch=True,
    ),
    _works(
        "enable-nic-monitor",
        values.BOOLEAN,
        Group.HEALTH,
        "health.nic_counters",
        "a port whose link goes down more than twice within ten minutes makes the node unhealthy",
        switch=True,
    ),
    _works(
        "link-state-path-template",
        values.PATH,
        Group.HEALTH,
        "health.link_state_template",
        "file with the state of a card's port, with {nic} for the card; default: those of all ports in sysfs",
    ),
    _works(
        "link-down-path-template",
        values.PATH,
        Group.HEALTH,
        "health.link_down_template",
        "file that counts how often the port's link went down, with {nic} for the card",
    ),
    _works(
        "gpu-memory-reclaim-timeout",
        _SECONDS,
        Group.HEALTH,
        "gpu_memory_timeout_s",
        "at a restart, wait at most this long until the memory of the job's GPUs is free; 0: do not wait",
    ),
    _works(
        "gpu-memory-tolerance-mb",
        values.number(0.0, _MIB_MAX, "MiB"),
        Group.HEALTH,
        "gpu_memory_tolerance_mib",
        "a GPU with at most this much memory in use counts as free",
    ),
    _works(
        "gpu-memory-poll-interval",
        _PERIOD,
        Group.HEALTH,
        "gpu_memory_look_s",
        "check the memory at least this often (and never less often than every 30 ms)",
    ),
    _works(
        "numa-bind-strict",
        values.BOOLEAN,
        Group.WORKERS,
        "numa_bind_strict",
        "use memory of the worker's own NUMA node only (with HOLDFAST_GPUS_PER_NUMA or --numa-binding)",
        switch=True,
    ),
    _works(
        "node-health-check-endpoint",
        health_endpoint.ENDPOINT,
        Group.HEALTH,
        "health.nvhcd_socket",
        "socket of the node's health service (nvhcd), asked before each cycle",
    ),
    _works(
        "node-health-check-policy",
        values.choice("documented", "tolerant", "strict"),
        Group.HEALTH,
        "health.policy",
        "if its answer can't be used, the node is unhealthy (documented), or not (tolerant); strict: also without an "
        "answer, and where storage does not answer",
    ),
    _works(
        "enable-dist-storage-healthcheck",
        values.BOOLEAN,
        Group.HEALTH,
        "health.storage_mounts",
        "look at Lustre's own health and at each Lustre and NFS mount before each cycle",
        switch=True,
    ),
    Setting(
        "--ft-storage-health-check-path",
        storage_paths.PATHS,
        "absolute paths that must be readable before each cycle",
        Group.HEALTH,
        path="health.storage_paths",
        keys=("storage_healthcheck_path", "storage_health_check_path"),
        other_flags=("--ft-storage-healthcheck-path",),
    ),
)

NO_EFFECT: tuple[Setting, ...] = (
    _inert("pci-topo-file", values.PATH, "", "all network cards of the node are checked, wherever they are connected"),
    _inert("restart-check-interval", _PERIOD, 60.0, "nothing polls for restarts"),
    _inert("skip-section-response", values.BOOLEAN, True, "heartbeats and sections never wait for an answer"),
    _inert("attribution-analysis-backend", values.choice("lib", "mcp"), "lib", "there is one analyser"),
    _inert("rdzv-impl", values.choice("barrier", "legacy"), "barrier", "there is one rendezvous"),
    _inert(
        "log-level",
        values.text("LEVEL", shape=values.Shape.WORD),
        "INFO",
        "rank monitors have no log level of their own",
    ),
    _inert("check-remaining-processes", values.BOOLEAN, False, "everything left of a cycle is always ended"),
    _inert(
        "ignore-missing-cfg",
        values.BOOLEAN,
        False,
        "no configuration file is needed",
        ("--ignore-missing-fault-tol-cfg",),
    ),
)

NOT_YET: tuple[Setting, ...] = (_later("scheduler-exclusion-dir", values.PATH, "", "scheduler exclusion files are"),)

FT_SETTINGS: tuple[Setting, ...] = WORKING + ATTRIBUTION + NO_EFFECT + NOT_YET
