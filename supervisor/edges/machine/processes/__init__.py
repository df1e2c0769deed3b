"""Which processes exist, whose are they, and what are they doing?"""
