"""How do whole frames get from one node of a job to another, through TLS and over broken connections?"""
