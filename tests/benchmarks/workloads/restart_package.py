"""A script that gets torch through a package of its own."""

from fault_timer import begin

begin()

from trainer import train  # noqa: E402 - the half second counts from the first line

train()
