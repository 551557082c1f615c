"""Device profiles: what a device allows and how fast its drafter is, to be simulated here.

A profile is a TOML or JSON file; ``devices/`` holds examples. What is simulated: the number of
threads, a cap on memory, the lengths of contexts, and the time of the drafter's passes where an NPU
runs them. The speed of the device's CPU is not: the target's passes take this machine's time.
"""

from __future__ import annotations

import json
import tomllib
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any

from pydantic import BaseModel, ByteSize, ConfigDict, Field, ValidationError

from omnidraft.runtime.errors import OmniDraftError
from omnidraft.runtime.storage.files import expanded
from omnidraft.runtime.storage.validation import mistakes

_SHIPPED = Path(__file__).parent / "devices"


class _Part(BaseModel):
    # Unknown keys are refused: a misspelt limit must not be ignored in silence.
    model_config = ConfigDict(extra="forbid", frozen=True)


class PassLatency(_Part):
    """How long one pass of a static graph takes.

    The pass holds at most ``tokens`` new tokens, padded if there are fewer, and a sequence of at
    most ``context`` tokens, the new ones included.
    """

    context: Annotated[int, Field(ge=1)]
    tokens: Annotated[int, Field(ge=1)]
    milliseconds: Annotated[float, Field(ge=0, allow_inf_nan=False)]


class DeviceProfile(_Part):
    """A device to simulate; what is not stated is this machine's."""

    name: Annotated[str, Field(min_length=1)]
    threads: Annotated[int, Field(ge=1)] | None = None
    """Most threads for a pass of the target."""
    memory_cap: Annotated[ByteSize, Field(gt=0)] | None = None
    """Bytes, or text such as "2 GB" or "512 MiB": most resident memory of the process."""
    target_context: Annotated[int, Field(ge=2)] | None = None
    """Longest sequence of the target, in tokens."""
    drafter_context: Annotated[int, Field(ge=32)] | None = None
    """Longest sequence of the drafter, in tokens; it keeps the more recent half when full."""
    drafter_latency: list[PassLatency] = []
    """The drafter's passes on the device; empty: on this machine's CPU."""
    sources: dict[str, str] = {}
    """For each of the fields above where its figures come from, or that they are assumptions."""


def pass_seconds(latencies: Sequence[PassLatency], tokens: int, length: int) -> float:
    """What a pass costs by a table of static graphs, in seconds.

    The graphs of the shortest context that holds the sequence run, else those of the longest; among
    them the narrowest that holds the new tokens. What exceeds the widest is passed in several goes.

    Args:
        latencies: at least one.
        tokens: new tokens.
        length: tokens of the sequence after the pass.
    """
    contexts = sorted({entry.context for entry in latencies})
    context = next((c for c in contexts if c >= length), contexts[-1])
    graphs = sorted((e.tokens, e.milliseconds) for e in latencies if e.context == context)
    widest, widest_ms = graphs[-1]
    full, rest = divmod(tokens, widest)
    total = full * widest_ms
    if rest:
        total += next(ms for width, ms in graphs if width >= rest)
    return total / 1e3


def shipped_devices() -> list[str]:
    """Names of the profiles that come with OmniDraft."""
    return sorted(path.stem for path in _SHIPPED.glob("*.toml"))


def load_device(name: str) -> DeviceProfile:
    """Read a device profile: a file, or one that comes with OmniDraft by its name.

    Raises:
        OmniDraftError: there is none of that name, or the file is not a profile.
    """
    path = expanded(name)
    if name in shipped_devices() and not path.is_file():
        path = _SHIPPED / f"{name}.toml"
    if not path.is_file():
        raise OmniDraftError(
            f"There is no device profile {name!r}: neither a file here nor one of "
            f"{', '.join(shipped_devices())}."
        )
    try:
        return DeviceProfile.model_validate(_read(path))
    except ValidationError as error:
        known = ", ".join(DeviceProfile.model_fields)
        raise OmniDraftError(
            f"{path} is not a device profile: {mistakes(error)}. Known keys: {known}."
        ) from error


def _read(path: Path) -> Any:
    try:
        text = path.read_text("utf-8")
        return json.loads(text) if path.suffix == ".json" else tomllib.loads(text)
    except (OSError, ValueError, RecursionError) as error:
        raise OmniDraftError(
            f"{path} cannot be read as {'JSON' if path.suffix == '.json' else 'TOML'}: {error}"
        ) from error
