"""Which processes are there, whose are they, and what are they doing?"""
