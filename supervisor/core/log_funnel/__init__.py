"""How do lines of all nodes reach the one process that writes each file: tiers, queues, positions?"""
