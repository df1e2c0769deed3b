"""Calls of a function under the in-process Wrapper: what is said about them, and what the coordinator knows of them.

`words` is what ranks, nodes and coordinator say; `book` what the machine cluster/iteration.py remembers; `hearing` and
`entry` what a word changes in it; `orders` what the machine asks for; `sentences` what people read.
"""
