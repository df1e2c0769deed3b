"""How does an exception get into another thread, and where may it surface?"""
