"""How does one service of a node serve several users, each by a supervisor that runs as that user?"""
