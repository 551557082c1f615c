"""Text ↔ token ids ↔ surface bytes."""
