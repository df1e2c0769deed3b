"""Where is each rank in its code right now?"""
