"""What Holdfast's processes say to each other: framing, page layout, spawner link and protobuf messages.

The only place where `supervisor` and `worker_client` meet. Everything here but `v1/` is standard library only, because
the spawner loads it into the interpreter from which user scripts are forked.
"""
