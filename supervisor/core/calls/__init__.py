"""Calls of a function under the in-process Wrapper: what is said about them, and how the coordinator decides.

`words` is what ranks, nodes and coordinator say. The machine is cluster/wrapped_call.py; `call_state` is what it
remembers, `entering` and `rank_words` what a word changes in that, `newcomers` who takes the place of a lost rank,
`decisions` what it asks for, `call_sentences` what people read. `timeout_clash` compares a call's timeouts with the
job's own limits.
"""
