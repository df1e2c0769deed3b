"""What may be set for `holdfast daemon`, by flag, variable and file?"""

from __future__ import annotations

import os
import stat
import sys
from collections.abc import Mapping, Sequence
from typing import cast

import msgspec

from supervisor.config import event_hooks, launch_values, log_limits, user_service, values
from supervisor.config.environment import read_variables
from supervisor.config.event_hooks import EventHooks, hooks_from
from supervisor.config.launch_settings import settings_by_flag, settings_by_key
from supervisor.config.log_limits import LogLimits
from supervisor.config.run_flags import TypedLine, read_command_line
from supervisor.config.setting import Group, Setting
from supervisor.config.user_service import UserService, UserShares
from supervisor.config.value_origin import Given
from supervisor.errors import ConfigurationError, InvalidRequestError

OF_JOB_VARIABLE = "HOLDFAST_SUPERVISOR_OF"  # set by deploy/slurm/prolog.sh, whose epilog looks for it

_DIR = values.text("DIR", empty=False)
_FILE = values.text("PATH", empty=False)


def _daemon(
    flag: str,
    kind: values.Kind,
    meaning: str,
    *,
    default: object = None,
    words: str = "",
    variable: str = "",
) -> Setting:
    return Setting(
        flag,
        kind,
        meaning,
        Group.RUN,
        default=default,
        default_words=words,
        keys=(flag[2:].replace("-", "_"),),
        other_variables=(variable,) if variable else (),
        has_pet_variable=False,
    )


CONFIG = Setting(
    "--config",
    _FILE,
    "YAML file with these keys at the top level",
    Group.RUN,
    default_words="none",
    has_pet_variable=False,
)
SOCKET_DIR = _daemon(
    "--socket-dir",
    _DIR,
    "directory for worker.sock and control.sock",
    words="/run/holdfast as root, else $XDG_RUNTIME_DIR/holdfast",
    variable="HOLDFAST_SOCKET_DIR",
)
STATE_DIR = _daemon(
    "--state-dir",
    _DIR,
    "directory for the journal and the logs",
    words="/var/lib/holdfast as root, else $XDG_STATE_HOME/holdfast",
    variable="HOLDFAST_STATE_DIR",
)
RETURN_TIMEOUT = _daemon(
    "--supervisor-return-timeout",
    values.seconds(zero=True),
    "how long jobs outlive a supervisor that was lost",
    default=60.0,
)
LOG_JOBS_MAX = _daemon(
    log_limits.JOBS_FLAG,
    log_limits.JOBS_KIND,
    log_limits.JOBS_MEANING,
    default=log_limits.DEFAULTS.jobs_max,
    variable=log_limits.JOBS_VARIABLE,
)
LOG_GIB_MAX = _daemon(
    log_limits.GIB_FLAG,
    log_limits.GIB_KIND,
    log_limits.GIB_MEANING,
    default=log_limits.DEFAULTS.gib_max,
    variable=log_limits.GIB_VARIABLE,
)
ON_EVENT = _daemon(event_hooks.COMMAND_FLAG, event_hooks.COMMAND_KIND, event_hooks.COMMAND_MEANING, default="")
ON_EVENT_URL = _daemon(event_hooks.URL_FLAG, event_hooks.URL_KIND, event_hooks.URL_MEANING, default="")
ON_EVENT_KINDS = _daemon(
    event_hooks.KINDS_FLAG, event_hooks.KINDS_KIND, event_hooks.KINDS_MEANING, default=event_hooks.NOTABLE
)
LISTEN = _daemon("--listen", launch_values.ENDPOINT, "also serve the control API over TCP; needs the three flags below")
TLS_CERT = _daemon("--tls-cert", _FILE, "certificate of this supervisor (PEM)")
TLS_KEY = _daemon("--tls-key", _FILE, "private key of the certificate (PEM)")
TLS_CA = _daemon("--tls-ca", _FILE, "certificate authority of the operators (PEM)")
METRICS = _daemon(
    "--metrics", launch_values.ENDPOINT, "serve /metrics for Prometheus, /livez and /readyz at this address (HTTP)"
)
OTLP_TRACES = _daemon(
    "--otlp-traces", values.text("URL"), "send a trace of each recovery to this OpenTelemetry collector (OTLP/HTTP)",
    default="",
)  # fmt: skip

