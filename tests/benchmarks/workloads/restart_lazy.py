"""A script that imports torch, through a package of its own, only where it wants to train."""

import sys

from fault_timer import begin

begin()
if "--no-training" not in sys.argv:
    from trainer import train

    train()
