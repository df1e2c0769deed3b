"""How does torchrun find Holdfast's rendezvous, without loading any of it where another backend is asked for?

torch calls `handler` in every process that imports its elastic package, workers too: standard library only.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from torch.distributed.elastic.rendezvous.api import RendezvousHandler, RendezvousParameters


def handler() -> object:
    """The entry point of the group `torchrun.handlers`: returns what makes a handler."""
    return create


def create(params: RendezvousParameters) -> RendezvousHandler:
    """For `torchrun --rdzv-backend=holdfast`. Raises RuntimeError where the extra [supervisor] is missing."""
    command = import_module("holdfast_command")
    try:
        command.load_own("supervisor")
        rendezvous = import_module("supervisor.programs.torchrun.rendezvous")
    except ModuleNotFoundError as error:
        raise RuntimeError(f"cannot use --rdzv-backend=holdfast: {command.missing(error)}") from error
    return rendezvous.create(params)
