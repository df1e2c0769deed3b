"""How does the output of all workers of a cycle reach one file, without a worker or a restart waiting for a disk?"""
