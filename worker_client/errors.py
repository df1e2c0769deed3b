"""What can a caller of the client do wrong, and how is it reported?"""

from __future__ import annotations


class RankMonitorClientError(RuntimeError):
    """Raised for misuse of the client's API, never because of the supervisor, which may be away at any time."""


class LeaseLostError(RuntimeError):
    """Raised if another group of ranks may have taken the place of this rank's, which may write nothing any more."""


class ChannelProtocolError(ValueError):
    """Raised for bytes from the supervisor that are not a frame of the worker channel; the connection is closed."""