USERS = _daemon(
    user_service.USERS_FLAG, user_service.USERS_KIND, user_service.USERS_MEANING, words="none: only its own user"
)
USER_MEMORY = _daemon(user_service.MEMORY_FLAG, user_service.MEMORY_KIND, user_service.MEMORY_MEANING, default=0.0)
USER_TASKS = _daemon(user_service.TASKS_FLAG, user_service.TASKS_KIND, user_service.TASKS_MEANING, default=0)
USER_CPUS = _daemon(user_service.CPUS_FLAG, user_service.CPUS_KIND, user_service.CPUS_MEANING, default=0.0)
USER_UNIT = _daemon(
    user_service.UNIT_FLAG, user_service.UNIT_KIND, user_service.UNIT_MEANING, variable=user_service.UNIT_VARIABLE,
    words="none: this process starts it",
)  # fmt: skip

DAEMON_SETTINGS: tuple[Setting, ...] = (
    CONFIG,
    SOCKET_DIR,
    STATE_DIR,
    RETURN_TIMEOUT,
    LOG_JOBS_MAX,
    LOG_GIB_MAX,
    ON_EVENT,
    ON_EVENT_URL,
    ON_EVENT_KINDS,
    LISTEN,
    TLS_CERT,
    TLS_KEY,
    TLS_CA,
    METRICS,
    USERS,
    USER_MEMORY,
    USER_TASKS,
    USER_CPUS,
    USER_UNIT,
    OTLP_TRACES,
)


class TlsFiles(msgspec.Struct, frozen=True):
    certificate: str
    key: str
    authority: str


class DaemonSettings(msgspec.Struct, frozen=True):
    """The settings of one `holdfast daemon`. None stands for the default place; see the edges that own it."""

    config_file: str | None = None
    socket_dir: str | None = None
    state_dir: str | None = None
    supervisor_return_timeout_s: float = 60.0
    log_limits: LogLimits = log_limits.DEFAULTS
    listen: tuple[str, int] | None = None  # never without tls
    tls: TlsFiles | None = None
    metrics: tuple[str, int] | None = None
    otlp_traces: str = ""  # URL
    warnings: tuple[str, ...] = ()
    event_hooks: EventHooks = EventHooks()
    user_service: UserService = UserService()
    is_of_one_job: bool = False  # Slurm's prolog has started it for a job, in a folder that only the job's steps know


def parse_daemon(argv: Sequence[str], *, environ: Mapping[str, str]) -> DaemonSettings:
    """Returns the settings of `holdfast daemon <argv>`: defaults < file < environment < command line.

    Reads the file that --config names. Raises InvalidRequestError or ConfigurationError. `--help` prints the help and
    raises SystemExit(0).
    """
    line = read_command_line(argv, TypedLine(flags=settings_by_flag(DAEMON_SETTINGS), command_name="daemon"))
    if line.help_wanted:
        from supervisor.config.help_text import daemon_help  # Late: only this needs it.

        sys.stdout.write(daemon_help(DAEMON_SETTINGS, everything=line.help_wanted == "--help-all"))
        raise SystemExit(0)
    if line.command:
        raise InvalidRequestError(f"cannot use {line.command[0]}: holdfast daemon takes flags only; remove it")
    given = {**read_variables(environ, DAEMON_SETTINGS), **line.given}
    config = given.get(CONFIG.name)
    warnings: tuple[str, ...] = ()
    if config is not None:
        from_file, warnings = _file_values(str(config.value))
        given = {**from_file, **given}
    return DaemonSettings(
        config_file=_path(given, CONFIG),
        socket_dir=_path(given, SOCKET_DIR),
        state_dir=_path(given, STATE_DIR),
        supervisor_return_timeout_s=cast("float", _value(given, RETURN_TIMEOUT)),
        log_limits=LogLimits(
            cast("int", _value(given, LOG_JOBS_MAX)),
            cast("float", _value(given, LOG_GIB_MAX)),
        ),
        listen=_address(given, LISTEN),
        tls=_tls(given),
        metrics=_address(given, METRICS),
        otlp_traces=cast("str", _value(given, OTLP_TRACES)),
        warnings=warnings,
        event_hooks=_event_hooks(given),
        user_service=_user_service(given),
        is_of_one_job=bool(environ.get(OF_JOB_VARIABLE)),
    )


