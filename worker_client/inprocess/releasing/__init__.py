"""What is ended from outside, so that a main thread which waits for it inside C++ comes back: whose sockets, and how?

Called by the abort. What these sockets told is written out before (flight_recorder.py).
"""
