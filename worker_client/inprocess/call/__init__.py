"""What happens, in which order, in one call of a wrapped function on this rank?

This includes the rank's identity in each iteration, the function's environment, and the cleanup.
"""
