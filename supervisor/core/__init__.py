"""Pure decisions: no I/O, no clock, no await, no logging. Events go in, actions come out.

Every machine module exports `State`, `Event`, `Action`, `step(state, event, *, now_s, …) -> (state, actions)` and
`next_deadline_s(state)`. Machines do not import each other; `node/node.py` and `cluster/coordinator.py` fold them.
"""
