"""What would be run? The answer of --dry-run, and a job's settings as a fault_tolerance section."""

from __future__ import annotations

import json
import shlex
from collections.abc import Mapping
from typing import NamedTuple, cast

from supervisor.config import environment, launch_settings
from supervisor.config.attribution_settings import EXPORT_URL
from supervisor.config.fault_tolerance import CONFIG_FILE
from supervisor.config.job_spec import Entry, JobSpec, Nodes
from supervisor.config.launch_settings import RUN_SETTINGS
from supervisor.config.numa import numactl_prefix
from supervisor.config.redaction import redacted, redacted_url
from supervisor.config.resolve import RunRequest
from supervisor.config.setting import Setting, Status, value_at
from supervisor.config.store_ports import STORE_PORTS
from supervisor.config.values import SectionLimits, Shape, show_number
from supervisor.core.facts import Assignment
from supervisor.core.node.worker_environment import worker_environment

DEFAULT = "default"
COMMENT_COLUMN_MAX = 60  # a longer line has its comment right behind it
AT_START = "known when it starts"
AT_RENDEZVOUS = "known when the nodes have met"
_OF_RENDEZVOUS = {
    "RANK", "GROUP_RANK", "ROLE_RANK", "WORLD_SIZE", "GROUP_WORLD_SIZE", "ROLE_WORLD_SIZE", "MASTER_ADDR",
}  # fmt: skip


class _Line(NamedTuple):
    """One line of YAML and the source of its value; "" for no comment."""

    text: str
    source: str = ""


def plan_text(request: RunRequest, *, supervisor: str = "") -> str:
    """Returns the plan as YAML that `--ft-cfg-path` reads back, with the source of each value as a comment.

    `supervisor`: which one would get the job. Shows the variables that a worker gets from us, none that it inherits.
    """
    spec, sources = request.spec, _Sources(request.sources)
    lines = [
        _Line(f"job_id: {_quoted(spec.job_id)}", _source_of_job_id(spec, sources)),
        _Line(f"command: {_quoted(_command(spec))}", "the command line"),
        _Line(f"directory: {_quoted(spec.cwd)}", "the current folder"),
        _Line(f"workers: {spec.local_world_size}", sources.of(launch_settings.WORKERS)),
        _Line(
            f"store: {_quoted(_store(spec, sources))}",
            sources.of(launch_settings.MASTER_ADDRESS, sources.of(launch_settings.LOCAL_ADDRESS)),
        ),
        _Line(f"logs: {_quoted(spec.log_dir or 'the default place')}", sources.named("log_dir")),
    ]
    if supervisor:
        lines.append(_Line(f"supervisor: {_quoted(supervisor)}", sources.of(launch_settings.SOCKET_DIR, "found")))
    if spec.nodes is not None:
        lines += _nodes(spec.nodes, sources)
    if spec.gpus_per_numa is not None:
        binding = _quoted(shlex.join(numactl_prefix(spec, 0)))
        lines.append(_Line(f"binding_of_local_rank_0: {binding}", environment.GPUS_PER_NUMA))
    if request.config_file:
        lines.append(_Line(f"read_from: {_quoted(request.config_file)}", sources.of(CONFIG_FILE)))
    return _columns([*lines, *_variables(spec), *_section(spec, sources)])


def fault_tolerance_yaml(spec: JobSpec) -> str:
    """Returns every setting of `spec` that has a key in the section, as YAML."""
    return _columns(_section(spec, None))


class _Sources:
    def __init__(self, written: Mapping[str, str]) -> None:
        self._written = written

    def of(self, setting: Setting, otherwise: str = DEFAULT) -> str:
        return self._written.get(setting.name, otherwise)

    def has(self, setting: Setting) -> bool:
        return setting.name in self._written

    def named(self, name: str) -> str:
        return self._written.get(name, DEFAULT)


def _command(spec: JobSpec) -> str:
    interpreter = {Entry.SCRIPT: ["python"], Entry.MODULE: ["python", "-m"], Entry.COMMAND: []}[spec.entry]
    if spec.python and interpreter:
        interpreter[0] = spec.python
    return shlex.join([*interpreter, *redacted(spec.command)])


