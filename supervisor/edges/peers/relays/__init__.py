"""How do nodes reach the leader of a large job through other nodes: the relay, and both sides of it?"""
