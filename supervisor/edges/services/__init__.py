"""Which services of others are asked about a job, and how are those kept that the job has of its own?"""
