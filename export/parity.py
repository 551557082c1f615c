"""Whether an exported drafter says what the float32 model says.

Only numpy and the runtime: ``omnidraft inspect --verify`` runs this where nothing else is
installed.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from omnidraft.export.latency import is_emulated, measure_latency
from omnidraft.export.opening import opened
from omnidraft.runtime.engines.model import CausalModel
from omnidraft.runtime.errors import DamagedFileError, OmniDraftError
from omnidraft.runtime.storage.bundle import Bundle, Latency, Parity, Thresholds
from omnidraft.runtime.storage.manifest import CHECKPOINTS

Logits = NDArray[np.float32]

REFERENCE_FILE = "reference.npz"
REFERENCE_TOKENS = 128
# Tokens of a pass; engines with shorter graphs cut it.
_PASS = 64
# How far another machine's kernels may be from the exporting one's.
TOLERANCES = {
    "positions": 0,
    "top1_agreement": 0.01,
    "kl": 0.01,
    "acceptance_agreement": 0.01,
    "logit_error": 0.01,
}
# Logits below are those of tokens that a drafter never drafts: as good as -infinity.
_LEFT_OUT = -1e20
# Where the float32 model gives its likeliest token less than this, on average, it has learned
# nothing. (A trained drafter: about a half. Random weights: 0.0003.)
_UNTRAINED = 0.01


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

    @property
    def untrained(self) -> bool:
        """Whether the float32 model looks as if its likeliest token were chance."""
        return self.certainty < _UNTRAINED

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
    kl = acceptance = largest = noise = signal = 0.0
    start = 0
    for piece in np.split(reference.tokens, np.cumsum(reference.lengths)[:-1]):
        for rows in _rows(model, piece):
            part = slice(start, start + len(rows))
            start += len(rows)
            likeliest, expected = reference.likeliest[part], reference.logits[part]
            logits = np.take_along_axis(rows, likeliest, axis=1)
            same += int((rows.argmax(axis=1) == likeliest[:, 0]).sum())
            # A token that is left out counts as if its logit were the mean: see ``Parity``.
            drafted = logits > _LEFT_OUT
            mean = expected.mean(axis=1, keepdims=True)
            differences = np.where(drafted, logits, mean).astype(np.float64) - expected
            largest = max(largest, float(np.abs(differences[drafted]).max(initial=0)))
            noise += _squares(differences)
            signal += _squares(expected.astype(np.float64))
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
        largest_logit_difference=largest,
        # A model that says the same of every token has no signal.
        logit_error=noise / max(signal, 1e-12),
        measured_with=_engine_name(model),
    )


def likeliest_logits(model: CausalModel, reference: Reference) -> Logits:
    """What a model says of the reference's likeliest tokens, float32 [positions, tokens].

    Args:
        model: its sequence is lost.

    Raises:
        OmniDraftError: a logit is NaN or infinite.
    """
    parts: list[Logits] = []
    start = 0
    for piece in np.split(reference.tokens, np.cumsum(reference.lengths)[:-1]):
        for rows in _rows(model, piece):
            likeliest = reference.likeliest[start : start + len(rows)]
            start += len(rows)
            parts.append(np.take_along_axis(rows, likeliest, axis=1))
    return np.concatenate(parts)


def shortcomings(parity: Parity, thresholds: Thresholds) -> list[str]:
    """In what a parity does not reach its thresholds; nothing, where it does."""
    agreement, error = thresholds.smallest_agreement, thresholds.largest_logit_error
    found = []
    if agreement is not None:
        for name, value in (
            ("top-1 agreement", parity.top1_agreement),
            ("acceptance agreement", parity.acceptance_agreement),
        ):
            if value < agreement:
                found.append(f"{name} is {value:.2%}, {agreement:.2%} are needed")
    if error is not None and parity.logit_error > error:
        found.append(f"logit error is {parity.logit_error:.2%}, at most {error:.2%} is allowed")
    return found


def parity_text(parity: Parity, thresholds: Thresholds | None = None) -> str:
    """All figures in one sentence, with what was needed."""
    agreement = error = ""
    if thresholds is not None:
        needed, allowed = thresholds.smallest_agreement, thresholds.largest_logit_error
        agreement = " (not asked)" if needed is None else f" (needed: {needed:.2%})"
        error = " (not asked)" if allowed is None else f" (allowed: {allowed:.2%})"
    return (
        f"top-1 agreement with float32 {parity.top1_agreement:.2%}{agreement}, acceptance "
        f"agreement {parity.acceptance_agreement:.2%}{agreement}, logit error "
        f"{parity.logit_error:.2%}{error}, KL {parity.kl:.3g}, largest logit difference "
        f"{parity.largest_logit_difference:.3g}, on {parity.positions:,} tokens of held text "
        f"({parity.measured_with})"
    )


@dataclass(frozen=True)
class Verified:
    """A bundle measured again.

    Args:
        reason: in what parity differs from the manifest's by more than rounding; "" if in nothing.
        latency: None of a checkpoint for other programs, whose speed is theirs.
        other_processor: whether the manifest's latency was measured on another kind of processor.
    """

    parity: Parity
    latency: Latency | None
    reason: str
    other_processor: bool

    @property
    def ok(self) -> bool:
        """Whether the manifest says what was found."""
        return not self.reason

    def as_dict(self) -> dict[str, Any]:
        """For JSON."""
        return {
            "parity": self.parity.model_dump(),
            "latency": self.latency and self.latency.model_dump(),
            "other_processor": self.other_processor,
            "ok": self.ok,
        }


def verify(bundle: Bundle, folder: Path, threads: int) -> Verified:
    """Measure a bundle's parity and latency again and compare the parity with the manifest's.

    Latency is another machine's matter: both are shown, and neither is wrong.

    Raises:
        DamagedFileError: the bundle has no parity or no reference to measure with.
        OmniDraftError: a logit is NaN or infinite.
        See ``open_engine``.
    """
    if bundle.parity is None or REFERENCE_FILE not in bundle.files:
        raise DamagedFileError(f"{folder} has no parity report. Export the bundle again.")
    reference = Reference.load(folder / REFERENCE_FILE)
    with opened(bundle, folder, threads) as model:
        parity = measure_parity(model, reference)
    differing = [
        f"{name} is {found:.4f}, the manifest says {stated:.4f}"
        for name, tolerance in TOLERANCES.items()
        if abs((found := getattr(parity, name)) - (stated := getattr(bundle.parity, name)))
        > tolerance
    ]
    latency = None if bundle.backend in CHECKPOINTS else measure_latency(folder, threads)
    other = latency is not None and any(
        stated.processor != latency.processor for stated in bundle.latency
    )
    return Verified(parity, latency, "; ".join(differing), other)


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


def _squares(rows: NDArray[np.float64]) -> float:
    """Σ of squares, each row without its mean."""
    return float(np.square(rows - rows.mean(axis=1, keepdims=True)).sum())


def _outcomes(logits: Logits, log_sum: Logits) -> NDArray[np.float64]:
    """Probabilities of the chosen tokens and, last, of all others; none is exactly 0."""
    chosen = np.exp(logits.astype(np.float64) - log_sum[:, None])
    rest = 1 - chosen.sum(axis=1, keepdims=True)
    outcomes: NDArray[np.float64] = np.maximum(np.concatenate([chosen, rest], axis=1), 1e-12)
    return outcomes
