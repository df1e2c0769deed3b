"""A worker that prints in every way that a launcher's output handling can spoil."""

import os
import sys
import time

RANK = os.environ["RANK"]


def main() -> None:
    seen = [stream.isatty() for stream in (sys.stdin, sys.stdout, sys.stderr)]
    print("terminal", *seen)
    if sys.stdout.isatty():
        size = os.get_terminal_size(1)
        print(f"{size.columns}x{size.lines}")
        print("\x1b[31mred\x1b[0m", os.environ.get("TERM"))
    for step in range(5):
        sys.stderr.write(f"\rstep {step + 1}/5 of {RANK}")
        sys.stderr.flush()
        time.sleep(0.01)
    sys.stderr.write("\n")
    print(f"rank {RANK}: Grüße, {'long ' * 40}")
    os.write(1, b"\xff\x00 not text\n")
    sys.stdout.write(f"no line end of {RANK}")


main()
