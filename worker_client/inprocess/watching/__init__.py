"""What can be seen of this rank from outside while a call runs: its progress, its log, its supervisor's pid?"""
