"""How is a worker or a store host started: by a fork of this interpreter, or by executing a command?"""

from __future__ import annotations

import errno
import os
import select
import signal
import sys
from collections.abc import Callable, Mapping
from typing import NamedTuple, NoReturn

from . import binding, child_state
from .binding import Binding
from .child_state import Inherited
from .oom_kills import OomCounter

_EXIT_CODES = {errno.ENOENT: 127, errno.ENOTDIR: 127, errno.EACCES: 126, errno.ENOEXEC: 126, errno.EPERM: 126}
_REMEDIES = {
    errno.ENOENT: "check the path and PATH",
    errno.EACCES: "make it executable (chmod +x)",
    errno.ENOEXEC: "give it a first line such as #!/bin/sh",
    errno.E2BIG: "shorten the arguments or the environment",
    errno.ETXTBSY: "close the program that writes the file",
}
_RESOURCES = {
    errno.EMFILE: "raise the limit on open files (ulimit -n)",
    errno.ENFILE: "raise the limit on open files of the machine (fs.file-max)",
    errno.EAGAIN: "raise the limit on processes (ulimit -u, or pids.max of the cgroup)",
    errno.ENOMEM: "free memory on this node",
    errno.ENOSPC: "free space on that disk",
    errno.EDQUOT: "free space on that disk",
    errno.EINVAL: "move it away",
    errno.ETIMEDOUT: "check that its file system answers",
}


EXECUTE_TIMEOUT_S = 10.0  # the program may be on a file system that does not answer
_IGNORED_BY_PYTHON = (signal.SIGPIPE, signal.SIGXFSZ)


def why_not_started(local_rank: int, error: OSError | ValueError) -> str:
    """Returns the sentence for people, with the remedy."""
    what = f"cannot start local rank {local_rank}"
    if not isinstance(error, OSError):
        return f"{what}: {error}; check its paths and its environment for characters that no file name may have"
    where = f" ({error.filename})" if error.filename else ""
    return f"{what}: {error.strerror}{where}; {_RESOURCES.get(error.errno or 0, 'check that path and --log-dir')}"


class BecomeWorkerError(BaseException):
    """Unwinds a forked worker out of the spawner's frames, back to the interpreter that will run the script."""

    def __init__(self, local_rank: int) -> None:
        super().__init__(local_rank)
        self.local_rank = local_rank


class CannotExecuteError(Exception):
    """Raised when a command can't be executed; the text is the sentence for people."""

    def __init__(self, program: str, error: OSError) -> None:
        remedy = _REMEDIES.get(error.errno or 0, "run the command by hand to see more")
        super().__init__(f"cannot start {program}: {error.strerror}; {remedy}")
        self.exit_code = _EXIT_CODES.get(error.errno or 0, 1)


class Child:
    """A child that has not been reaped yet. `memory` None: how it ends does not matter."""

    __slots__ = (
        "cycle",
        "error_file",
        "killed_by_us",
        "lingers",
        "local_rank",
        "logs",
        "memory",
        "pid",
        "pidfd",
        "stderr_file",
        "unattended_s",
    )

    def __init__(
        self, cycle: int, local_rank: int, pid: int, pidfd: int, memory: OomCounter | None, *, lingers: bool = False
    ) -> None:
        self.cycle = cycle
        self.local_rank = local_rank
        self.pid = pid
        self.pidfd = pidfd
        self.memory = memory
        self.error_file = ""  # where torch's @record writes
        self.stderr_file = ""  # the file that the worker itself writes
        self.logs: tuple[str, ...] = ()  # all files that its output goes to
        self.killed_by_us = False
        self.unattended_s: float | None = None  # ended since no supervisor came back within that time
        self.lingers = lingers  # After its kill, the cycle's end does not wait for it.


class Start(NamedTuple):
    """What a child needs besides the spawner's own state."""

    streams: Mapping[int, int]
    env: Mapping[str, str]
    cgroup_folder: str = ""
    keep: frozenset[int] = frozenset()
    binding: Binding = Binding()


