"""What may a supervisor read of the files that a job writes?"""
