"""What is left to do once the function has ended well on all ranks?"""

from __future__ import annotations

import abc
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from worker_client.inprocess.state import FrozenState


class Completion(abc.ABC):
    """Called on the main thread of every rank once all have completed. What it raises is logged, no more."""

    @abc.abstractmethod
    def __call__(self, state: FrozenState) -> FrozenState: ...
