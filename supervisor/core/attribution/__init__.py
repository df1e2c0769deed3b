"""Why did a cycle end, and whose fault was it? Read out of its log, by rules."""
