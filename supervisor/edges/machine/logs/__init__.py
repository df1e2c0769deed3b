"""Where do lines of the log go, and which logs are deleted?"""
