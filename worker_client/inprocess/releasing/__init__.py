"""What is a main thread inside C++ waiting for, and how is that ended so that the thread returns?

The abort calls these modules. Before that, torch's own record of what hangs is dumped (flight_recorder.py).
"""
