"""Graphs made from checkpoints."""