def _file_values(path: str) -> tuple[dict[str, Given], tuple[str, ...]]:
    """Reads the file: all keys at the top are ours; a fault_tolerance section is checked and left to the jobs."""
    from supervisor.config import daemon_file  # yaml costs 20 ms: only where there is a file

    return daemon_file.read_daemon_file(path, settings_by_key(DAEMON_SETTINGS))


def _event_hooks(given: Mapping[str, Given]) -> EventHooks:
    """Accepts a command only from the daemon's owner, which may be root: no other user may write the file."""
    hooks = hooks_from(lambda setting: _value(given, setting), ON_EVENT, ON_EVENT_URL, ON_EVENT_KINDS)
    config = given.get(CONFIG.name)
    if config is None or not hooks.are_set:
        return hooks
    path = os.path.abspath(str(config.value))
    found = os.stat(path)
    if found.st_uid not in (0, os.geteuid()) or found.st_mode & (stat.S_IWGRP | stat.S_IWOTH):
        raise ConfigurationError(
            f"cannot run on_event from {path}: other users may write to that file; "
            f"run chown {os.geteuid()} {path} and chmod go-w {path}"
        )
    return hooks


def _user_service(given: Mapping[str, Given]) -> UserService:
    one = given.get(USERS.name)
    if one is None:
        for setting in (USER_MEMORY, USER_TASKS, USER_CPUS, USER_UNIT):
            if setting.name in given:
                raise given[setting.name].problem("it is for the jobs of other users", "give --users as well")
        return UserService()
    if os.geteuid():
        raise one.problem("only root can start supervisors for other users", f"run it as root, or {one.removal}")
    shares = UserShares(
        cast("float", _value(given, USER_MEMORY)),
        cast("int", _value(given, USER_TASKS)),
        cast("float", _value(given, USER_CPUS)),
    )
    unit = cast("str | None", _value(given, USER_UNIT)) or ""
    return UserService(user_service.names_in(str(one.value)), shares, unit)


def _path(given: Mapping[str, Given], setting: Setting) -> str | None:
    one = given.get(setting.name)
    return os.path.abspath(str(one.value)) if one is not None else None


def _value(given: Mapping[str, Given], setting: Setting) -> object:
    one = given.get(setting.name)
    return setting.default if one is None else one.value


def _address(given: Mapping[str, Given], setting: Setting) -> tuple[str, int] | None:
    one = given.get(setting.name)
    if one is None:
        return None
    host, port = launch_values.split_endpoint(str(one.value))
    if not host or port is None:
        raise one.problem("it needs a host and a port", f"write {setting.flag} HOST:PORT, such as 127.0.0.1:9464")
    return host, port


def _tls(given: Mapping[str, Given]) -> TlsFiles | None:
    """Requires all three files or none; over TCP nobody is served without them."""
    paths = [_path(given, setting) for setting in (TLS_CERT, TLS_KEY, TLS_CA)]
    named = [given[setting.name] for setting in (TLS_CERT, TLS_KEY, TLS_CA) if setting.name in given]
    listen = given.get(LISTEN.name)
    if listen is not None and len(named) < len(paths):
        raise listen.problem(
            "the control API is served over TCP with mutual TLS only", "give --tls-cert, --tls-key and --tls-ca"
        )
    if not named:
        return None
    if listen is None:
        raise named[0].problem("there is no --listen that it could serve", f"give --listen, or {named[0].removal}")
    certificate, key, authority = cast("list[str]", paths)
    return TlsFiles(certificate, key, authority)
