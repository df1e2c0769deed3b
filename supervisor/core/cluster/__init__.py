"""What does a whole job do next: which nodes take part, who restarts when, and how does it end?"""
