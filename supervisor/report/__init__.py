"""How is a job's life shown: as text, JSON, a picture, and one page that needs nothing else?"""
