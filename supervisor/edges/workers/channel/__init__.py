"""Which worker may speak on the worker socket, what does it send, and what answers does it get?"""
