"""Where do the logs of a whole job go: one file for each cycle, the supervisor's words, records of cycles?"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping

import msgspec

from supervisor.config.run_folder import FOLDERS_MAX
from supervisor.config.values import Kind, Shape, ValueProblem

PATH_BYTES_MAX = 4095
NAME_BYTES_MAX = 255
ADDED_BYTES_MAX = 40  # _cycle<N>, .log and the like
DEFAULT_SUFFIX = ".log"
_SUFFIX = re.compile(r"\.[A-Za-z][A-Za-z0-9]*")  # not the .1 of llama-3.1, nor the .5-7b of qwen2.5-7b


class LogServer(msgspec.Struct, frozen=True):
    """With several nodes, one process writes each file of the whole job, and gets the lines of all nodes."""

    enabled: bool = False
    port: int = 50051  # of the first leaf
    leaves: int = 0  # 0: by the number of nodes
    leaf_queue_chunks: int = -1  # below 0: by the number of nodes
    log_prefix: str = ""  # of the servers' own logs; "": beside the job's
    graceful_s: float = 60.0


class JobLogs(msgspec.Struct, frozen=True):
    """The logs that are kept beside those of each rank. Paths are absolute; "" means not wanted."""

    cycle_prefix: str = ""  # cycle_log_path makes the path of each cycle of it
    supervisor_log: str = ""
    cycle_info_dir: str = ""


def cycle_log_path(prefix: str, cycle: int) -> str:
    """Returns the file of one cycle: /logs/train.log gives /logs/train_cycle3.log, and so does /logs/train."""
    return extended(prefix, f"_cycle{cycle}")


def extended(prefix: str, word: str) -> str:
    """Returns the path with `word` before its suffix, or with the default one."""
    stem, suffix = os.path.splitext(prefix)
    return f"{stem}{word}{suffix}" if _SUFFIX.fullmatch(suffix) else f"{prefix}{word}{DEFAULT_SUFFIX}"


def server_log_prefix(logs: JobLogs, server: LogServer) -> str:
    """Returns the prefix of the names of the log servers' own logs."""
    if server.log_prefix:
        return server.log_prefix
    return f"{(logs.supervisor_log or logs.cycle_prefix).removesuffix(DEFAULT_SUFFIX)}_grpc"


def log_sender_socket(worker_socket: str, job_id: str) -> str:
    """Returns the socket of this node's sender, for its log processes; beside that of the workers, and no longer."""
    import hashlib  # Late: it loads OpenSSL, and few jobs have log servers.

    digest = hashlib.sha256(job_id.encode("utf-8", "surrogateescape")).hexdigest()
    return f"{os.path.dirname(worker_socket)}/log.{digest[:6]}"


def rank_prefix(rank: int, world_size: int) -> str:
    """Returns the prefix of each line of a rank, with the numbers aligned."""
    return f"{rank:>{len(str(world_size - 1))}}: "


def scheduler_job_id(environ: Mapping[str, str], job_id: str) -> str:
    """Returns the id by which other programs know the job: the scheduler's number if there is one."""
    known = environ.get("SLURM_ARRAY_JOB_ID") or environ.get("SLURM_JOB_ID") or job_id
    return re.sub(r"[^A-Za-z0-9._-]", "_", known)


def attempt_of(environ: Mapping[str, str]) -> int:
    """Returns how often the scheduler has restarted the job."""
    count = environ.get("SLURM_RESTART_COUNT", "")
    return int(count) if re.fullmatch(r"[0-9]{1,9}", count) else 0


def cycle_info_stem(environ: Mapping[str, str], job_id: str, nodes_min: int) -> str:
    """Returns how the names of a job's records begin. A task of an array that is a job of its own adds its number.

    A job that needs more nodes than one task has is spread over the tasks: its nodes agree on the array's number alone.
    """
    stem = f"cycle_info.{scheduler_job_id(environ, job_id)}"
    task, nodes = environ.get("SLURM_ARRAY_TASK_ID", ""), environ.get("SLURM_JOB_NUM_NODES", "")
    is_own_job = nodes_min <= (int(nodes) if re.fullmatch(r"[0-9]{1,9}", nodes) else 1)
    return f"{stem}_{task}" if re.fullmatch(r"[0-9]{1,20}", task) and is_own_job else stem


def cycle_info_name(stem: str, attempt: int, cycle: int) -> str:
    """Returns the name of a cycle's record."""
    return f"{stem}.{attempt}.{cycle}"


def current_cycle_info(folder: str, stem: str) -> str:
    """Returns the link to the record of the newest cycle."""
    return os.path.join(folder, f"{stem}.current")


def parse_log_path(text: str) -> str:
    """Reads the path of a file whose name may be extended; "" is none. Raises ValueProblem."""
    if not text:
        return ""
    try:
        size, name = len(os.fsencode(text)), len(os.fsencode(os.path.basename(text)))
    except UnicodeEncodeError:
        raise ValueProblem("it is not valid UTF-8", "choose another path") from None
    if "\0" in text or size > PATH_BYTES_MAX - ADDED_BYTES_MAX or name > NAME_BYTES_MAX - ADDED_BYTES_MAX:
        raise ValueProblem("it is too long or has a NUL byte in it", "choose another path")
    _check_depth(text)
    if not name:
        raise ValueProblem("it names a folder", "add the name of a file, such as train.log")
    return text


def parse_folder(text: str) -> str:
    """Reads the path of a folder; "" is none. Raises ValueProblem."""
    if "\0" in text or len(text.encode("utf-8", "surrogateescape")) > PATH_BYTES_MAX - NAME_BYTES_MAX:
        raise ValueProblem("it is too long or has a NUL byte in it", "choose another path")
    _check_depth(text)
    return text


def _check_depth(path: str) -> None:
    if path.count("/") > FOLDERS_MAX:
        raise ValueProblem(f"it is more than {FOLDERS_MAX} folders deep", "choose another path")


LOG_PATH = Kind("PATH", "", Shape.TEXT, parse_log_path, str)
FOLDER = Kind("PATH", "", Shape.TEXT, parse_folder, str)


def absolute(kind: Kind, path: str, folder: str) -> str:
    """Returns a path of one of these kinds as seen from `folder`; "" stays. Raises ValueProblem."""
    if not path or os.path.isabs(path):
        return path
    if not folder:
        raise ValueProblem("the current folder was removed", "write an absolute path")
    return str(kind.parse(os.path.normpath(os.path.join(folder, path)) + "/" * path.endswith("/")))
