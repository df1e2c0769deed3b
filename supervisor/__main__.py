"""`python -m supervisor`: the same as the console script `holdfast`."""

import os
import sys

if __name__ == "__main__":
    # What lies in the folder where somebody types this is not ours to import, as under the console script.
    if not sys.flags.safe_path and os.path.isabs(sys.path[0]):
        del sys.path[0]
    from supervisor.cli import main

    sys.exit(main())
