"""How does an exception get into a thread that does something else, and where may it come up?"""
