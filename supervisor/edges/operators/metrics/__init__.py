"""What do monitoring systems read? Prometheus metrics, and whether the supervisor lives and takes jobs."""
