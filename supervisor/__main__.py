"""`python -m supervisor`: the same as the console script `holdfast`."""

import os
import sys

if __name__ == "__main__":
    # As under the console script, files in the current folder must not be imported.
    if not sys.flags.safe_path and os.path.isabs(sys.path[0]):
        del sys.path[0]
    from supervisor.cli import main

    sys.exit(main())
