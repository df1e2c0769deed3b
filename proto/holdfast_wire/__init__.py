"""Which formats do Holdfast's processes share: framing, page layout, spawner link and protobuf messages?

`supervisor` and `worker_client` meet only here. Everything except `v1/` uses only the standard library, because
the spawner loads it into the interpreter from which user scripts are forked.
"""
