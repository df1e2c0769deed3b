"""What happens, in which order, in one call of a wrapped function on this rank?

Who this rank is in each iteration, what the function finds around it, and how nothing of it stays behind.
"""
