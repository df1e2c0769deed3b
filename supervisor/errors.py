"""Which refusals can a caller of the supervisor act on?

Messages read "cannot <do what>: <why>; <remedy>", without a full stop. A subclass exists only if the API or the command
line answers it differently (gRPC code, exit code).
"""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager

from supervisor.local_time import local_time


class HoldfastError(Exception):
    """A refusal that somebody can act on. `reason` is a constant in UPPER_SNAKE_CASE for programs."""

    reason = "REFUSED"
    exit_code = 1


class NotFoundError(HoldfastError):
    """There is no such job, rank or node."""

    reason = "NOT_FOUND"
    exit_code = 1


class AlreadyExistsError(HoldfastError):
    """A live job has this id; it is free again once that job has ended."""

    reason = "ALREADY_EXISTS"
    exit_code = 75

    @classmethod
    def of_live_job(cls, job_id: str, *, since_ns: int, pid: int, where: str = "") -> AlreadyExistsError:
        """Names the supervisor that runs the job, by its pid, and since when."""
        since = local_time(since_ns)
        return cls(
            f"cannot start job {job_id}: a job of that id{where} is live since {since}, under the supervisor with pid "
            f"{pid}; choose another --job-id, or holdfast stop {job_id}"
        )


class InvalidRequestError(HoldfastError):
    """The request is wrong in any state; repeating it does not help."""

    reason = "INVALID_REQUEST"
    exit_code = 2


class NotPermittedError(HoldfastError):
    """The caller is not the user whom the supervisor serves."""

    reason = "NOT_PERMITTED"
    exit_code = 1


class NotNowError(HoldfastError):
    """The state of the job or node forbids it, such as a job that has ended."""

    reason = "NOT_NOW"
    exit_code = 1


class CordonedError(HoldfastError):
    """The node takes no new jobs; another one may, or this one later."""

    reason = "CORDONED"
    exit_code = 75


class ExhaustedError(HoldfastError):
    """A limit is reached; a later attempt may work."""

    reason = "EXHAUSTED"
    exit_code = 75


class InUseError(HoldfastError):
    """Another process holds it; it may work once that process has ended."""

    reason = "IN_USE"
    exit_code = 75


class NoSupervisorError(HoldfastError):
    """No process answers where a supervisor should."""

    reason = "NO_SUPERVISOR"
    exit_code = 69


class NoAnswerError(HoldfastError):
    """Another node of the job did not answer in time, or can't be reached now."""

    reason = "NO_ANSWER"
    exit_code = 75


class ConfigurationError(HoldfastError):
    """A file, flag or environment variable is wrong."""

    reason = "BAD_CONFIGURATION"
    exit_code = 78


@asynccontextmanager
async def one_refusal() -> AsyncGenerator[None]:
    """Unwraps an error that somebody can act on from the task tree's exception groups."""
    try:
        yield
    except BaseExceptionGroup as group:
        refusals = group.subgroup(HoldfastError)
        while isinstance(refusals, BaseExceptionGroup):
            refusals = refusals.exceptions[0]
        if refusals is None:
            raise
        raise refusals from None
