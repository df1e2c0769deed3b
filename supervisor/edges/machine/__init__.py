"""What does the supervisor need of the machine that it runs on: processes, folders, journal, logs, its own process?"""
