"""What is kept of a job, so that another supervisor goes on with it?"""
