"""What is recorded of jobs so that it outlives the supervisor, and how is it read again?"""
