"""Which job do defaults, file, environment and command line describe?

Order: defaults < file < environment (PET_*) < command line. Only the value that wins is judged for what it asks; a
value that cannot be read at all is an error wherever it stands.
"""

from __future__ import annotations

import enum
import os
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import PurePath
from typing import cast

import msgspec

from supervisor.config import (
    attribution_check,
    device_count,
    environment,
    job_logs,
    launch_settings,
    log_limits,
    rendezvous_settings,
    slurm_step,
    static_rendezvous,
)
from supervisor.config.event_hooks import EventHooks, hooks_from
from supervisor.config.fault_tolerance import AUTO_HEARTBEAT, CONFIG_FILE, CYCLE_LOG, SECTION_LIMITS
from supervisor.config.job_spec import Entry, JobSpec, SpawnMethod
from supervisor.config.launch_settings import RUN_SETTINGS
from supervisor.config.launch_values import WORKERS_MAX
from supervisor.config.log_limits import LogLimits
from supervisor.config.log_server_settings import LEAVES, PORT, last_port, log_server_warnings
from supervisor.config.run_flags import TypedLine, read_command_line
from supervisor.config.run_folder import check_log_dir
from supervisor.config.setting import Setting, Status, value_at
from supervisor.config.value_origin import Given
from supervisor.config.values import SectionLimits, ValueProblem, job_id_from
from supervisor.core.log_funnel.log_leaves import PORT_MAX
from supervisor.errors import ConfigurationError, InvalidRequestError


class RunRequest(msgspec.Struct, frozen=True):
    """The request of one `holdfast run`."""

    spec: JobSpec
    environment: dict[str, str]  # what the job's processes inherit; never stored or shown
    warnings: tuple[str, ...] = ()
    socket_dir: str | None = None  # explicit: --socket-dir or HOLDFAST_SOCKET_DIR
    state_dir: str | None = None
    log_limits: LogLimits = log_limits.DEFAULTS
    config_file: str | None = None
    dry_run: bool = False
    event_hooks: EventHooks = EventHooks()
    sources: dict[str, str] = {}  # setting's name → where its value was written, "--max-restarts 3"; absent: default


class _Values:
    """The winning value of each setting."""

    def __init__(self, given: Mapping[str, Given]) -> None:
        self.given = given

    def of(self, setting: Setting) -> object:
        one = self.given.get(setting.name)
        return setting.default_value() if one is None else one.value

    def has(self, setting: Setting) -> Given | None:
        return self.given.get(setting.name)

    def text(self, setting: Setting) -> str | None:
        one = self.given.get(setting.name)
        return str(one.value) if one is not None and one.value != "" else None


def parse_run(
    argv: Sequence[str],
    *,
    environ: Mapping[str, str],
    cwd: str,
    count_gpus: Callable[[Mapping[str, str]], int] = device_count.count_gpus,
) -> RunRequest:
    """Returns the job that `holdfast run <argv>` asks for.

    Reads the YAML file if one is named, asks NVML if GPUs are to be counted, else touches nothing. Raises
    InvalidRequestError (exit code 2) for a mistake on the command line, ConfigurationError (78) for one in file or
    environment. `--help` prints the help and raises SystemExit(0).
    """
    line = read_command_line(argv)
    if line.help_wanted:
        from supervisor.config.help_text import run_help  # Late: no job waits for it.

        sys.stdout.write(run_help(everything=line.help_wanted == "--help-all"))
        raise SystemExit(0)
    from_environment = environment.read_variables(environ)
    given = {**from_environment, **line.given}
    config_file = _config_file(given, cwd)
    replaced: list[str] = []
    if config_file is not None:
        in_file = _file_values(config_file)
        replaced = _replaced_sections(in_file, given)
        given = {**in_file, **given}
    given = static_rendezvous.with_meeting(given)
    given |= slurm_step.given_by(environ, given)
    given = static_rendezvous.with_id(given)
    values = _Values(given)
    warnings = [*dict.fromkeys(line.warnings), *replaced, *_judge(given), *environment.variable_warnings(environ)]
    spec = _job_spec(line, values, environ, cwd, count_gpus)
    if spec.entry is Entry.COMMAND:  # It is for the ranks' Python, and may be too old for a spawner.
        spec = msgspec.structs.replace(spec, python="")
    spec, more = _with_attribution(spec, given, cwd, environ)
    warnings += [
        *_rank_warnings(values, spec),
        *rendezvous_settings.warnings_of(spec, given),
        *slurm_step.warnings_of(environ, given),
        *_log_server_warnings(values, spec),
        *more,
    ]
    base, notes = environment.job_environment(environ, spec.local_world_size)
    return RunRequest(
        spec=spec,
        environment=base,
        warnings=tuple(warnings + notes),
        socket_dir=_absolute(values.text(launch_settings.SOCKET_DIR), cwd),
        state_dir=_absolute(values.text(launch_settings.STATE_DIR), cwd),
        log_limits=LogLimits(
            cast("int", values.of(launch_settings.LOG_JOBS_MAX)),
            cast("float", values.of(launch_settings.LOG_GIB_MAX)),
        ),
        config_file=config_file,
        dry_run=bool(values.of(launch_settings.DRY_RUN)),
        event_hooks=hooks_from(
            values.of, launch_settings.ON_EVENT, launch_settings.ON_EVENT_URL, launch_settings.ON_EVENT_KINDS
        ),
        sources={name: one.shown for name, one in given.items()},
    )


