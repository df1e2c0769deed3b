"""Which of torchrun's flags does `holdfast run` take, and which of its own?"""

from __future__ import annotations

from functools import cache

from supervisor.config import event_hooks, launch_values, log_limits, values
from supervisor.config.fault_tolerance import FT_SETTINGS
from supervisor.config.numa import NUMA_BINDING
from supervisor.config.setting import Group, Setting, Status
from supervisor.config.store_ports import STORE_PORTS

_STOP = values.seconds(zero=True)


def _inert(flag: str, kind: values.Kind, default: object, meaning: str) -> Setting:
    return Setting(flag, kind, meaning, Group.INERT, default=default, status=Status.INERT)


def _of_nodes(flag: str, meaning: str, path: str) -> Setting:
    return Setting(flag, values.BOOLEAN, meaning, Group.NODES, path=path, is_switch=True)


def _later(flag: str, kind: values.Kind, default: object, meaning: str, harmless: tuple[object, ...] = ()) -> Setting:
    return Setting(
        flag,
        kind,
        meaning,
        Group.LATER,
        default=default,
        harmless=harmless,
        status=Status.LATER,
        is_switch=kind is values.BOOLEAN,
    )


WORKERS = Setting(
    "--nproc-per-node",
    launch_values.WORKERS,
    "number of workers on this node; auto: one for each GPU, or for each CPU if there is no GPU",
    Group.WORKERS,
    default=1,
)
MODULE = Setting(
    "--module",
    values.BOOLEAN,
    "run the script as a module, as python -m does",
    Group.WORKERS,
    default=False,
    short="-m",
    is_switch=True,
)
NO_PYTHON = Setting(
    "--no-python",
    values.BOOLEAN,
    "run any program instead of a Python script",
    Group.WORKERS,
    default=False,
    is_switch=True,
)
PYTHON = Setting(
    "--python",
    values.text("PATH"),
    "Python interpreter for the job",
    Group.WORKERS,
    path="python",
    other_variables=("PYTHON_EXEC",),
    default_words="this one",
)
NO_AGENT_STORE = Setting(
    "--no-agent-store",
    values.BOOLEAN,
    "let rank 0 serve the TCPStore itself",
    Group.WORKERS,
    default=False,
    is_switch=True,
)
_ON_SIGTERM = "SIGTERM of this command: stop the job, or leave it to the other nodes, with a spare in this node's place"
SHUTDOWN_TIMEOUT = Setting(
    "--shutdown-timeout",
    _STOP,
    "sets the two timeouts above where they are not given",
    Group.RESTART,
    other_variables=("TORCH_ELASTIC_SHUTDOWN_TIMEOUT",),
    default_words="not set",
)
NNODES = Setting(
    "--nnodes",
    launch_values.NODES,
    "nodes that train, and nodes with hot spares (min-healthy, --elastic: that train)",
    Group.NODES,
    default=(1, 1),
)
ENDPOINT = Setting(
    "--rdzv-endpoint",
    launch_values.ENDPOINT,
    "address where nodes meet, the same on each; not needed for one node",
    Group.NODES,
    default="",
)
BACKEND = Setting(
    "--rdzv-backend", launch_values.BACKEND, "how nodes meet; not needed for one node", Group.NODES, default="static"
)
RUN_ID = Setting(
    "--rdzv-id",
    values.text("ID"),
    "run id, exported to workers as TORCHELASTIC_RUN_ID",
    Group.NODES,
    path="run_id",
    default_words="the job id",
)
RENDEZVOUS_OPTIONS = Setting(
    "--rdzv-conf",
    launch_values.RENDEZVOUS_OPTIONS,
    "options of the rendezvous, such as token_file=F,join_timeout=600",
    Group.NODES,
    default=(),
)
NODE_RANK = Setting(
    "--node-rank",
    values.integer(0, 1_000_000),
    "position of this node among all nodes, if none of CROSS_SLURM_PROCID, SLURM_TOPOLOGY_ADDR, SLURM_PROCID and "
    "GROUP_RANK gives one",
    Group.NODES,
    default_words="none: by name",
)
LOCAL_ADDRESS = Setting(
    "--local-addr",
    launch_values.ADDRESS,
    "name and address of this node, used as MASTER_ADDR unless --master-addr is given",
    Group.NODES,
    default_words="not set",
)
MASTER_ADDRESS = Setting(
    "--master-addr",
    launch_values.ADDRESS,
    "MASTER_ADDR of the workers; of several nodes without --rdzv-endpoint, where they meet",
    Group.NODES,
    path="master_addr",
)
MASTER_PORT = Setting(
    "--master-port",
    values.integer(0, 65535),
    "MASTER_PORT of the workers; 0: a new one in each cycle; of several nodes without --rdzv-endpoint, where they meet",
    Group.NODES,
    path="master_port",
)
JOB_ID = Setting("--job-id", values.JOB_ID_KIND, "name of the job", Group.RUN, default_words="from the script's name")
SOCKET_DIR = Setting(
    "--socket-dir",
    values.text("DIR", empty=False),
    "directory of the supervisor's sockets",
    Group.RUN,
    other_variables=("HOLDFAST_SOCKET_DIR",),
    default_words="the first that answers",
)
STATE_DIR = Setting(
    "--state-dir",
    values.text("DIR", empty=False),
    "directory for the journal and the logs",
    Group.RUN,
    other_variables=("HOLDFAST_STATE_DIR",),
    default_words="your state directory",
)
LOG_JOBS_MAX = Setting(
    log_limits.JOBS_FLAG,
    log_limits.JOBS_KIND,
    log_limits.JOBS_MEANING,
    Group.RUN,
    default=log_limits.DEFAULTS.jobs_max,
    other_variables=(log_limits.JOBS_VARIABLE,),
)
LOG_GIB_MAX = Setting(
    log_limits.GIB_FLAG,
    log_limits.GIB_KIND,
    log_limits.GIB_MEANING,
    Group.RUN,
    default=log_limits.DEFAULTS.gib_max,
    other_variables=(log_limits.GIB_VARIABLE,),
)
DRY_RUN = Setting(
    "--dry-run", values.BOOLEAN, "print what would be run, without running it", Group.RUN, default=False, is_switch=True
)
ON_EVENT = Setting(
    event_hooks.COMMAND_FLAG, event_hooks.COMMAND_KIND, event_hooks.COMMAND_MEANING, Group.RUN, default=""
)
ON_EVENT_URL = Setting(event_hooks.URL_FLAG, event_hooks.URL_KIND, event_hooks.URL_MEANING, Group.RUN, default="")
ON_EVENT_KINDS = Setting(
    event_hooks.KINDS_FLAG, event_hooks.KINDS_KIND, event_hooks.KINDS_MEANING, Group.RUN, default=event_hooks.NOTABLE
)
STANDALONE = Setting(
    "--standalone",
    values.BOOLEAN,
    "run on one node; accepted for compatibility with torchrun",
    Group.NODES,
    default=False,
    is_switch=True,
)

