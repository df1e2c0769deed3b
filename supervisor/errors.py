"""Which refusals can a caller of the supervisor act on?

Messages read "cannot <do what>: <why>; <remedy>", without a full stop. A subclass exists only where API and command
line answer it differently (gRPC code, exit code).
"""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager


class HoldfastError(Exception):
    """A refusal that somebody can act on. `reason` is a constant in UPPER_SNAKE_CASE for programs."""

    reason = "REFUSED"
    exit_code = 1


class NotFoundError(HoldfastError):
    """There is no such job, rank or node."""

    reason = "NOT_FOUND"
    exit_code = 1


class AlreadyExistsError(HoldfastError):
    """A live job has this id; once that one has ended it may be used again."""

    reason = "ALREADY_EXISTS"
    exit_code = 75


class InvalidRequestError(HoldfastError):
    """The request is wrong whatever the state; repeating it does not help."""

    reason = "INVALID_REQUEST"
    exit_code = 2


class NotPermittedError(HoldfastError):
    """The caller is not the user whom the supervisor serves."""

    reason = "NOT_PERMITTED"
    exit_code = 1


class NotNowError(HoldfastError):
    """The state of job or node forbids it: the job has ended."""

    reason = "NOT_NOW"
    exit_code = 1


class CordonedError(HoldfastError):
    """The node takes no new jobs; another one may, or this one later."""

    reason = "CORDONED"
    exit_code = 75


class ExhaustedError(HoldfastError):
    """A bound is reached; later it may work."""

    reason = "EXHAUSTED"
    exit_code = 75


class InUseError(HoldfastError):
    """Another process holds it now; once that one has ended it may work."""

    reason = "IN_USE"
    exit_code = 75


class NoSupervisorError(HoldfastError):
    """Nobody answers where a supervisor should."""

    reason = "NO_SUPERVISOR"
    exit_code = 69


class NoAnswerError(HoldfastError):
    """Another node of the job did not answer in time, or can't be reached now."""

    reason = "NO_ANSWER"
    exit_code = 75


class ConfigurationError(HoldfastError):
    """File, flag or environment is wrong."""

    reason = "BAD_CONFIGURATION"
    exit_code = 78


@asynccontextmanager
async def one_refusal() -> AsyncGenerator[None]:
    """What somebody can act on comes out of the task tree as itself, not in a group."""
    try:
        yield
    except BaseExceptionGroup as group:
        refusals = group.subgroup(HoldfastError)
        while isinstance(refusals, BaseExceptionGroup):
            refusals = refusals.exceptions[0]
        if refusals is None:
            raise
        raise refusals from None
