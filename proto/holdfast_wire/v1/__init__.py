"""The messages of this package as protobuf generates them, for all wires."""
