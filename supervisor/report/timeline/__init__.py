"""What do the events of a job say about its life? Pure; used by report, live view and web page."""
