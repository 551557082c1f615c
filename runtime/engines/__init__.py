"""Engines: each runs one kind of model folder behind ``CausalModel``."""

from omnidraft.runtime.engines.registry import (
    ENGINES,
    Engine,
    engine_of,
    engine_spec,
    open_engine,
)

__all__ = ["ENGINES", "Engine", "engine_of", "engine_spec", "open_engine"]
