"""What does the supervisor need from its machine: processes, folders, journal, logs, its own process?"""
