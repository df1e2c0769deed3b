"""How does what all workers of a cycle print reach one file, without a worker or a restart ever waiting for a disk?"""
