"""How does the fork server of one job start, reap, signal and kill its workers, and pass on their output?"""
