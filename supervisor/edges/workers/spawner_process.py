"""How does the process of a spawner come to be? Apart from the link, so that it can start before the rest is loaded."""

from __future__ import annotations

import os
import socket
import subprocess
from collections.abc import Callable, Mapping
from pathlib import Path

import msgspec
from holdfast_wire.spawner_link import Learned
from holdfast_wire.spawner_settings import SpawnerCommand, SpawnerSettings, spawner_command

from supervisor.config.job_spec import JobSpec
from supervisor.edges.machine import process_table
from supervisor.errors import InvalidRequestError

JOB_VARIABLE = "HOLDFAST_JOB_ID"

MakeCommand = Callable[[SpawnerSettings, Mapping[str, str], int], SpawnerCommand]


class SpawnerProcess(msgspec.Struct, frozen=True):
    """A spawner that was started, and our end of the socket to it. Closing that end ends a private spawner."""

    process: subprocess.Popen[bytes]
    socket: socket.socket


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
) -> SpawnerProcess:
    """Blocks for the one or two milliseconds of an exec. Raises InvalidRequestError where it can't be executed.

    `output_dir`: where the spawner's own stdout and stderr go; None: the supervisor's own. Not private: stdin is empty.
    `learned`: what an earlier spawner's workers taught it; such a spawner loads in the background.
    `open_files`: open_files.RaisedLimit.before_and_now. `claim`: JobClaims.descriptors, which the spawner and all that
    it starts inherit and so hold.
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
        may_restart=spec.restart.max_restarts > 0,
        learned=learned.modules if learned is not None else (),
        learned_folders=learned.folders if learned is not None else (),
        open_files=open_files,
    )
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_STREAM)
    ours.setblocking(False)
    try:
        # The marker tells this job's processes from another's, should all be orphaned (orphans.py).
        marked = dict(env) | {JOB_VARIABLE: spec.job_id}
        command = (make_command or _make_command)(settings, marked, theirs.fileno())
        process = _execute(command, spec, (theirs.fileno(), *claim), private=private, output_dir=output_dir)
        # After the start, which need not wait for it: a spawner makes no process before it hears from us.
        process_table.become_subreaper()
    except BaseException:  # whatever it was, our end must not leak; raised again
        ours.close()
        raise
    finally:
        theirs.close()
    return SpawnerProcess(process, ours)


def _make_command(settings: SpawnerSettings, env: Mapping[str, str], link_fd: int) -> SpawnerCommand:
    return spawner_command(settings, env, link_fd=link_fd)


def _execute(
    command: SpawnerCommand, spec: JobSpec, pass_fds: tuple[int, ...], *, private: bool, output_dir: Path | None
) -> subprocess.Popen[bytes]:
    files: list[int] = []
    try:
        if output_dir is not None:
            output_dir.mkdir(mode=0o700, parents=True, exist_ok=True)
            flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_NOFOLLOW | os.O_CLOEXEC
            files = [os.open(output_dir / name, flags, 0o600) for name in ("spawner.stdout.log", "spawner.stderr.log")]
        stdout, stderr = files or (None, None)
        return subprocess.Popen(
            command.argv,
            env=command.env,
            cwd=spec.cwd or None,
            stdin=None if private else subprocess.DEVNULL,
            stdout=stdout,
            stderr=stderr,
            pass_fds=pass_fds,
            start_new_session=True,
        )
    except (OSError, ValueError) as error:
        raise InvalidRequestError(
            f"cannot start the spawner of job {spec.job_id}: {error}; check --python, the command and the folder"
        ) from error
    finally:
        for descriptor in files:
            os.close(descriptor)
