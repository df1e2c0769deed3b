"""`python -m supervisor`: the same as the console script `holdfast`."""

import os
import sys
from contextlib import suppress

if __name__ == "__main__":
    # As under the console script, files in the current folder must not be imported. A folder that was removed is not
    # in the path: then its first entry is another one.
    with suppress(OSError):
        if not sys.flags.safe_path and sys.path[0] == os.getcwd():
            del sys.path[0]
    from holdfast_command import end_silently_while_loading, refused_for_room

    end_silently_while_loading()
    if refused := refused_for_room(sys.argv[1:]):
        sys.exit(refused)
    from supervisor.cli import main

    sys.exit(main())
