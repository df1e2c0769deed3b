"""How do a job's orders and reports travel if no election says who leads?"""
