"""What does `holdfast doctor` look at, and what does it conclude?

Each module looks at one area, changes nothing, and has an answer for a machine that lacks what the check needs.
"""
