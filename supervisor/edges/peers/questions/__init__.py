"""How does a question get from one node of a job to another, and the answer back?"""
