"""What can operators and programs ask over control.sock, and what answers do they get?"""
