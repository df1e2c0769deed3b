"""What can a rank ask of its job's supervisor?"""

from __future__ import annotations

import enum
from dataclasses import dataclass


class WorkloadAction(enum.Enum):
    """What should happen to the job. The numbers are those of WorkloadControl.Action on the wire."""

    Continue = 0  # no effect
    ExcludeThisNode = 1  # restart without this node
    ShutdownWorkload = 2  # end the job, no restart


@dataclass(frozen=True, slots=True)
class WorkloadControlRequest:
    """A request to the supervisor. `description` is free text; people read it as the reason."""

    action: WorkloadAction
    description: str = ""
