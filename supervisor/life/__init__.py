"""What was the life of one job? Read out of its events; pure, for report, live view and web page."""
