"""How do nodes reach the leader of a large job by other nodes: the relay, and the two sides of it."""
