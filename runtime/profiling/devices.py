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


class DrafterGraph(_Part):
    """What a pass of a drafter's static graph reads and computes.

    ``weight_bytes`` are those of the matrices that a pass multiplies by, ``kv_bytes`` those of one
    token's keys and values. ``products`` counts the multiplications of one token by weights,
    ``kv_products`` those by the keys and values of one token.
    """

    weight_bytes: Annotated[int, Field(ge=1)]
    kv_bytes: Annotated[int, Field(ge=0)]
    products: Annotated[int, Field(ge=1)]
    kv_products: Annotated[int, Field(ge=0)]

    def bytes_read(self, context: int) -> int:
        """Bytes that a pass reads: the graph takes the whole cache, filled or not."""
        return self.weight_bytes + context * self.kv_bytes

    def work(self, context: int) -> int:
        """Multiplications for one token of a pass."""
        return self.products + context * self.kv_products


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
    drafter_call: Annotated[float, Field(ge=0, allow_inf_nan=False)] = 0.0
    """Milliseconds of each of these passes that are the call's, whatever the graph."""
    drafter_graph: DrafterGraph | None = None
    """The drafter that ``drafter_latency`` is of, see ``for_drafter``; None: it is of any."""
    sources: dict[str, str] = {}
    """For each of the fields above where its figures come from, or that they are assumptions."""


def for_drafter(device: DeviceProfile, graph: DrafterGraph) -> DeviceProfile:
    """The profile with the times of another drafter's passes.

    A pass takes the longer the more its graph reads or computes, whichever has grown more: nothing
    is known of which of the two the device waits for. The call takes what it took.
    """
    known = device.drafter_graph
    if known is None:
        return device

    def scaled(entry: PassLatency) -> PassLatency:
        context = entry.context
        ratio = max(
            graph.bytes_read(context) / known.bytes_read(context),
            graph.work(context) / known.work(context),
        )
        call = min(device.drafter_call, entry.milliseconds)
        own = (entry.milliseconds - call) * ratio
        return entry.model_copy(update={"milliseconds": call + own})

    table = [scaled(entry) for entry in device.drafter_latency]
    return device.model_copy(update={"drafter_latency": table, "drafter_graph": graph})


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
