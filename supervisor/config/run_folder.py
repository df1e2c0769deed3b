"""Which folder holds the logs of one run of a job, and can a file system hold it?

Each run has a folder of its own, named after its submission: no run is mixed with another of the same id, no number has
to be looked for on a disk that may hang, and names sort by age.
"""

from __future__ import annotations

from datetime import UTC, datetime

from supervisor.errors import InvalidRequestError

NAME_BYTES_MAX = 255
PATH_BYTES_MAX = 4095  # PATH_MAX, less its final zero
FOLDERS_MAX = 500  # one in another: Python makes missing ones by recursion, whose limit is 1,000 calls
BELOW_BYTES_MAX = 200  # JOB/run_…/cycle_…/rank_…/stdout.log and what may be appended to it
RUN_PREFIX = "run_"


def run_name(submitted_at_ns: int) -> str:
    """Returns a name such as run_20261122T021322.123Z: UTC, to the millisecond."""
    moment = datetime.fromtimestamp(submitted_at_ns // 10**9, UTC)
    return f"{RUN_PREFIX}{moment:%Y%m%dT%H%M%S}.{submitted_at_ns // 10**6 % 1000:03}Z"


def run_folder(log_dir: str, job_id: str, submitted_at_ns: int) -> str:
    return f"{log_dir}/{job_id}/{run_name(submitted_at_ns)}"


def check_log_dir(log_dir: str) -> None:
    """Raises InvalidRequestError for a path that no file system could hold; "" is the default place."""
    if not log_dir:
        return
    shown = ascii(log_dir if len(log_dir) <= 80 else f"{log_dir[:77]}...")
    remedy = "choose another --log-dir"
    try:
        encoded = log_dir.encode()
    except UnicodeEncodeError:
        raise InvalidRequestError(f"cannot keep logs in {shown}: it is not valid UTF-8; {remedy}") from None
    if b"\0" in encoded:
        raise InvalidRequestError(f"cannot keep logs in {shown}: it contains a NUL byte; {remedy}")
    longest = max(map(len, encoded.split(b"/")))
    if longest > NAME_BYTES_MAX:
        raise InvalidRequestError(
            f"cannot keep logs in {shown}: a name in it has {longest} bytes, the limit is {NAME_BYTES_MAX}; {remedy}"
        )
    if len(encoded) > PATH_BYTES_MAX - BELOW_BYTES_MAX:
        raise InvalidRequestError(
            f"cannot keep logs in {shown}: the path has {len(encoded)} bytes, "
            f"the limit is {PATH_BYTES_MAX - BELOW_BYTES_MAX}; {remedy}"
        )
    if log_dir.count("/") > FOLDERS_MAX:
        raise InvalidRequestError(f"cannot keep logs in {shown}: it is more than {FOLDERS_MAX} folders deep; {remedy}")
