"""How is the process that forks a job's workers started, spoken to, followed by another, and ended with its tree?"""
