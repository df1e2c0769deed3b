"""Which ranks and nodes of a job are slower than the others in the same section?"""
