"""The export as a command of optimum's."""
