"""What does the engine need of an edge, and what does it offer?"""
