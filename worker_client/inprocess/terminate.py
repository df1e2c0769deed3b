"""What remains to be done on a rank that leaves for good with an error?"""

from __future__ import annotations

import abc
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from worker_client.inprocess.state import FrozenState


class Terminate(abc.ABC):
    """Called on the main thread of a rank that leaves the call with an error; its own exception replaces that error."""

    @abc.abstractmethod
    def __call__(self, state: FrozenState) -> FrozenState: ...
