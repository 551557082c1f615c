"""A Llama in PyTorch, for backends that export from it."""
