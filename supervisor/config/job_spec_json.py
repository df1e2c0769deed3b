"""How does a job's specification travel as JSON, and what makes one fit to run?"""

from __future__ import annotations

import enum
import json
import math
import types
import typing
from functools import cache
from typing import Any, cast

import msgspec

from supervisor.config import job_logs, submitted_nodes
from supervisor.config.attribution_settings import Attribution
from supervisor.config.job_spec import JobSpec, OnSigterm
from supervisor.config.launch_settings import RUN_SETTINGS
from supervisor.config.launch_values import WORKERS_MAX
from supervisor.config.run_folder import check_log_dir
from supervisor.config.setting import Setting, value_at
from supervisor.config.values import SECTIONS, SectionLimits, ValueProblem, check_sections, parse_job_id
from supervisor.errors import InvalidRequestError

COMMAND_BYTES_MAX = 2 << 20  # Linux starts no process with more, by default
SOURCES_MAX, SOURCE_CHARACTERS_MAX = 200, 8_192
# Fields that a supervisor of the version before does not know: it takes all jobs but those that ask for them.
_NEWER = {"attribution": Attribution(), "store_ports": (), "auto_heartbeat_s": None, "on_sigterm": OnSigterm.STOP}


def job_spec_to_json(spec: JobSpec) -> str:
    """Returns one line of JSON with every field of `spec`, except what the supervisor itself finds out."""
    body = msgspec.to_builtins(spec)
    del body["resource_limits"], body["umask"]
    for name, default in _NEWER.items():
        if getattr(spec, name) == default:
            del body[name]
    if not spec.facts.submitted_at_ms:
        del body["facts"]["submitted_at_ms"]
    return json.dumps(body, separators=(",", ":"))


def job_spec_from_json(text: str) -> JobSpec:
    """Reads the specification in `text`, checked as strictly as flags. Raises InvalidRequestError.

    A field that is missing has its default, an unknown one is refused.
    """
    try:
        body: object = json.loads(text)
    except ValueError as error:
        raise _refusal(f"it is not JSON ({error})") from error
    except RecursionError as error:
        raise _refusal("it is nested too deeply") from error
    spec = cast("JobSpec", _build(JobSpec, body, ""))
    if spec.resource_limits:
        raise _refusal("resource_limits: they are those of the process that submits it")
    if spec.umask is not None:
        raise _refusal("umask: it has a field of its own in the request")
    check_job_spec(spec)
    return spec


def check_job_spec(spec: JobSpec) -> None:
    """Refuses what neither a flag nor a file could express. Raises InvalidRequestError."""
    try:
        parse_job_id(spec.job_id)
    except ValueProblem as trouble:
        raise _refusal(f"job_id: {trouble.why}") from None
    _check_command(spec)
    if not 1 <= spec.local_world_size <= WORKERS_MAX:
        raise _refusal(f"local_world_size: a node has 1 to {WORKERS_MAX} workers")
    if spec.gpus_per_numa is not None and spec.gpus_per_numa < 1:
        raise _refusal("gpus_per_numa: it is below the least value 1")
    if fault := submitted_nodes.fault_of(spec):
        raise _refusal(fault)
    if len(spec.sources) > SOURCES_MAX or any(
        len(text) > SOURCE_CHARACTERS_MAX for one in spec.sources for text in one
    ):
        raise _refusal(f"sources: more than {SOURCES_MAX}, or one of more than {SOURCE_CHARACTERS_MAX} characters")
    for name in ("backoff_base_s", "backoff_max_s"):
        if not getattr(spec.restart, name) >= 0:
            raise _refusal(f"restart.{name}: it is below the least value 0")
    check_log_dir(spec.log_dir)
    for setting in RUN_SETTINGS:
        if setting.path:
            try:
                _check_value(setting, value_at(spec, setting.path))
            except ValueProblem as trouble:
                raise _refusal(f"{setting.path}: {trouble.why}") from None