def _source_of_job_id(spec: JobSpec, sources: _Sources) -> str:
    """Names the source of the job id: several nodes use their rendezvous id if no --job-id names the job."""
    otherwise = "made from the script's name"
    if spec.nodes is not None:
        otherwise = sources.of(launch_settings.RUN_ID, otherwise)
    return sources.of(launch_settings.JOB_ID, otherwise)


def _store(spec: JobSpec, sources: _Sources) -> str:
    """Says where the store is: on rank 0's node, at its own address. The nodes agree on that node when they meet."""
    within = f" of {STORE_PORTS.kind.show(spec.store_ports)}" if spec.store_ports else ""
    port = f"port {spec.master_port}" if spec.master_port else f"a fresh port{within} each cycle"
    address = spec.master_addr
    if spec.nodes is not None and not sources.has(launch_settings.MASTER_ADDRESS):
        here = f" (here: {address})" if sources.has(launch_settings.LOCAL_ADDRESS) else ""
        address = f"the address of rank 0's node{here}"
    return f"{address}, {port}, served by {'the store host' if spec.agent_store else 'rank 0'}"


def _nodes(nodes: Nodes, sources: _Sources) -> list[_Line]:
    """Leaves out the options of the backend: a password may be among them."""
    wanted = str(nodes.min_nodes) if nodes.min_nodes == nodes.max_nodes else f"{nodes.min_nodes}:{nodes.max_nodes}"
    return [
        _Line("nodes:"),
        _Line(f"  wanted: {_quoted(wanted)}", sources.of(launch_settings.NNODES)),
        _Line(f"  meet_at: {_quoted(f'{nodes.host}:{nodes.port}')}", sources.of(launch_settings.ENDPOINT)),
        _Line(f"  backend: {_quoted(nodes.backend)}", sources.of(launch_settings.BACKEND)),
        _Line(f"  this_node: {_quoted(nodes.name)}"),
        _Line(f"  join_timeout_s: {show_number(nodes.join_timeout_s)}"),
    ]


def _variables(spec: JobSpec) -> list[_Line]:
    given = worker_environment(
        spec,
        Assignment(0, world_size=spec.local_world_size),
        local_rank=0,
        store_host=spec.master_addr,
        store_port=spec.master_port,
        error_file=AT_START,
        socket_path=AT_START,
        token_file=AT_START,
    )
    if not spec.master_port:
        given["MASTER_PORT"] = AT_START
    if spec.nodes is not None:
        given |= dict.fromkeys(_OF_RENDEZVOUS, AT_RENDEZVOUS)
    lines = [_Line(f"  {name}: {_quoted(value)}") for name, value in given.items()]
    return [_Line("variables_of_local_rank_0:", "over those that the job inherits"), *lines]


def _section(spec: JobSpec, sources: _Sources | None) -> list[_Line]:
    lines = [_Line("fault_tolerance:")]
    for setting in RUN_SETTINGS:
        if setting.keys and setting.path and setting.status is Status.WORKS:
            value = value_at(spec, setting.path)
            if sources and setting.kind is EXPORT_URL:
                value = redacted_url(str(value))
            first, *nested = _yaml_value(setting, value).split("\n")
            lines.append(_Line(f"  {setting.keys[0]}:{first}", sources.of(setting) if sources else ""))
            lines += [_Line(line) for line in nested]
    return lines


def _columns(lines: list[_Line]) -> str:
    """Aligns the comments in a column."""
    width = max((len(line.text) for line in lines if len(line.text) <= COMMENT_COLUMN_MAX), default=0)
    return "".join(f"{text:<{width}}  # {source}\n" if source else f"{text}\n" for text, source in lines)


def _yaml_value(setting: Setting, value: object) -> str:
    if setting.kind.shape is Shape.MAP:
        pairs = cast("SectionLimits", value)
        nested = "".join(f"\n    {_quoted(name)}: {_number(limit)}" for name, limit in pairs)
        return nested or " {}"
    if value is None:
        return " null"
    text = setting.kind.show(value)
    return f" {text if setting.kind.shape in (Shape.NUMBER, Shape.BOOLEAN) else _quoted(text)}"


def _number(value: float | None) -> str:
    return "null" if value is None else show_number(value)


def _quoted(text: str) -> str:
    """Returns a YAML double-quoted scalar, as JSON quotes, but with other escapes beyond 16 bits."""
    quoted = json.dumps(text, ensure_ascii=False)
    return "".join(letter if letter.isprintable() else f"\\U{ord(letter):08x}" for letter in quoted)
