"""How does the production core run in simulated time, for tests that break it and for `holdfast simulate`?"""
