"""``python -m omnidraft`` is the ``omnidraft`` command."""

from omnidraft.cli import main

main()
