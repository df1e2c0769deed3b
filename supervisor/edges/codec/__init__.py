"""How do records of the core become protobuf messages, and back? One codec by field names for every wire."""
