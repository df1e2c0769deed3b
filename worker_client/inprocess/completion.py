"""What remains to be done once the function has succeeded on all ranks?"""

from __future__ import annotations

import abc
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from worker_client.inprocess.state import FrozenState


class Completion(abc.ABC):
    """Called on the main thread of every rank once all have completed. An exception is only logged."""

    @abc.abstractmethod
    def __call__(self, state: FrozenState) -> FrozenState: ...
