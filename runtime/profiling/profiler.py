"""Load a target and a drafter, answer prompts both ways in turn, and say where everything went."""

from __future__ import annotations

import statistics
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from time import perf_counter
from typing import TypeVar

from omnidraft.runtime.bench import Prompt, fitting
from omnidraft.runtime.cores import default_threads
from omnidraft.runtime.models import LoadedModel, load_model
from omnidraft.runtime.models.catalogue import Quantization
from omnidraft.runtime.models.load import drafter_threads
from omnidraft.runtime.models.resolve import resolve
from omnidraft.runtime.options import DEFAULT_DRAFT_LENGTH, DraftLength, GenerationOptions
from omnidraft.runtime.profiling.devices import DeviceProfile, for_drafter
from omnidraft.runtime.profiling.drafter_graph import drafter_graph
from omnidraft.runtime.profiling.energy import EnergyMeter, open_meter
from omnidraft.runtime.profiling.machine import describe_machine
from omnidraft.runtime.profiling.measurement import Measurement
from omnidraft.runtime.profiling.memory import (
    MemoryCap,
    peak_bytes,
    reset_peak,
    resident_bytes,
)
from omnidraft.runtime.profiling.recording import RecordedModel
from omnidraft.runtime.profiling.report import (
    Energy,
    KvCache,
    Load,
    Memory,
    Profile,
    Settings,
    Simulation,
    Speedup,
)
from omnidraft.runtime.session import Session
from omnidraft.runtime.storage.weights import weights_bytes

PROMPTS = (
    Prompt("math", "A shop sells 14 pens a day and 23 on Saturdays. How many in a week of 7 days?"),
    Prompt("code", "Write a Python function that returns the n-th Fibonacci number."),
    Prompt("chat", "Why is the sky blue, and why is it red in the evening?"),
    Prompt("summary", "Summarise in two sentences what a bank does with the money people save."),
)
"""What is answered when no prompts are given."""
# Tokens between two looks at the memory taken: a look costs some 30 µs, a pass some milliseconds.
_TOKENS_PER_CHECK = 32
_WARM_UP_TOKENS = 8

Progress = Callable[[str, float | None], None]
_T = TypeVar("_T")


@dataclass(frozen=True)
class Request:
    """What to profile.

    Args:
        target: see ``models.resolve``.
        drafter: likewise.
        quantization: of a target that is converted here.
        threads: threads for a pass of the target; None: see ``cores.default_threads``. The device's
            limit holds if it is lower.
        prompts: answered plainly and speculatively in every repeat.
        repeats: each starts with an empty n-gram cache.
        max_new_tokens: of an answer.
        draft_length, tree: see ``GenerationOptions``.
        device: to simulate.
    """

    target: str
    drafter: str
    quantization: Quantization
    threads: int | None = None
    prompts: Sequence[Prompt] = PROMPTS
    repeats: int = 3
    max_new_tokens: int = 128
    draft_length: DraftLength = DEFAULT_DRAFT_LENGTH
    tree: int | None = None
    device: DeviceProfile | None = None


