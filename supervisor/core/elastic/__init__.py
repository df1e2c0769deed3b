"""The rendezvous of launchers that are not ours: torchrun's agents, which start and watch their workers themselves."""