def _config_file(given: Mapping[str, Given], cwd: str) -> str | None:
    one = given.get(CONFIG_FILE.name)
    return _absolute(str(one.value), cwd) if one is not None and one.value else None


def _absolute(path: str | None, cwd: str) -> str | None:
    return None if path is None else os.path.join(cwd, path)


def _file_values(path: str) -> dict[str, Given]:
    from supervisor.config import yaml_source  # yaml costs 20 ms: only where there is a file

    file = yaml_source.read_yaml(path)
    known = launch_settings.settings_by_key()
    return yaml_source.read_keys(file, yaml_source.fault_tolerance_section(file, known), known)


def _replaced_sections(in_file: Mapping[str, Given], over: Mapping[str, Given]) -> list[str]:
    """Returns a warning if a list of sections leaves out some that the file has: it replaces the file's, whole."""
    ours, theirs = over.get(SECTION_LIMITS.name), in_file.get(SECTION_LIMITS.name)
    if ours is None or theirs is None:
        return []
    kept = dict(cast("SectionLimits", ours.value))
    gone = [name for name, _ in cast("SectionLimits", theirs.value) if name not in kept]
    return [f"{ours.shown} replaces the sections of {theirs.shown}: without a limit: {', '.join(gone)}"] if gone else []


def _judge(given: Mapping[str, Given]) -> list[str]:
    """Returns warnings for settings without effect; raises for those that are not supported yet."""
    warnings: list[str] = []
    for one in given.values():
        setting = one.setting
        if setting.status is Status.INERT:
            warnings.append(f"{one.shown} has no effect here: {setting.meaning}")
        if setting.status is not Status.LATER or one.value in (setting.default_value(), *setting.harmless):
            continue
        if one.value in setting.tolerated:
            warnings.append(f"{one.shown} has no effect yet: {setting.meaning} not supported yet")
            continue
        raise one.problem(f"{setting.meaning} not supported yet", one.removal)
    return warnings


def _job_spec(
    line: TypedLine,
    values: _Values,
    environ: Mapping[str, str],
    cwd: str,
    count_gpus: Callable[[Mapping[str, str]], int],
) -> JobSpec:
    nodes = rendezvous_settings.read(values.given, cwd, environ)
    entry, command = _entry(line, values)
    job_id = values.text(launch_settings.JOB_ID)
    run_id = values.text(launch_settings.RUN_ID)
    if job_id is None and nodes is not None and run_id is not None:
        job_id = job_id_from(run_id)
    job_id = job_id or default_job_id(entry, command[0], os.urandom(4).hex())
    spec = JobSpec(
        job_id=job_id,
        command=command,
        entry=entry,
        cwd=cwd,
        local_world_size=_local_world_size(values, environ, count_gpus),
        nodes=nodes,
        agent_store=not values.of(launch_settings.NO_AGENT_STORE),
        log_line_prefix_template=environ.get(environment.LOG_LINE_PREFIX, ""),
        visible_gpus=environment.visible_gpus(environ),
        gpus_by_bus=environment.counts_gpus_by_bus(environ),
        gpus_per_numa=environment.gpus_per_numa(environ),
    )
    for setting in RUN_SETTINGS:
        one = values.has(setting)
        if one is not None and setting.path:
            spec = replace_at(spec, setting.path, _in_folder(one, cwd))
    spec = _stop_timeouts(_addresses(spec, values), values)
    spec = rendezvous_settings.with_nodes(spec, values.given, environ)
    if spec.log_dir:
        spec = msgspec.structs.replace(spec, log_dir=os.path.join(cwd, spec.log_dir))
        check_log_dir(spec.log_dir)
    if spec.checkpoint_iteration_file:
        path = os.path.join(cwd, spec.checkpoint_iteration_file)
        spec = msgspec.structs.replace(spec, checkpoint_iteration_file=path)
    if spec.health.nvhcd_socket:
        spec = replace_at(spec, "health.nvhcd_socket", os.path.join(cwd, spec.health.nvhcd_socket))
    _check_spawn(spec, values, environ)
    for path in ("health.link_state_template", "health.link_down_template"):
        template = value_at(spec, path)
        one = values.given.get(f"ft_{'link_state' if 'state' in path else 'link_down'}_path_template")
        if one is not None and template and "{nic}" not in str(template):
            raise one.problem("there is no {nic} in it", "write {nic} in place of the card's name")
        if one is not None and template and not str(template).startswith("/"):
            raise one.problem("it is not an absolute path", "write such as /sys/class/infiniband/{nic}/ports/1/state")
    spec = replace_at(spec, "health.has_gpus", device_count.has_gpu_driver(environ))
    return replace_at(spec, "health.has_network_cards", device_count.has_network_cards())


