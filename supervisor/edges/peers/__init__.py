"""How do orders and reports travel between the nodes of one job?"""
