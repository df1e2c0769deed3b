"""Where does each rank stand right now?"""