def _in_folder(one: Given, cwd: str) -> object:
    """Returns the value; of a path for logs, the absolute one."""
    if one.setting.kind not in (job_logs.LOG_PATH, job_logs.FOLDER):
        return one.value
    try:
        return job_logs.absolute(one.setting.kind, str(one.value), cwd)
    except ValueProblem as trouble:
        raise one.problem(trouble.why, trouble.remedy) from None


def _with_attribution(
    spec: JobSpec, given: Mapping[str, Given], cwd: str, environ: Mapping[str, str]
) -> tuple[JobSpec, list[str]]:
    attribution, warnings = attribution_check.checked(
        spec.attribution,
        given,
        log_prefix=spec.logs.cycle_prefix,
        is_alone=spec.nodes is None,
        cwd=cwd,
        environ=environ,
    )
    return msgspec.structs.replace(spec, attribution=attribution), warnings


def replace_at(spec: JobSpec, path: str, value: object) -> JobSpec:
    """Returns `spec` with the field at a dotted path replaced; words become the field's enumeration."""
    old = value_at(spec, path)
    if isinstance(old, enum.Enum):
        value = type(old)(value)
    head, _, rest = path.partition(".")
    if rest:
        value = msgspec.structs.replace(getattr(spec, head), **{rest: value})
    return msgspec.structs.replace(spec, **{head: value})  # pyright: ignore[reportArgumentType]


def default_job_id(entry: Entry, program: str, suffix: str) -> str:
    """Returns a readable and unique id: train-9f3a1c07."""
    stem = program if entry is Entry.MODULE else PurePath(program).stem
    clean = "".join(letter if letter.isascii() and (letter.isalnum() or letter in "_-.") else "-" for letter in stem)
    return f"{clean.strip('.-')[:40] or 'job'}-{suffix}"


def _entry(line: TypedLine, values: _Values) -> tuple[Entry, tuple[str, ...]]:
    module, no_python = values.of(launch_settings.MODULE), values.of(launch_settings.NO_PYTHON)
    if module and no_python:
        raise InvalidRequestError("cannot use --no-python with --module: a module needs Python; remove one of them")
    if not line.command or not line.command[0]:
        raise InvalidRequestError("cannot run: no script is named; write holdfast run [options] script.py")
    return Entry.MODULE if module else Entry.COMMAND if no_python else Entry.SCRIPT, line.command


def _local_world_size(
    values: _Values, environ: Mapping[str, str], count_gpus: Callable[[Mapping[str, str]], int]
) -> int:
    value = values.of(launch_settings.WORKERS)
    if isinstance(value, int):
        return value
    gpus = 0 if value == "cpu" else count_gpus(environ)
    if value == "gpu" and gpus == 0:
        one = values.has(launch_settings.WORKERS)
        assert one is not None  # "gpu" is not the default
        hidden = "CUDA_VISIBLE_DEVICES" in environ
        remedy = "check CUDA_VISIBLE_DEVICES" if hidden else "check nvidia-smi, or write a number"
        raise one.problem("this node has no GPU that a worker could use", remedy)
    return min(gpus or device_count.count_cpus(), WORKERS_MAX)


