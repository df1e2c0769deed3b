"""How is the process that forks a job's workers started, contacted, replaced, and ended with its descendants?"""
