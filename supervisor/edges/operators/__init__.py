"""What do operators and programs ask over control.sock, and what are they answered?"""
