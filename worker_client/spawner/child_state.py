"""What must a forked child undo, so that it looks like a process that the user's command line started?"""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from importlib import import_module
from typing import Any, NamedTuple

from . import binding, cgroup, process_attributes, rank_reads

_THREAD_COUNT = "OMP_NUM_THREADS"
_ALL_SIGNALS = signal.valid_signals()  # asked once: it takes 0.1 ms, and each fork needs them
# The call behind that of `signal`, which would make an enum of each signal that was blocked: 0.2 ms for each fork.
_change_mask: Callable[[int, Iterable[int]], object] = import_module("_signal").pthread_sigmask
_IGNORED = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT, signal.SIGTSTP, signal.SIGTTOU)
# Batch systems send some of these to every process of a job, a while before its end: the ranks are to save.
_IGNORED_UNLESS_HANDLED = (
    signal.SIGUSR1,
    signal.SIGUSR2,
    signal.SIGALRM,
    signal.SIGVTALRM,
    signal.SIGPROF,
    signal.SIGXCPU,
    signal.SIGPWR,
)
_CHANGED = (*_IGNORED, *_IGNORED_UNLESS_HANDLED, signal.SIGCHLD)  # all that a spawner handles in its own way
_STREAM_NAMES = {1: "stdout", 2: "stderr"}


class Inherited(NamedTuple):
    """The state that this process got at its start and that a worker must find again."""

    pid: int
    title: process_attributes.Title
    fds: frozenset[int]  # open before the spawner opened its own
    signal_mask: frozenset[int]
    handlers: Mapping[int, Any]
    modules: frozenset[str]
    sets_threads: bool = True  # False: the script sets them, and pools were created accordingly


def remember(title: process_attributes.Title, own_fds: frozenset[int], *, sets_threads: bool = True) -> Inherited:
    """Returns the state of this process, before the spawner changes it. `own_fds` already belong to the spawner."""
    return Inherited(
        pid=os.getpid(),
        title=title,
        fds=frozenset(open_fds()) - own_fds,
        signal_mask=frozenset(signal.pthread_sigmask(signal.SIG_BLOCK, ())),
        handlers={number: signal.getsignal(number) for number in _CHANGED},
        modules=frozenset(sys.modules),
        sets_threads=sets_threads,
    )


def open_fds() -> list[int]:
    """Returns the descriptors that are open in this process."""
    with os.scandir("/proc/self/fd") as entries:
        listed = [int(entry.name) for entry in entries]
    return [fd for fd in listed if _is_open(fd)]  # Without the one used for listing.


def ignore_signals() -> None:
    """Ignores what would end a spawner, and so its workers. What the user's code handles stays: workers inherit it."""
    with open("/proc/self/status", "rb") as file:
        handled = next(int(line.split()[1], 16) for line in file if line.startswith(b"SigCgt:"))  # also by C code
    for number in (*_IGNORED, *(each for each in _IGNORED_UNLESS_HANDLED if not handled >> each - 1 & 1)):
        signal.signal(number, signal.SIG_IGN)


def block_signals() -> None:
    """Blocks all signals around a fork, so that a child handles none with its parent's handlers."""
    _change_mask(signal.SIG_BLOCK, _ALL_SIGNALS)


def fork_quietly() -> int:
    """Forks without the warning of Python >= 3.12 about threads; fork_fitness.py has checked ours."""
    warnings = sys.modules.get("warnings")
    if warnings is None:  # No loaded module could have started a thread.
        return os.fork()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        return os.fork()


def restore_signal_mask(inherited: Inherited) -> None:
    _change_mask(signal.SIG_SETMASK, inherited.signal_mask)


def settle(inherited: Inherited, *, streams: Mapping[int, int], keep: frozenset[int], cgroup_folder: str) -> None:
    """Does what every child of the spawner needs: own session, own signals, none of the spawner's descriptors.

    `streams` maps 1 and 2 to the descriptor to use; `keep` are further descriptors to leave open. Signals are still
    blocked at the end.
    """
    cgroup.join(cgroup_folder)
    os.setsid()
    process_attributes.die_with_parent(signal.SIGKILL)
    if os.getppid() != inherited.pid:  # The spawner died before the line above.
        os._exit(1)
    for number, fd in streams.items():
        os.dup2(fd, number)
    for fd in open_fds():
        if fd not in inherited.fds and fd not in keep and fd not in streams:
            os.close(fd)
    inherited.title.restore()
    signal.set_wakeup_fd(-1)
    for number, handler in inherited.handlers.items():
        if handler is not None and signal.getsignal(number) is not handler:
            with suppress(OSError):
                signal.signal(number, handler)


def forget_spawner(inherited: Inherited) -> None:
    """Does what only a forked worker needs, which runs the script in this very interpreter."""
    for name in [name for name in sys.modules if name not in inherited.modules]:
        del sys.modules[name]  # Loaded late on the spawner's behalf, such as a codec.
    _renew_randomness()


def take_rank(inherited: Inherited, streams: Mapping[int, int], env: Mapping[str, str], bound: binding.Binding) -> None:
    """Turns a forked worker into one rank. Signals reach it again."""
    threads_before = os.environ.get(_THREAD_COUNT)
    os.environ.update(env)
    for number in streams:
        _rebuild_stream(number)
    binding.apply(bound)
    if inherited.sets_threads:
        _set_thread_counts(threads_before)
        binding.fit_torch(bound)
    rank_reads.tell_ranks()
    restore_signal_mask(inherited)


def _rebuild_stream(number: int) -> None:
    """Creates a new sys.stdout or sys.stderr as under -u, because the old one has the old descriptor."""
    import io

    name = _STREAM_NAMES[number]
    old = getattr(sys, name)
    raw = io.open(number, "wb", buffering=0, closefd=False)  # noqa: SIM115, UP020
    raw.name = f"<{name}>"
    encoding = old.encoding if old is not None else None
    errors = old.errors if old is not None else ("backslashreplace" if number == 2 else "strict")
    stream = io.TextIOWrapper(raw, encoding, errors, "\n", line_buffering=False, write_through=True)
    object.__setattr__(stream, "mode", "w")
    setattr(sys, name, stream)
    setattr(sys, f"__{name}__", stream)


def _set_thread_counts(before: str | None) -> None:
    """Sets thread counts again: thread pools read OMP_NUM_THREADS when loaded, before a worker's own value is set."""
    wanted = os.environ.get(_THREAD_COUNT)
    torch = sys.modules.get("torch")
    if torch is None or wanted == before or not wanted or not wanted.isdigit() or wanted == "0":
        return
    torch.set_num_threads(int(wanted))


def _renew_randomness() -> None:
    """Reseeds what a fresh process seeds itself and forks would share. random.Random does this by itself."""
    torch = sys.modules.get("torch")
    if torch is not None:
        torch.default_generator.seed()  # Seeded when torch is loaded; torch.seed() would also touch CUDA.
    numpy_random = sys.modules.get("numpy.random")
    if numpy_random is not None:
        numpy_random.seed()
    process = sys.modules.get("multiprocessing.process")
    if process is not None:
        process.current_process().authkey = os.urandom(32)


def _is_open(fd: int) -> bool:
    try:
        os.fstat(fd)
    except OSError:
        return False
    return True
