"""How does a worker or a store host come to life: by a fork of this interpreter, or by executing a command?"""

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
from .cgroup import OomCounter
from .child_state import Inherited

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


EXECUTE_TIMEOUT_S = 10.0  # the program may lie on a file system that does not answer


def why_not_started(local_rank: int, error: OSError | ValueError) -> str:
    """The sentence for people, with what they can do about it."""
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
    """A child that was not reaped yet. `memory` None: nobody asks how it ended."""

    __slots__ = (
        "cycle",
        "error_file",
        "killed_by_us",
        "lingers",
        "local_rank",
        "memory",
        "pid",
        "pidfd",
        "stderr_file",
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
        self.stderr_file = ""  # which the worker writes itself
        self.killed_by_us = False
        self.lingers = lingers  # Once it is killed, the end of its cycle does not wait for it.


class Start(NamedTuple):
    """What a child needs beside the spawner's own state."""

    streams: Mapping[int, int]
    env: Mapping[str, str]
    cgroup_folder: str = ""
    keep: frozenset[int] = frozenset()
    binding: Binding = Binding()


def fork_worker(inherited: Inherited, local_rank: int, start: Start, *, leave: Callable[[], None]) -> int:
    """Fork a worker: the pid in the parent. In the child, raises BecomeWorkerError. `leave` closes the loop there."""
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
    """Fork a child that runs `body` and nothing else: the pid in the parent."""
    pid = fork(inherited)
    if pid:
        return pid
    try:
        leave()
        child_state.settle(inherited, streams=start.streams, keep=start.keep, cgroup_folder=start.cgroup_folder)
        child_state.restore_signal_mask(inherited)
        body()
    except BaseException as error:  # noqa: BLE001 - whatever it is must not return into the spawner's loop
        sys.excepthook(type(error), error, error.__traceback__)
    finally:
        os._exit(1)


def execute(inherited: Inherited, start: Start, argv: tuple[str, ...], *, leave: Callable[[], None]) -> int:
    """Start `argv` in a child: the pid. Waits until the kernel has taken it. Raises CannotExecuteError, OSError."""
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
    # The end of this pipe is closed by a successful execve, and by nothing else but the death of the child.
    with open(reader, "rb", buffering=0) as pipe:
        if not select.select([pipe], [], [], EXECUTE_TIMEOUT_S)[0]:
            os.kill(pid, signal.SIGKILL)  # Reaped with the other children, once it is gone.
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
        env = dict(os.environ) | dict(start.env)
        os.execvpe(argv[0], list(argv), env)
    except OSError as error:
        os.write(writer, str(error.errno).encode())
    finally:
        os._exit(127)


def fork(inherited: Inherited) -> int:
    """Fork with all signals held back; the parent's mask is put back here, the child's when it has settled."""
    child_state.block_signals()
    try:
        pid = child_state.fork_quietly()
    except OSError:
        child_state.restore_signal_mask(inherited)
        raise
    if pid:
        child_state.restore_signal_mask(inherited)
    return pid
