"""Which worker may speak on the worker socket, what does it say, and what is it answered?"""