LAUNCH_SETTINGS: tuple[Setting, ...] = (
    WORKERS,
    MODULE,
    NO_PYTHON,
    PYTHON,
    Setting(
        "--role",
        values.text("NAME", empty=False),
        "role of the workers, exported as ROLE_NAME",
        Group.WORKERS,
        path="role",
    ),
    Setting(
        "--spawn-method",
        values.choice("auto", "fork", "exec"),
        "how workers start: forked from a warm interpreter, or executed one by one",
        Group.WORKERS,
        path="spawn_method",
        keys=("spawn_method",),
    ),
    Setting(
        "--preload",
        launch_values.PRELOAD,
        "modules that the warm interpreter loads in advance",
        Group.WORKERS,
        path="preload",
        keys=("preload",),
    ),
    NO_AGENT_STORE,
    NUMA_BINDING,
    Setting(
        "--max-restarts",
        values.integer(0, 1_000_000, "restarts"),
        "how often the job may restart before it fails",
        Group.RESTART,
        path="restart.max_restarts",
        keys=("max_restarts",),
    ),
    Setting(
        "--workers-stop-timeout",
        _STOP,
        "at a restart, time between SIGTERM and SIGKILL",
        Group.RESTART,
        path="workers_stop_timeout_s",
        keys=("workers_stop_timeout",),
    ),
    Setting(
        "--term-timeout",
        _STOP,
        "after this command received a signal, time between SIGTERM and SIGKILL; after a Ctrl-C at a terminal, 30 s by "
        "default",
        Group.RESTART,
        path="term_timeout_s",
        keys=("term_timeout",),
    ),
    SHUTDOWN_TIMEOUT,
    Setting("--on-sigterm", values.choice("stop", "leave"), _ON_SIGTERM, Group.NODES, path="on_sigterm"),
    Setting("--signals-to-handle", values.SIGNALS, "signals to forward", Group.RESTART, path="signals_to_handle"),
    Setting(
        "--completion-grace-s",
        values.seconds(zero=True, none=True),
        "after one rank has exited with 0, how long the others may go on",
        Group.HANGS,
        path="completion_grace_s",
        keys=("completion_grace_s",),
    ),
    Setting(
        "--evidence-budget-s",
        values.seconds(zero=True, most=60.0),
        "how long to collect stacks before a rank that hangs is ended",
        Group.HANGS,
        path="evidence_budget_s",
        keys=("evidence_budget_s",),
    ),
    Setting(
        "--log-dir",
        values.text("DIR"),
        "directory for the logs of this job",
        Group.OUTPUT,
        path="log_dir",
        default_words="under the state directory",
    ),
    Setting(
        "--redirects",
        launch_values.STREAMS,
        "write output to files only: 1 stdout, 2 stderr, 3 both; by local rank: 0:1,1:3",
        Group.OUTPUT,
        path="redirects",
        short="-r",
    ),
    Setting(
        "--tee",
        launch_values.STREAMS,
        "write output to files, and with a prefix to the console; values as above",
        Group.OUTPUT,
        path="tee",
        short="-t",
    ),
    Setting(
        "--local-ranks-filter",
        launch_values.RANKS,
        "show only these local ranks on the console",
        Group.OUTPUT,
        path="local_ranks_filter",
        default_words="all",
    ),
    NNODES,
    STANDALONE,
    BACKEND,
    ENDPOINT,
    RUN_ID,
    RENDEZVOUS_OPTIONS,
    NODE_RANK,
    MASTER_ADDRESS,
    MASTER_PORT,
    STORE_PORTS,
    LOCAL_ADDRESS,
    _of_nodes(
        "--keep-ranks",
        "at a restart, nodes that stay keep their ranks; otherwise all nodes are ordered again",
        "rendezvous.keep_ranks",
    ),
    _of_nodes(
        "--elastic",
        "train on as many nodes as there are, from MIN to MAX; others enter at the next restart; min-healthy does so",
        "rendezvous.elastic",
    ),
    JOB_ID,
    SOCKET_DIR,
    STATE_DIR,
    LOG_JOBS_MAX,
    LOG_GIB_MAX,
    ON_EVENT,
    ON_EVENT_URL,
    ON_EVENT_KINDS,
    DRY_RUN,
    _inert("--monitor-interval", values.seconds(), 0.1, "the kernel reports exits at once; nothing polls"),
    _inert(
        "--start-method",
        values.choice("spawn", "fork", "forkserver"),
        "spawn",
        "--spawn-method says how workers are started",
    ),
    _inert("--event-log-handler", values.text("NAME"), "null", "holdfast events and the journal hold the events"),
    _later("--run-path", values.BOOLEAN, False, "running the script inside the launcher's worker is"),
    _later("--duplicate-stdout-filters", values.text("FILTERS"), "", "a filtered copy of the output is"),
    _later("--duplicate-stderr-filters", values.text("FILTERS"), "", "a filtered copy of the output is"),
    _later("--logs-specs", values.text("NAME"), "", "a logging plug-in of torchrun is", ("default",)),
    _later("--virtual-local-rank", values.BOOLEAN, False, "a virtual local rank is"),
    _later("--replace-wait-s", values.seconds(zero=True), None, "waiting for a replacement is"),
)

RUN_SETTINGS: tuple[Setting, ...] = LAUNCH_SETTINGS + FT_SETTINGS


@cache
def settings_by_flag(settings: tuple[Setting, ...] = RUN_SETTINGS) -> dict[str, tuple[Setting, bool]]:
    """Returns every spelling with dashes → its setting, and whether the spelling is an old one."""
    table: dict[str, tuple[Setting, bool]] = {}
    for setting in settings:
        for flag in (setting.flag, *setting.other_flags, *filter(None, (setting.short,))):
            table[flag] = (setting, False)
        for flag in setting.old_flags:
            table[flag] = (setting, True)
        if setting.flag.startswith("--ft-"):
            table["--ft-param-" + setting.flag[5:]] = (setting, True)
    return table


@cache
def settings_by_key(settings: tuple[Setting, ...] = RUN_SETTINGS) -> dict[str, Setting]:
    """Returns the settings by their keys in the fault_tolerance section (or in the daemon's file)."""
    return {key: setting for setting in settings for key in setting.keys}