def fork_worker(inherited: Inherited, local_rank: int, start: Start, *, leave: Callable[[], None]) -> int:
    """Forks a worker and returns its pid. In the child, `leave` closes the loop; then it raises BecomeWorkerError."""
    pid = fork(inherited)
    if pid:
        return pid
    try:
        leave()
        child_state.settle(inherited, streams=start.streams, keep=start.keep, cgroup_folder=start.cgroup_folder)
        child_state.forget_spawner(inherited)
        child_state.take_rank(inherited, start.streams, start.env, start.binding)
    except BaseException as error:  # noqa: BLE001 - whatever it is must not return into the spawner's loop
        sys.excepthook(type(error), error, error.__traceback__)
        os._exit(1)
    raise BecomeWorkerError(local_rank)


def fork_and_call(inherited: Inherited, start: Start, body: Callable[[], object], *, leave: Callable[[], None]) -> int:
    """Forks a child that runs only `body`, until SIGKILL at the latest, and returns its pid."""
    pid = fork(inherited)
    if pid:
        return pid
    try:
        leave()
        child_state.settle(inherited, streams=start.streams, keep=start.keep, cgroup_folder=start.cgroup_folder)
        child_state.ignore_signals()  # What asks the ranks to save must leave them their store and their log.
        child_state.restore_signal_mask(inherited)
        body()
    except BaseException as error:  # noqa: BLE001 - whatever it is must not return into the spawner's loop
        sys.excepthook(type(error), error, error.__traceback__)
    finally:
        os._exit(1)


def execute(inherited: Inherited, start: Start, argv: tuple[str, ...], *, leave: Callable[[], None]) -> int:
    """Executes `argv` in a child and returns its pid. Waits for execve. Raises CannotExecuteError and OSError."""
    reader, writer = os.pipe()
    try:
        pid = fork(inherited)
        if pid == 0:
            leave()
            _execute_in_child(inherited, start, argv, writer)
    except OSError:
        os.close(reader)
        raise
    finally:
        os.close(writer)
    # Only a successful execve or the death of the child closes this end of the pipe.
    with open(reader, "rb", buffering=0) as pipe:
        poll = select.poll()  # select() takes no descriptor from 1024 on.
        poll.register(pipe, select.POLLIN)
        if not poll.poll(EXECUTE_TIMEOUT_S * 1000):
            os.kill(pid, signal.SIGKILL)  # Reaped like the other children.
            raise OSError(errno.ETIMEDOUT, f"it was not executed within {EXECUTE_TIMEOUT_S:g} s", argv[0])
        report = pipe.read(16)
    if report:
        os.waitpid(pid, 0)
        number = int(report)
        raise CannotExecuteError(argv[0], OSError(number, os.strerror(number)))
    return pid


def _execute_in_child(inherited: Inherited, start: Start, argv: tuple[str, ...], writer: int) -> NoReturn:
    try:
        child_state.settle(
            inherited, streams=start.streams, keep=start.keep | {writer}, cgroup_folder=start.cgroup_folder
        )
        child_state.restore_signal_mask(inherited)
        binding.apply(start.binding)
        for fd in start.keep:
            os.set_inheritable(fd, True)
        for number in _IGNORED_BY_PYTHON:  # A shell could not undo that for its pipes.
            signal.signal(number, signal.SIG_DFL)
        env = dict(os.environ) | dict(start.env)
        os.execvpe(argv[0], list(argv), env)
    except OSError as error:
        os.write(writer, str(error.errno).encode())
    finally:
        os._exit(127)


def fork(inherited: Inherited) -> int:
    """Forks with all signals blocked; restores the parent's mask here, the child's once it has settled."""
    child_state.block_signals()
    try:
        pid = child_state.fork_quietly()
    except OSError:
        child_state.restore_signal_mask(inherited)
        raise
    if pid:
        child_state.restore_signal_mask(inherited)
    return pid
