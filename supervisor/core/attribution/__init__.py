"""Why did a cycle end, and which ranks caused it, according to rules applied to its log?"""
