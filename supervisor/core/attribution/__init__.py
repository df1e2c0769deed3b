"""Why did a cycle end, and which ranks caused it? Read from its log, by rules."""
