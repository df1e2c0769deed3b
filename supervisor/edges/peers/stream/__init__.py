"""How does a leader keep in touch with its nodes, and a node with its leader?"""
