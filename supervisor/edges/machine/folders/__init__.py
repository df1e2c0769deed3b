"""Where are a supervisor's files, is each place safe, and which supervisor holds it?"""
