"""The ``omnidraft`` command: one file for each subcommand, which parses, calls and prints."""
