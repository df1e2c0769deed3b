"""Writes output that line readers do not expect."""

ODD_BYTES = (b"no newline yet", b"\0NUL\0", b"\xff\xfe not UTF-8", b"z" * (1 << 20), b"\r\n", "ü".encode()[:1], b"end")
