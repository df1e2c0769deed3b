"""What can a person do about an error of the kernel: a limit that is reached, a system call that is refused?"""

from __future__ import annotations

import errno
import resource

from supervisor.errors import ConfigurationError, ExhaustedError

NO_DESCRIPTORS_REMEDY = (  # pidfd_open is refused
    "use Linux 5.4 or newer and, in a container, a runtime whose seccomp profile knows pidfd_open (Docker 20.10.0, "
    "Podman 2.1, with libseccomp 2.5.0), or seccomp=unconfined"
)

_PROCESSES = "raise the limit on processes (ulimit -u, pids.max of the cgroup)"
_REMEDIES = {
    errno.EMFILE: "raise the limit on open files (ulimit -n)",
    errno.ENFILE: "raise the limit on open files of the machine (fs.file-max)",
    errno.EAGAIN: _PROCESSES,
    errno.ENOMEM: "raise the limit on memory (ulimit -v, or memory.max of the cgroup), or free memory on this node",
    errno.EFBIG: "raise the limit on the size of files (ulimit -f)",
    errno.ENOSPC: "free space on that disk",
    errno.EDQUOT: "free space on that disk",
}

_DISK = "check that disk or its file server"
_OF_A_DISK = {errno.EIO: _DISK, errno.ESTALE: _DISK, errno.ETIMEDOUT: _DISK}  # which may answer again

# While a connection or a process is taken: what is free again later ends no job, and no process of ours.
OF_DESCRIPTORS = (errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM)


class NoThreadError(OSError):
    """Raised if no thread can be started, and nothing of its work was done."""

    def __init__(self, error: BaseException) -> None:
        stacks = "" if resource.getrlimit(resource.RLIMIT_AS)[0] == resource.RLIM_INFINITY else " and ulimit -v"
        super().__init__(f"no thread can be started ({error}); {_PROCESSES}{stacks}")
        self.errno = errno.EAGAIN


def is_passing(error: BaseException | None) -> bool:
    """Returns whether a thread, a process or a descriptor was missing, which may be there in a moment."""
    passing = (*OF_DESCRIPTORS, errno.EAGAIN)
    return isinstance(error, NoThreadError) or (isinstance(error, OSError) and error.errno in passing)


def remedy(error: BaseException) -> str:
    """Returns what to do; "" if the error is not a shortage, so a later attempt would not help."""
    return _REMEDIES.get(error.errno or 0, "") if isinstance(error, OSError) else ""


def refusal(what: str, error: OSError, *, otherwise: str) -> ExhaustedError | ConfigurationError:
    """Returns the error to raise if a file, a folder or a socket of ours can't be made or used.

    ExhaustedError for a shortage or a disk that fails: a later start may succeed. Else ConfigurationError, with the
    remedy `otherwise`: systemd and Slurm's prolog do not start a supervisor again after that.
    """
    why, passing = error.strerror or error, remedy(error) or _OF_A_DISK.get(error.errno or 0)
    if passing:
        return ExhaustedError(f"cannot {what}: {why}; {passing}")
    return ConfigurationError(f"cannot {what}: {why}; {otherwise}")


def in_words(error: BaseException) -> str:
    """Returns which limit was reached, and the remedy; "" if it was none."""
    if isinstance(error, MemoryError):
        return f"no memory is left; {_REMEDIES[errno.ENOMEM]}"
    if isinstance(error, NoThreadError):
        return str(error)
    if isinstance(error, OSError) and error.errno != errno.EAGAIN and (what_to_do := remedy(error)):
        return f"{error.strerror}; {what_to_do}"
    return ""
