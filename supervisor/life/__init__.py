"""What happened in the life of one job, according to its events? Pure; used by report, live view and web page."""
