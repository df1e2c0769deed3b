"""What do this rank and its supervisor tell each other during a call, and over which connection?"""
