"""Which rank keeps a job from going on, and how is that told?"""
