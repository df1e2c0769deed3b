"""Lines of all nodes on their way to the one process that writes each file: tiers, queues, positions."""
