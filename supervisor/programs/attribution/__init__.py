"""How does the attribution service, a separate HTTP server, find out why each cycle of a job ended?"""
