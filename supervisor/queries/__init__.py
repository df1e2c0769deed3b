"""What do people ask about jobs, on this node and on all the job's nodes?"""
