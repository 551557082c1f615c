"""The drafter learns from what the target said."""