def _addresses(spec: JobSpec, values: _Values) -> JobSpec:
    """Uses --local-addr as the address of the workers' store, unless --master-addr names another."""
    local = values.text(launch_settings.LOCAL_ADDRESS)
    if local is not None and values.has(launch_settings.MASTER_ADDRESS) is None:
        return msgspec.structs.replace(spec, master_addr=local)
    return spec


def _stop_timeouts(spec: JobSpec, values: _Values) -> JobSpec:
    """Applies torchrun's one stop timeout to our two; an explicit one of the two wins."""
    both = values.has(launch_settings.SHUTDOWN_TIMEOUT)
    if both is None or not isinstance(both.value, float):
        return spec
    for path in ("workers_stop_timeout_s", "term_timeout_s"):
        if path.removesuffix("_s") not in values.given:
            spec = replace_at(spec, path, both.value)
    return spec


def _check_spawn(spec: JobSpec, values: _Values, environ: Mapping[str, str]) -> None:
    if spec.gpus_per_numa is not None and not _in_path("numactl", environ.get("PATH", os.defpath)):
        raise ConfigurationError(
            f"cannot bind workers to NUMA nodes: numactl is not in PATH; install numactl, or unset "
            f"{environment.GPUS_PER_NUMA} and {environment.GPUS_PER_NUMA_REFERENCE}"
        )
    if spec.numa_binding != "none" and spec.gpus_per_numa is not None:
        one = values.given["numa_binding"]
        raise one.problem(f"{environment.GPUS_PER_NUMA} binds the workers already", "unset it, or remove this flag")
    if spec.auto_heartbeat_s is not None:
        _check_auto_heartbeat(spec, values)
    if spec.spawn_method is not SpawnMethod.FORK:
        return
    one = values.given["spawn_method"]
    if spec.entry is Entry.COMMAND:
        raise one.problem("a command that is not Python cannot be forked", "write --spawn-method auto")
    if spec.gpus_per_numa is not None:
        raise one.problem("numactl binding needs a new process for each worker", "write --spawn-method auto")


def _check_auto_heartbeat(spec: JobSpec, values: _Values) -> None:
    """Refuses the limit for workers that are not forked: only those can be watched without a line in the script."""
    one = values.given[AUTO_HEARTBEAT.name]
    if spec.entry is Entry.COMMAND:
        raise one.problem("a command that is not a Python script can't be watched", "remove it, or --no-python")
    if spec.spawn_method is SpawnMethod.EXEC:
        raise one.problem("workers that are executed can't be watched", "remove it, or write --spawn-method auto")
    if spec.gpus_per_numa is not None:
        remedy = f"remove it, or write --numa-binding node instead of {environment.GPUS_PER_NUMA}"
        raise one.problem("workers that numactl executes can't be watched", remedy)


def _in_path(program: str, path: str) -> bool:
    return any(os.access(os.path.join(folder, program), os.X_OK) for folder in path.split(os.pathsep) if folder)


def _log_server_warnings(values: _Values, spec: JobSpec) -> list[str]:
    """Returns warnings about the log server. Raises InvalidRequestError if its ports exceed the range."""
    last = last_port(spec)
    asked = values.given.get(PORT.name) or values.given.get(LEAVES.name)
    if last > PORT_MAX and asked is not None:
        raise asked.problem(f"the last port of the log server would be {last}", "choose a lower one, or fewer leaves")
    return log_server_warnings(spec)


def _rank_warnings(values: _Values, spec: JobSpec) -> list[str]:
    """Warns of values that torchrun accepts and that are probably mistakes."""
    warnings: list[str] = []
    for rules, name in ((spec.redirects, "redirects"), (spec.tee, "tee")):
        other = values.given.get(name)
        if rules and other is not None and spec.logs.cycle_prefix:
            warnings.append(f"{other.shown} has no effect beside {CYCLE_LOG.flag}: all output goes to the cycle's file")
    named = {rank for rank, _ in spec.redirects + spec.tee if rank is not None} | set(spec.local_ranks_filter)
    beyond = sorted(rank for rank in named if rank >= spec.local_world_size)
    if beyond:
        warnings.append(
            f"output flags name local rank {beyond[0]}, but local ranks are 0 to {spec.local_world_size - 1}: "
            "it has no effect"
        )
    return warnings
