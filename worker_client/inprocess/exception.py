"""Which errors can a restart inside the process raise, and who may catch them?

An `Exception` leads to one more restart, or ends this rank alone; a `BaseException` ends the wrapped call.
"""

from __future__ import annotations


class RestartError(Exception):
    """The root of all errors of a restart inside the process."""


class HealthCheckError(RestartError):
    """Raised when a health check found this rank unfit to go on; its cause is what the check raised."""


class InternalError(RestartError):
    """Raised when the restart itself is broken: a fault of this library, not of the script."""


class TimeoutError(RestartError):
    """Raised when a callback did not end in its time."""


class RestartAbort(BaseException):
    """Raised to end the wrapped call on this rank for good: no further restart."""
