"""Models by name or path: found, fetched, kept in the cache folder, loaded."""

from omnidraft.runtime.models.load import LoadedModel, load_model

__all__ = ["LoadedModel", "load_model"]
