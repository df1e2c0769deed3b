"""Which external services are asked about a job, and how are the job's own services kept running?"""
