"""What is a main thread inside C++ waiting for, and how is that ended so that it comes back?

Called by the abort. torch's own record of what hangs is written out before (flight_recorder.py).
"""
