"""What do nodes of a job send each other, and what do the bytes mean?"""
