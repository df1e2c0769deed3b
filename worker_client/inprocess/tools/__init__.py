"""How can restarts inside the process be tried out?"""
