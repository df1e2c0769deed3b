"""How is the process of a spawner started? Separate from the link, so that it can start before the rest is loaded."""

from __future__ import annotations

import errno
import os
import socket
import stat
import subprocess
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec
from holdfast_wire.private_supervisor import JOB_ID_VARIABLE, SPAWNER_VARIABLE
from holdfast_wire.spawner_link import Learned
from holdfast_wire.spawner_settings import SpawnerCommand, SpawnerSettings, spawner_command

from supervisor.config.job_spec import JobSpec
from supervisor.edges.machine.own_process import kernel_error_remedies, standard_streams
from supervisor.edges.machine.processes import process_table
from supervisor.errors import ExhaustedError, InvalidRequestError

if TYPE_CHECKING:
    from supervisor.edges.workers.auto_heartbeat_pages import AutoHeartbeatPages
    from supervisor.edges.workers.spawner.spawner_discovery import SpawnerFiles


MakeCommand = Callable[[SpawnerSettings, Mapping[str, str], int], SpawnerCommand]
OnStep = Callable[[str], None]

NAME_BYTES = 4  # of a spawner without files

_NOT_EXECUTABLE = (errno.ENOENT, errno.EACCES, errno.ENOTDIR, errno.EISDIR, errno.ENOEXEC, errno.ELOOP)
_TOO_LONG = (
    "the kernel takes 128 KiB for one argument or variable, and for all of them together a quarter of the limit on the "
    "stack (ulimit -s): raise that, or pass some of them in a file"
)


def _ignored(step: str) -> None:
    """Ignores the step."""


class SpawnerProcess(msgspec.Struct, frozen=True):
    """A started spawner, and our end of its socket. Closing that end ends a private spawner."""

    process: subprocess.Popen[bytes]
    socket: socket.socket
    pidfd: int
    name: str  # which its processes show
    files: SpawnerFiles | None = None  # where a returning supervisor finds it; None: there is none
    main_threads: AutoHeartbeatPages | None = None  # of its workers; None: they are not watched

    @property
    def pid(self) -> int:
        return self.process.pid

    def discard(self) -> None:
        """Kills a spawner that nobody wants any more."""
        self.socket.close()
        self.process.kill()
        os.close(self.pidfd)
        self.process.wait()
        if self.files is not None:
            self.files.remove()
        if self.main_threads is not None:
            self.main_threads.close()


def start_process(
    spec: JobSpec,
    *,
    env: Mapping[str, str],
    private: bool,
    supervisor_return_timeout_s: float = 60.0,
    exit_record_dir: str = "",
    open_files: tuple[int, ...] = (),
    output_dir: Path | None = None,
    learned: Learned | None = None,
    make_command: MakeCommand | None = None,
    claim: tuple[int, ...] = (),
    return_folder: Path | None = None,
    on_step: OnStep = _ignored,
    apart: bool = False,
) -> SpawnerProcess:
    """Starts a spawner. Blocks for the one or two milliseconds of an exec, longer if a file system does not answer.

    Raises ExhaustedError or InvalidRequestError whatever prevents the start. `on_step` is called before each step that
    can hang.
    `output_dir`: for the spawner's own stdout and stderr; None: the supervisor's own. If not private, stdin is empty.
    `learned`: what an earlier spawner's workers taught it; such a spawner loads in the background.
    `open_files`: open_files.RaisedLimit.before_and_now. `claim`: JobClaims.descriptors, which the spawner and its
    children inherit and so hold. `return_folder`: where a returning supervisor looks for it; None: there is none.
    `apart`: the process copies only the descriptors that are passed to it. While it waits for a dead folder, it keeps
    its copies, even after our end: our lock and the connections of other jobs must not be among them.
    """
    settings = SpawnerSettings(
        job_id=spec.job_id,
        command=spec.command,
        entry=str(spec.entry),
        python=spec.python,
        method=str(spec.spawn_method),
        preload=spec.preload,
        private=private,
        supervisor_return_timeout_s=supervisor_return_timeout_s,
        exit_record_dir=exit_record_dir,
        log_dir="" if spec.nodes else spec.log_dir,  # Other nodes of a job may go on without this one.
        may_restart=spec.restart.max_restarts > 0,
        learned=learned.steps if learned is not None else (),
        learned_folders=learned.folders if learned is not None else (),
        open_files=() if spec.resource_limits else open_files,
    )
    try:
        make_command = make_command or _make_command
        return _start(settings, spec, env, output_dir, make_command, claim, return_folder, on_step, apart=apart)
    except (OSError, ValueError, ImportError, subprocess.SubprocessError) as error:
        _check_interpreter(error, spec)
        kind = ExhaustedError if kernel_error_remedies.remedy(error) else InvalidRequestError
        raise kind(f"cannot start the spawner of job {spec.job_id}: {_in_words(error)}; {_remedy(error)}") from error


