"""Which flags does the log server have, and which combinations of them are probably mistakes?"""

from __future__ import annotations

from supervisor.config import job_logs, values
from supervisor.config.job_spec import JobSpec
from supervisor.config.setting import Group, Setting
from supervisor.core.log_funnel.log_leaves import PORT_MAX, leaf_count, root_port

LEAVES_USUAL_MAX = 16


def _setting(flag: str, kind: values.Kind, field: str, meaning: str) -> Setting:
    key = (flag.replace("-", "_"),)
    is_switch = kind is values.BOOLEAN
    return Setting(
        f"--ft-{flag}", kind, meaning, Group.OUTPUT, path=f"log_server.{field}", keys=key, is_switch=is_switch
    )


ENABLED = _setting(
    "enable-log-server",
    values.BOOLEAN,
    "enabled",
    "with several nodes, one process on the leader's node writes the job's logs; the nodes send it their lines",
)
PORT = _setting(
    "log-server-port",
    values.integer(1, PORT_MAX),
    "port",
    "port of its first leaf; the other leaves and the root have the next ones",
)
LEAVES = _setting(
    "log-aggregator-count",
    values.integer(0, 10_000),
    "leaves",
    "how many leaves take lines from the nodes; 0: one for every 1536 nodes",
)
ALL = (
    ENABLED,
    PORT,
    LEAVES,
    _setting(
        "log-leaf-max-queue-chunks",
        values.integer(-1, 100_000_000, "chunks"),
        "leaf_queue_chunks",
        "longest queue of a leaf, never more than 128 MiB; -1: chosen by the number of nodes",
    ),
    _setting(
        "log-server-log-prefix",
        job_logs.LOG_PATH,
        "log_prefix",
        "what the names of its own logs begin with (_root.log, _leaf_0.log); default: beside the job's logs",
    ),
    _setting(
        "log-server-graceful-shutdown-timeout",
        values.seconds(zero=True),
        "graceful_s",
        "at the end of the job, wait at most this long for lines that are still on their way",
    ),
)


def log_server_warnings(spec: JobSpec) -> list[str]:
    """Returns warnings about a log server that was asked for."""
    server = spec.log_server
    if not server.enabled:
        return []
    if not spec.logs.cycle_prefix and not spec.logs.supervisor_log:
        return [
            f"{ENABLED.flag} has no effect here: no log is asked for; write --ft-per-cycle-applog-prefix or "
            "--ft-nvrx-logfile, too"
        ]
    if spec.nodes is None:
        return [f"{ENABLED.flag} has no effect here: on one node, one process writes the logs in any case"]
    leaves = leaf_count(server.leaves, spec.nodes.max_nodes)
    if leaves > LEAVES_USUAL_MAX:
        return [f"{LEAVES.flag} {leaves} is a lot: each leaf is a process of about 50 MiB on the leader's node"]
    return []


def last_port(spec: JobSpec) -> int:
    """Returns the root's port."""
    nodes = spec.nodes.max_nodes if spec.nodes is not None else 1
    return root_port(spec.log_server.port, leaf_count(spec.log_server.leaves, nodes))
