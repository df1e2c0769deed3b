"""Which errors can a restart inside the process raise, and who may catch them?

An `Exception` leads to one more restart, or ends this rank alone; a `BaseException` ends the wrapped call.
"""

from __future__ import annotations


class RestartError(Exception):
    """The root of all errors of a restart inside the process."""


class HealthCheckError(RestartError):
    """Raised when a health check finds this rank unfit to continue; its cause is the check's own exception."""


class InternalError(RestartError):
    """Raised when the restart itself fails because of a bug in this library, not in the script."""


class TimeoutError(RestartError):
    """Raised when a callback does not finish within its timeout."""


class RestartAbort(BaseException):
    """Raised to end the wrapped call on this rank for good: no further restart."""
