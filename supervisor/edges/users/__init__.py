"""How does one service of a node serve several users, each through a supervisor that runs as that user?"""
