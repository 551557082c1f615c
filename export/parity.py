"""Whether an exported drafter says what the float32 model says, and how fast it says it.

Only numpy and the runtime: ``omnidraft inspect --verify`` runs this where nothing else is
installed.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from omnidraft.runtime.bundle import Bundle, Latency, Parity
from omnidraft.runtime.engines import open_engine
from omnidraft.runtime.errors import DamagedFileError, OmniDraftError
from omnidraft.runtime.model import CausalModel
from omnidraft.runtime.processor import processor_name

Logits = NDArray[np.float32]

REFERENCE_FILE = "reference.npz"
REFERENCE_TOKENS = 128
# Tokens of a pass; engines with shorter graphs cut it.
_PASS = 64
# How far another machine's kernels may be from the exporting one's.
TOLERANCES = {"positions": 0, "top1_agreement": 0.01, "kl": 0.01, "acceptance_agreement": 0.01}
LATENCY_CONTEXT = 256
_LATENCY_STEPS = 30
# An emulated chip takes seconds for a pass: its time says nothing of the chip, a few show it runs.
_EMULATED_CONTEXT, _EMULATED_STEPS = 8, 3


@dataclass(frozen=True)
class Reference:
    """What the float32 model says of held text.

    Args:
        tokens: int32 [positions], the texts one after another.
        lengths: int32 [texts]; every text begins with an empty cache.
        likeliest: int32 [positions, REFERENCE_TOKENS], the likeliest next tokens, best first.
        logits: float32 [positions, REFERENCE_TOKENS], theirs.
        log_sum: float32 [positions], log Σ exp of all logits.
    """

    tokens: NDArray[np.int32]
    lengths: NDArray[np.int32]
    likeliest: NDArray[np.int32]
    logits: NDArray[np.float32]
    log_sum: NDArray[np.float32]

    @property
    def certainty(self) -> float:
        """The mean probability of the likeliest token."""
        return float(np.exp(self.logits[:, 0] - self.log_sum).mean())

    def save(self, path: Path) -> None:
        """Write the reference as compressed arrays."""
        np.savez_compressed(path, **vars(self))

    @classmethod
    def load(cls, path: Path) -> Reference:
        """Read a reference.

        Raises:
            DamagedFileError: the file is missing or not a reference.
        """
        try:
            with np.load(path, allow_pickle=False) as arrays:
                reference = cls(**arrays)
        except (OSError, ValueError, TypeError, KeyError) as error:
            raise DamagedFileError(
                f"{path} cannot be read: {error}. Export the bundle again."
            ) from error
        if not (np.isfinite(reference.logits).all() and np.isfinite(reference.log_sum).all()):
            raise DamagedFileError(
                f"{path} holds logits that are NaN or infinite. Export the bundle again."
            )
        return reference


def make_reference(model: CausalModel, texts: Sequence[Sequence[int]], positions: int) -> Reference:
    """What ``model`` says of the texts' beginnings, about ``positions`` tokens in all.

    Raises:
        OmniDraftError: a logit is NaN or infinite.
    """
    share = -(-positions // len(texts))
    pieces = [text[: min(share, model.max_length)] for text in texts]
    likeliest, logits, log_sum = [], [], []
    for piece in pieces:
        for rows in _rows(model, piece):
            count = min(REFERENCE_TOKENS, rows.shape[1])
            best = np.argsort(-rows, axis=1, kind="stable")[:, :count].astype(np.int32)
            likeliest.append(best)
            logits.append(np.take_along_axis(rows, best, axis=1))
            log_sum.append(_log_sum(rows))
    return Reference(
        np.concatenate([np.asarray(piece, np.int32) for piece in pieces]),
        np.array([len(piece) for piece in pieces], np.int32),
        np.concatenate(likeliest),
        np.concatenate(logits),
        np.concatenate(log_sum),
    )


def measure_parity(model: CausalModel, reference: Reference) -> Parity:
    """Compare a model with the float32 model, teacher-forced: see ``Parity``.

    Args:
        model: its sequence is lost.

    Raises:
        OmniDraftError: a logit is NaN or infinite: such a model agrees with nothing.
    """
    same = 0
    kl = acceptance = difference = 0.0
    start = 0
    for piece in np.split(reference.tokens, np.cumsum(reference.lengths)[:-1]):
        for rows in _rows(model, piece):
            part = slice(start, start + len(rows))
            start += len(rows)
            likeliest, expected = reference.likeliest[part], reference.logits[part]
            logits = np.take_along_axis(rows, likeliest, axis=1)
            same += int((rows.argmax(axis=1) == likeliest[:, 0]).sum())
            difference = max(difference, float(np.abs(logits - expected).max()))
            p = _outcomes(expected, reference.log_sum[part])
            q = _outcomes(logits, _log_sum(rows))
            kl += float((p * (np.log(p) - np.log(q))).sum())
            acceptance += float(np.minimum(p, q).sum())
    positions = len(reference.tokens)
    return Parity(
        positions=positions,
        top1_agreement=same / positions,
        # Rounding can make a sum of nothing slightly negative.
        kl=max(0.0, kl / positions),
        acceptance_agreement=min(1.0, acceptance / positions),
        largest_logit_difference=difference,
        measured_with=_engine_name(model),
    )


def measure_latency(model: CausalModel, threads: int) -> Latency:
    """Time steps of one token: see ``Latency``. The model's sequence is lost."""
    context, steps = LATENCY_CONTEXT, _LATENCY_STEPS
    emulated = is_emulated(model)
    if emulated:
        context, steps = _EMULATED_CONTEXT, _EMULATED_STEPS
    context = min(context, model.max_length - 1)
    token = [0]
    model.truncate(0)
    model.forward(np.zeros(context, np.int64), rows=1)
    times = []
    for step in range(steps + 1):
        model.truncate(context)
        begin = time.perf_counter()
        model.forward(token)
        if step:  # the first one warms up
            times.append(time.perf_counter() - begin)
    model.truncate(0)
    return Latency(
        context=context,
        threads=threads,
        milliseconds=statistics.median(times) * 1000,
        processor=processor_name(),
        emulated=emulated,
    )