def _check_command(spec: JobSpec) -> None:
    if not spec.command or not spec.command[0]:
        raise _refusal("command: it is empty")
    if sum(len(word.encode(errors="surrogatepass")) + 1 for word in spec.command) > COMMAND_BYTES_MAX:
        remedy = "let the script read its arguments from a file"
        raise _refusal(f"command: it has more than {COMMAND_BYTES_MAX >> 20} MiB", remedy)
    if any("\0" in word for word in (*spec.command, spec.cwd)):
        raise _refusal("command or cwd: a NUL byte is in it")


def _check_value(setting: Setting, value: object) -> None:
    if setting.kind is SECTIONS:  # A name in a file may have a comma, unlike one in a flag.
        check_sections(cast("SectionLimits", value))
    elif setting.kind.parse(setting.kind.show(value)) != value:
        raise _refusal(f"{setting.path}: no flag could have said this")
    if setting.kind in (job_logs.LOG_PATH, job_logs.FOLDER) and value and not str(value).startswith("/"):
        raise _refusal(f"{setting.path}: it is not an absolute path")


def _refusal(why: str, remedy: str = "submit one of this version of holdfast") -> InvalidRequestError:
    return InvalidRequestError(f"cannot use the job specification: {why}; {remedy}")


@cache
def _fields(kind: type) -> dict[str, tuple[Any, bool]]:
    """Returns name → type, and whether the field is required."""
    return {field.name: (field.type, field.required) for field in msgspec.structs.fields(kind)}


def _build(annotation: object, value: object, where: str) -> object:
    """Converts `value`, as the JSON decoder returned it, to a `kind`."""
    kind = cast("Any", annotation)
    origin = typing.get_origin(kind)
    if origin in (typing.Union, types.UnionType):
        if value is None and type(None) in typing.get_args(kind):
            return None
        (kind,) = (option for option in typing.get_args(kind) if option is not type(None))
        return _build(kind, value, where)
    if origin is tuple:
        return _build_tuple(typing.get_args(kind), value, where)
    if issubclass(kind, msgspec.Struct):
        return _build_struct(cast("type", kind), value, where)
    if issubclass(kind, enum.Enum):
        try:
            return kind(_exactly(int if issubclass(kind, int) else str, value, where))
        except ValueError:
            raise _refusal(f"{where}: there is no such word") from None
    return _exactly(kind, value, where)


def _build_struct(kind: type, value: object, where: str) -> object:
    if not isinstance(value, dict):
        raise _refusal(f"{where or 'it'} is not an object")
    body, known = cast("dict[str, object]", value), _fields(kind)
    prefix = f"{where}." if where else ""
    for name in body:
        if name not in known:
            raise _refusal(f"{prefix}{name[:80]}: there is no such field")
    for name, (_, required) in known.items():
        if required and name not in body:
            raise _refusal(f"{prefix}{name} is missing")
    return kind(**{name: _build(known[name][0], one, prefix + name) for name, one in body.items()})


def _build_tuple(parts: tuple[Any, ...], value: object, where: str) -> tuple[object, ...]:
    if not isinstance(value, list):
        raise _refusal(f"{where} is not a list")
    items = cast("list[object]", value)
    if parts[-1] is Ellipsis:
        return tuple(_build(parts[0], one, where) for one in items)
    if len(items) != len(parts):
        raise _refusal(f"{where}: an entry has {len(items)} parts instead of {len(parts)}")
    return tuple(_build(part, one, where) for part, one in zip(parts, items, strict=True))


def _exactly(kind: type, value: object, where: str) -> object:
    if kind is float and type(value) is int:
        value = float(value) if abs(value) < 2**53 else math.inf
    if type(value) is not kind or (isinstance(value, float) and not math.isfinite(value)):
        raise _refusal(f"{where}: it is not {'text' if kind is str else f'a finite {kind.__name__}'}")
    return value
