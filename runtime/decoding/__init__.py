"""From a prompt to tokens: draft, score, verify, translate back."""