@dataclass(frozen=True)
class Verified:
    """A bundle measured again.

    Args:
        reason: in what it differs from its manifest by more than rounding; "" if in nothing.
    """

    parity: Parity
    latency: Latency
    reason: str

    @property
    def ok(self) -> bool:
        """Whether the manifest says what was found."""
        return not self.reason

    def as_dict(self) -> dict[str, Any]:
        """For JSON."""
        return {
            "parity": self.parity.model_dump(),
            "latency": self.latency.model_dump(),
            "ok": self.ok,
        }


def verify(bundle: Bundle, folder: Path, threads: int) -> Verified:
    """Measure a bundle's parity and latency again and compare the parity with the manifest's.

    Latency is another machine's matter and is not compared.

    Raises:
        DamagedFileError: the bundle has no parity or no reference to measure with.
        OmniDraftError: a logit is NaN or infinite.
        See ``open_engine``.
    """
    if bundle.parity is None or REFERENCE_FILE not in bundle.files:
        raise DamagedFileError(f"{folder} has no parity report. Export the bundle again.")
    model = open_engine(folder, threads=threads)
    parity = measure_parity(model, Reference.load(folder / REFERENCE_FILE))
    differing = [
        f"{name} is {found:.4f}, the manifest says {stated:.4f}"
        for name, tolerance in TOLERANCES.items()
        if abs((found := getattr(parity, name)) - (stated := getattr(bundle.parity, name)))
        > tolerance
    ]
    return Verified(parity, measure_latency(model, threads), "; ".join(differing))


def is_emulated(model: CausalModel) -> bool:
    """Whether the model's chip is emulated: its engine says so."""
    return bool(getattr(model, "emulated", False))


def _engine_name(model: CausalModel) -> str:
    return type(model).__name__ + (", emulated" if is_emulated(model) else "")


def _rows(model: CausalModel, piece: Sequence[int] | NDArray[np.int32]) -> Iterator[Logits]:
    """The logits of a text's tokens, some tokens at a time."""
    model.truncate(0)
    ids = np.asarray(piece, np.int64)
    for start in range(0, len(ids), _PASS):
        rows = model.forward(ids[start : start + _PASS])
        if not np.isfinite(rows).all():
            raise OmniDraftError(
                f"Logits of {_engine_name(model)} are NaN or infinite on held text. Its weights "
                "are damaged, or numbers overflow in it."
            )
        yield rows


def _log_sum(rows: Logits) -> Logits:
    largest = rows.max(axis=1, keepdims=True)
    total: Logits = np.log(np.exp(rows - largest).sum(axis=1)) + largest[:, 0]
    return total


def _outcomes(logits: Logits, log_sum: Logits) -> NDArray[np.float64]:
    """Probabilities of the chosen tokens and, last, of all others; none is exactly 0."""
    chosen = np.exp(logits.astype(np.float64) - log_sum[:, None])
    rest = 1 - chosen.sum(axis=1, keepdims=True)
    outcomes: NDArray[np.float64] = np.maximum(np.concatenate([chosen, rest], axis=1), 1e-12)
    return outcomes
