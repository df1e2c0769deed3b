"""How are a job's workers started, spoken to, looked into and ended?"""
