"""How are ranks watched that somebody else has started?"""
