"""How are a job's workers started, contacted, inspected and ended?"""
