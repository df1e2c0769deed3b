"""What do ranks, nodes and coordinator exchange about wrapped calls, and how does the coordinator decide?

`words` has the messages of ranks, nodes and coordinator. The machine is cluster/wrapped_call.py; `call_state` is its
memory, `entering` and `rank_words` apply messages to it, `newcomers` chooses replacements of lost ranks, `decisions`
has the machine's requests, `call_text` what people read.
"""
