"""Thin I/O, grouped by who is on the other side: workers, peers, operators, and the machine itself."""
