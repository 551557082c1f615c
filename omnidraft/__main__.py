"""The ``omnidraft`` command, also as ``python -m omnidraft``."""

from __future__ import annotations

import os
import signal


def main() -> None:
    """Run the command; Ctrl-C ends it at once while its imports are being read."""
    # os._exit: an exception would have to pass through whatever is being imported.
    signal.signal(signal.SIGINT, lambda signum, frame: os._exit(130))
    from omnidraft.cli.app import main as run

    run()


if __name__ == "__main__":
    main()
