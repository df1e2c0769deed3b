"""Who leads a job whose leader may be lost, what may it order, and how long may a node train without it?"""
