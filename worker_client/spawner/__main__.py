"""How does a spawner start that executes its workers, for commands that are not Python or would notice a fork?"""

import os
import sys


def main() -> None:
    """Runs as `PYTHON -I -S this_file`, with settings in a memory file. Does not return."""
    import json

    settings_fd = int(os.environ["HOLDFAST_SPAWNER_SETTINGS"])
    folders: list[str] = json.loads(os.pread(settings_fd, os.fstat(settings_fd).st_size, 0))["import_folders"]
    sys.path.extend(folders)
    package = type(sys)("worker_client")  # The real package would load the client, and protobuf with it.
    package.__path__ = [os.path.dirname(os.path.dirname(os.path.abspath(__file__)))]
    sys.modules["worker_client"] = package
    from worker_client.spawner.interpreter import refuse_old

    refuse_old()
    from worker_client.spawner.spawner_startup import run_plain

    run_plain()


if __name__ == "__main__":
    main()
