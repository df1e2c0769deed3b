"""What does a job's part on this node do next: its workers, their monitors, its wrapped calls, its checks?"""