def profile(
    request: Request,
    progress: Progress = lambda step, fraction: None,
    told: Callable[[Profile], None] = lambda so_far: None,
) -> Profile:
    """Measure latency, throughput, memory and energy. Decoding is greedy.

    Args:
        progress: told each step, and what fraction of it is done.
        told: given the profile of the repeats so far after each of them but the last.

    Raises:
        ModelNotFoundError, DamagedFileError, MissingDependencyError: see ``load_model``.
        OptionError: draft length and tree do not go together, or the target scores no trees.
        MemoryCapError: the device's memory does not suffice.
        ContextOverflowError: no prompt fits the target's context, or the device's. One that does
            not is left out, with a warning.
    """
    options = GenerationOptions(
        max_new_tokens=request.max_new_tokens,
        draft_length=request.draft_length,
        tree=request.tree,
    )
    loaded, session = _load(request, progress)
    request = replace(request, prompts=fitting(session, request.prompts))
    plain, speculative = Measurement(), Measurement()
    ways = ((plain, replace(options, draft_length=0, tree=None)), (speculative, options))
    meter = open_meter()
    parted: set[int] = set()
    for repeat in range(request.repeats):
        if repeat:
            del session  # two at once would count as the peak
            session = Session(loaded.target, loaded.drafter)
        progress("warming up", None)
        for measurement, way in ways:
            short = replace(way, max_new_tokens=min(_WARM_UP_TOKENS, way.max_new_tokens))
            session.generate(request.prompts[0].prompt, short)
            measurement.begin_repeat()
        for index, prompt in enumerate(request.prompts):
            progress(f"repeat {repeat + 1} of {request.repeats}", index / len(request.prompts))
            # The two take turns to go first.
            one, other = (
                measurement.answer(session, prompt.prompt, way, meter, loaded.watch)
                for measurement, way in ways[:: 1 if (repeat + index) % 2 else -1]
            )
            if one != other:
                parted.add(index)
            loaded.check("after an answer")
        if repeat + 1 < request.repeats:
            so_far = replace(request, repeats=repeat + 1)
            told(_profile(so_far, loaded, session, plain, speculative, meter, len(parted)))
    return _profile(request, loaded, session, plain, speculative, meter, len(parted))


def _profile(
    request: Request,
    loaded: _Loaded,
    session: Session,
    plain: Measurement,
    speculative: Measurement,
    meter: EnergyMeter,
    parted: int,
) -> Profile:
    """What was measured, of so many repeats as ``request`` says."""
    ratios = [b / a for a, b in zip(plain.speeds(), speculative.speeds(), strict=True)]
    return Profile(
        created=datetime.now(UTC),
        target=loaded.target.name,
        drafter=loaded.drafter.name,
        batch_invariant=loaded.target.batch_invariant,
        machine=describe_machine(),
        settings=Settings(
            prompts=len(request.prompts),
            repeats=request.repeats,
            max_new_tokens=request.max_new_tokens,
            target_threads=loaded.target.threads,
            drafter_threads=loaded.drafter.threads,
            draft_length=request.draft_length,
            tree=request.tree,
            quantization=request.quantization,
        ),
        simulation=_simulation(loaded.device if request.device else None, speculative),
        load=loaded.times,
        plain=plain.mode(),
        speculative=speculative.mode(),
        speedup=Speedup(
            median=statistics.median(ratios),
            lowest=min(ratios),
            highest=max(ratios),
            repeats=ratios,
            identical=len(request.prompts) - parted,
        ),
        memory=_memory(session, loaded),
        energy=_energy(meter, plain, speculative),
    )


@dataclass
class _Loaded:
    """Two models to be recorded, and what loading them took."""

    target: LoadedModel
    drafter: LoadedModel
    times: Load
    weights: tuple[int, int]
    """Bytes, of the target and of the drafter."""
    resident: list[int | None]
    """Bytes, before loading and after each of its steps."""
    fresh_peak: bool
    """Whether the peak of memory began with loading."""
    cap: MemoryCap | None
    device: DeviceProfile
    """To simulate, with the times of this drafter."""

    def check(self, when: str) -> None:
        """Compare the memory taken with the device's cap, if there is one."""
        if self.cap is not None:
            self.cap.check(when)

    def watch(self, tokens: int) -> None:
        """The same, every few tokens of an answer."""
        if tokens % _TOKENS_PER_CHECK == 0:
            self.check("while answering")


def _threads(request: Request) -> int:
    limit = request.device.threads if request.device else None
    threads = default_threads() if request.threads is None else request.threads
    return min(threads, limit or threads)


