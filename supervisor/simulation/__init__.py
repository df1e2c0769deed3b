"""How the production core is played in simulated time: for tests that break it, and for `holdfast simulate`."""