def _start(
    settings: SpawnerSettings,
    spec: JobSpec,
    env: Mapping[str, str],
    output_dir: Path | None,
    make_command: MakeCommand,
    claim: tuple[int, ...],
    return_folder: Path | None,
    on_step: OnStep,
    *,
    apart: bool,
) -> SpawnerProcess:
    with ExitStack() as undo, ExitStack() as held:
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_STREAM)
        undo.callback(ours.close)
        held.enter_context(theirs)
        ours.setblocking(False)
        # Copies: the job may have released its claim before a hanging folder lets us continue.
        passed = tuple(_copy(each, held) for each in claim)
        files = None
        if return_folder is not None:
            from supervisor.edges.workers.spawner import spawner_discovery  # Late: private supervisors do without.

            on_step(f"opening a socket in {return_folder}")
            files, listener = spawner_discovery.create_files(return_folder)
            undo.callback(files.remove)
            held.enter_context(listener)
            settings = settings._replace(return_fd=listener.fileno(), keep_path=str(files.keep_path), claim_fds=passed)
            passed = (*passed, listener.fileno())
        main_threads = None
        if spec.auto_heartbeat_s is not None:
            from supervisor.edges.workers.auto_heartbeat_pages import AutoHeartbeatPages  # Late: few jobs need it.

            main_threads = AutoHeartbeatPages(spec.local_world_size)
            undo.callback(main_threads.close)
            settings = settings._replace(watch_fd=main_threads.fd, watch_limit_s=spec.auto_heartbeat_s)
            passed = (*passed, main_threads.fd)
        if output_dir is None and (line := standard_streams.console_line()).fd >= 0:
            settings = settings._replace(console_line_fd=line.fd)
            passed = (*passed, line.fd)
        # If all are orphaned, these tell this spawner's processes from others (lost_spawner_processes.py).
        name = files.name if files is not None else f"of-{os.getpid()}-{os.urandom(NAME_BYTES).hex()}"
        marked = dict(env) | {JOB_ID_VARIABLE: spec.job_id, SPAWNER_VARIABLE: name}
        command = make_command(settings, marked, theirs.fileno())
        passed = (theirs.fileno(), *passed)
        if command.settings_fd >= 0:
            held.callback(os.close, command.settings_fd)
            passed = (command.settings_fd, *passed)
        execute = partial(
            _execute, command, spec, passed, private=settings.private, output_dir=output_dir, on_step=on_step
        )
        process = _apart(execute, passed) if apart else execute()
        undo.callback(process.wait)
        undo.callback(process.kill)
        if spec.resource_limits:
            from supervisor.edges.machine.processes import (
                peer_identity,  # Late: for jobs of a service with several users.
            )

            peer_identity.set_limits(process.pid, spec.resource_limits)
        pidfd = process_table.descriptor(process.pid)
        undo.callback(os.close, pidfd)
        # After the start, which need not wait for it: a spawner starts no process before it hears from us.
        process_table.become_subreaper()
        if files is not None:
            files.note(spec.job_id, process.pid)
        undo.pop_all()
        return SpawnerProcess(process, ours, pidfd, name, files, main_threads)


def _make_command(settings: SpawnerSettings, env: Mapping[str, str], link_fd: int) -> SpawnerCommand:
    return spawner_command(settings, env, link_fd=link_fd)


def _copy(descriptor: int, held: ExitStack) -> int:
    copy = os.dup(descriptor)
    held.callback(os.close, copy)
    return copy


def _execute(
    command: SpawnerCommand,
    spec: JobSpec,
    pass_fds: tuple[int, ...],
    *,
    private: bool,
    output_dir: Path | None,
    on_step: OnStep,
) -> subprocess.Popen[bytes]:
    with ExitStack() as files:
        stdout, stderr = None, None
        if output_dir is not None:
            on_step(f"opening its output in {output_dir}")
            output_dir.mkdir(mode=0o700, parents=True, exist_ok=True)
            stdout, stderr = (_open_output(output_dir / f"spawner.{name}.log", files) for name in ("stdout", "stderr"))
        on_step(f"executing {command.argv[0]} in {spec.cwd or os.curdir}")
        return subprocess.Popen(
            command.argv,
            env=command.env,
            cwd=spec.cwd or None,
            stdin=None if private else subprocess.DEVNULL,
            stdout=stdout,
            stderr=stderr,
            pass_fds=pass_fds,
            start_new_session=True,
            umask=-1 if spec.umask is None else spec.umask,
        )


def _apart(execute: Callable[[], subprocess.Popen[bytes]], passed: tuple[int, ...]) -> subprocess.Popen[bytes]:
    from supervisor.edges.machine.own_process.own_descriptors import separately  # Late: it loads asyncio.

    return separately(execute, *range(3), *passed)


def _open_output(path: Path, files: ExitStack) -> int:
    """Opens a regular file: a pipe or a device in its place would block. Raises OSError."""
    flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
    descriptor = os.open(path, flags, 0o600)
    files.callback(os.close, descriptor)
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        raise OSError(errno.EINVAL, "it is not a regular file", str(path))
    os.set_blocking(descriptor, True)
    return descriptor


def _check_interpreter(error: Exception, spec: JobSpec) -> None:
    """Raises the error that names the flag or variable, if the interpreter that it names can't be executed."""
    if not isinstance(error, OSError) or error.errno not in _NOT_EXECUTABLE or error.filename != spec.python:
        return
    from supervisor.config.launch_settings import PYTHON  # Late: only a mistake needs it.
    from supervisor.config.value_origin import problem

    if written := dict(spec.sources).get(PYTHON.name, ""):
        why, remedy = error.strerror or str(error), "name a Python interpreter of this node"
        raise problem(f"use {written}", why, remedy, from_flag=written.startswith("-")) from error


def _in_words(error: Exception) -> str:
    if isinstance(error, OSError) and error.strerror:
        where = f" ({_printable(str(error.filename))})" if error.filename else ""
        return f"{error.strerror}{where}"
    return _printable(str(error))


def _printable(text: str) -> str:
    return text.encode(errors="backslashreplace").decode()


def _remedy(error: Exception) -> str:
    if isinstance(error, process_table.NoDescriptorsError):
        return kernel_error_remedies.NO_DESCRIPTORS_REMEDY
    if isinstance(error, OSError) and error.errno == errno.E2BIG:
        return _TOO_LONG
    return kernel_error_remedies.remedy(error) or "check --python, the command and the folder"