def _load(request: Request, progress: Progress) -> tuple[_Loaded, Session]:
    device = request.device or DeviceProfile(name="this machine")
    # Fetching and converting is not what is profiled.
    weights = (
        weights_bytes(resolve(request.target, request.quantization, progress=progress)),
        weights_bytes(resolve(request.drafter, progress=progress)),
    )
    fresh_peak = reset_peak()
    cap = MemoryCap(device.name, device.memory_cap, fresh_peak) if device.memory_cap else None
    if cap is not None:
        cap.check("before loading the models", about_to_load=sum(weights))
    progress("loading", None)
    resident = [resident_bytes()]
    milliseconds = []

    def timed(step: str, work: Callable[[], _T]) -> _T:
        started = perf_counter()
        result = work()
        milliseconds.append((perf_counter() - started) * 1e3)
        resident.append(resident_bytes())
        if cap is not None:
            cap.check(f"after {step}")
        return result

    threads = _threads(request)
    target = timed(
        "loading the target",
        lambda: load_model(request.target, quantization=request.quantization, threads=threads),
    )
    drafter = timed(
        "loading the drafter",
        lambda: load_model(request.drafter, threads=drafter_threads(threads), drafts=True),
    )
    target_model = RecordedModel(target.model, max_length=device.target_context)
    device = _device_for(device, drafter)
    drafter_model = RecordedModel(
        drafter.model, max_length=device.drafter_context, latencies=device.drafter_latency
    )
    target, drafter = replace(target, model=target_model), replace(drafter, model=drafter_model)
    session = timed("pairing the vocabularies", lambda: Session(target, drafter))
    times = Load(target_ms=milliseconds[0], drafter_ms=milliseconds[1], pairing_ms=milliseconds[2])
    return _Loaded(target, drafter, times, weights, resident, fresh_peak, cap, device), session


def _device_for(device: DeviceProfile, drafter: LoadedModel) -> DeviceProfile:
    """The device with the times that its NPU takes for this drafter."""
    if device.drafter_graph is None:
        return device
    graph = drafter_graph(drafter.path)
    if graph is not None:
        return for_drafter(device, graph)
    warnings.warn(
        f"{drafter.name} does not state its size, so the times of {device.name} are those of the "
        "drafter that its profile was written for. Convert or export the drafter again.",
        stacklevel=4,
    )
    return device


def _simulation(device: DeviceProfile | None, speculative: Measurement) -> Simulation | None:
    if device is None:
        return None
    return Simulation(
        device=device,
        drafter_simulated=bool(device.drafter_latency),
        subtracted_seconds=speculative.excess,
    )


def _memory(session: Session, loaded: _Loaded) -> Memory:
    assert session.cache is not None
    now = resident_bytes()
    target_kv, drafter_kv = _kv_cache(loaded.target), _kv_cache(loaded.drafter)
    touched = sum(kv.touched for kv in (target_kv, drafter_kv) if kv)
    known = sum(loaded.weights) + touched + session.cache.memory_bytes
    before, after_target, after_drafter, after_pairing = loaded.resident
    return Memory(
        resident=now,
        peak=peak_bytes(),
        peak_since="load" if loaded.fresh_peak else "start",
        before_load=before,
        after_target=after_target,
        after_drafter=after_drafter,
        after_pairing=after_pairing,
        target_weights=loaded.weights[0],
        drafter_weights=loaded.weights[1],
        target_kv=target_kv,
        drafter_kv=drafter_kv,
        ngram_cache=session.cache.memory_bytes,
        ngrams=len(session.cache),
        runtime=None if now is None else now - known,
    )


def _kv_cache(loaded: LoadedModel) -> KvCache | None:
    """None for engines that keep their KV cache to themselves."""
    model = loaded.model
    each: int | None = getattr(model, "kv_bytes_per_token", None)
    if each is None or not isinstance(model, RecordedModel):
        return None
    return KvCache(allocated=each * model.unlimited_length, touched=each * model.longest)


def _energy(meter: EnergyMeter, plain: Measurement, speculative: Measurement) -> Energy:
    counted = meter.source is not None
    return Energy(
        source=meter.source,
        reason=meter.reason,
        plain_joules_per_token=plain.joules / plain.sums.target_tokens if counted else None,
        speculative_joules_per_token=(
            speculative.joules / speculative.sums.target_tokens if counted else None
        ),
    )
