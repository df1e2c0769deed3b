"""Which rank blocks a job, and how is that reported?"""
